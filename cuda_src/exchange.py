"""Splats on their way between ranks: which rank's tiles each one touches, packed for the wire, gradients back.

A view's records travel by destination, and to one destination in the order of the splats; they arrive by source. A
rank's records for itself never enter the buffer: their places in it are left as they are (the `hole`).

A record takes its id along, behind its columns. With compiled kernels that is the word which they leave free of the
three times 16 bytes that they read, so that a row on the wire is a record in its place: nothing need be unpacked, and
no other table of ids be made. Other back ends send all 64 bits and unpack them.

Where all ranks know rooms for a view, so many rows go from each to each, however many records there are, and no host
need know. What records leave of a room holds splats without a depth, which have no tile; its last row is never one of
theirs: it holds the sender's overflow flag, by which all ranks know of any room that is too small.

A view with rooms that one rank renders whole is not routed: `project` puts its records where they travel or are kept,
in their own order, and what comes back of them lies in that order too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from cuda_src.camera import Camera
from cuda_src.layout import GRADIENT, RECORD, RECORD_ID, RECORD_STRIDE
from cuda_src.operators import KernelSet, Splats
from cuda_src.packing import id_words
from cuda_src.workspace import Workspace

MOST_RANKS = 64
"""A splat's ranks are the bits of an int64."""
SENT_GRADIENTS = 9
"""Columns of a splat's gradient that travel back: all but the depth's."""
MOST_ID = 2**31 - 1
"""Of a Gaussian whose record compiled kernels take along."""

SENT_RECORDS = 0
"""Columns of `Routing.counts`, for each destination: records that it is sent,"""
SENT_INSTANCES = 1
"""and tile instances that they have among its tiles;"""
OWN_SPLATS = 2
"""the same for every destination: splats of the view (more than its room has, if that is too small),"""
OWN_UNDRAWN = 3
"""those of them that are not drawn,"""
OVERFLOWED = 4
"""and 1 if the room was too small for them."""
ROUTE_COUNTS = 5


@dataclass(frozen=True)
class Routing:
    """Where a view's splats go. masks: [V] int64, bit r for rank r. counts: [ranks, ROUTE_COUNTS] int64.

    ends: [ranks, blocks] int64, records up to and with each block of splats of each rank; None where a back end finds
    places without. rooms: rows that go to each destination; None where they are as many as the records. overflow: [1]
    int32, set where a room is too small; of the splats' own room. whole: the rank that all of them go to, by
    `route_whole`; masks then is empty.
    """

    masks: torch.Tensor
    counts: torch.Tensor
    ends: torch.Tensor | None = None
    rooms: tuple[int, ...] | None = None
    overflow: torch.Tensor | None = None
    whole: int | None = None

    @property
    def ranks(self) -> int:
        return int(self.counts.shape[0])

    def others_of(self, rank: int) -> int:
        """Bits of all ranks but that one, as an int64 has them."""
        return ~(1 << rank) if rank < MOST_RANKS - 1 else (1 << rank) - 1

    def splats_to(self, rank: int) -> torch.Tensor:
        """Splats that the rank is sent, ascending, [n] int64; read by the host."""
        return ((self.masks >> rank) & 1).nonzero()[:, 0]


class RankRooms(NamedTuple):
    """By destination: rows of the buffer that travels, the flag's included, and instances that these may have there."""

    rows: tuple[int, ...]
    instances: tuple[int, ...]


@dataclass(frozen=True)
class Hole:
    """Rows first : first + count of a buffer that holds those of all ranks: what a rank has for itself."""

    first: int = 0
    count: int = 0


NO_HOLE = Hole()


def wire_width(kernels: KernelSet) -> int:
    """Numbers of a record on the wire at least: its columns and its id."""
    return RECORD_STRIDE if kernels.backend == "compiled" else RECORD + id_words(kernels.dtype)


def check_ids(kernels: KernelSet, ids: torch.Tensor) -> None:
    """ValueError for Gaussians, [N] int64, whose ids the back end's records cannot take along. Read by the host."""
    if kernels.backend != "compiled" or len(ids) == 0:
        return
    for end in torch.aminmax(ids):
        if not 0 <= end <= MOST_ID:
            raise ValueError(f"Gaussian id {int(end)}: compiled kernels exchange splats with ids from 0 to {MOST_ID}")


def take_records(kernels: KernelSet, workspace: Workspace, name: str, count: int) -> torch.Tensor:
    """Memory for records, [count, RECORD], whose rows lie as the back end's kernels read them."""
    stride = RECORD_STRIDE if kernels.backend == "compiled" else RECORD
    return workspace.take(name, (count, stride), kernels.dtype)[:, :RECORD]


def take_arrivals(kernels: KernelSet, workspace: Workspace, name: str, count: int) -> Splats:
    """Memory for splats that ranks send: rows of no table here, for which their ids stand in.

    With compiled kernels an id is the last word of its record.
    """

    def made() -> Splats:
        records = take_records(kernels, workspace, name, count)
        if kernels.backend == "compiled":
            ids = ids_in(row_words(records))
        else:
            ids = workspace.take(f"{name}.ids", (count,), torch.int64)
        return Splats(ids, ids, records)

    return workspace.kept(("arrivals", name, count, kernels.dtype), made)


def row_words(records: torch.Tensor) -> torch.Tensor:
    """Records of `take_records` for compiled kernels with the last of their words, [R, RECORD_STRIDE]."""
    return records.as_strided((len(records), RECORD_STRIDE), (RECORD_STRIDE, 1))


def ids_in(words: torch.Tensor) -> torch.Tensor:
    """The ids that records take along, [R] int32. words: of `row_words`."""
    return words.view(torch.int32)[:, RECORD_ID]


def route_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    owners: torch.Tensor,  # [tiles of the image] int32, rank that renders each
    ranks: int,
    workspace: Workspace,
    depth_limit: torch.Tensor | None = None,  # as given to `bin_splats`
    min_opacity: float = 0.0,
    rooms: RankRooms | None = None,  # of splats that were made with a room
) -> Routing:
    """Which ranks' tiles each splat is listed in: by exactly the test that `bin_splats` lists by.

    Records lie as `project` leaves them, or in `take_records`. Splats below min_opacity go nowhere. The overflow of the
    splats is set where a rank is sent more than its room holds. ValueError for more than 64 ranks, and for rooms where
    splats have none.
    """
    if ranks > MOST_RANKS:
        raise ValueError(f"expected at most {MOST_RANKS} ranks, got {ranks}")
    if rooms is not None and (
        splats.overflow is None or not len(rooms.rows) == len(rooms.instances) == ranks or min(rooms.rows) < 1
    ):
        raise ValueError(f"expected splats with a room, and a row or more for each of {ranks} ranks, got {rooms}")
    return kernels.called.route_splats(
        kernels,
        splats,
        camera,
        owners,
        ranks,
        workspace,
        depth_limit,
        min_opacity,
        rooms,
    )


def route_whole(
    kernels: KernelSet,  # one with `KernelSet.projects_in_place`
    splats: Splats,  # that were projected into their place
    rank: int,  # that renders all tiles of the view
    workspace: Workspace,
    rooms: RankRooms,
) -> Routing:
    """The routing of a view that one rank renders whole: every splat goes there, as it lies.

    Splats were projected into the rows of that rank's room but for its last: in the buffer that travels or, where the
    rank is this one, in the hole. What is packed and kept then is what they leave of the rooms. ValueError for splats
    without a room, or of another size than the rank's.
    """
    if splats.overflow is None or splats.count != rooms.rows[rank] - 1:
        raise ValueError(f"expected splats with a room of {rooms.rows[rank] - 1}, got {splats.count}")
    return kernels.called.route_whole(kernels, splats, rank, workspace, rooms)


def pack_records(
    kernels: KernelSet,
    splats: Splats,
    routing: Routing,
    rank: int,
    wire: torch.Tensor,  # [rows, >= wire_width] real, contiguous, written
) -> None:
    """Records and ids of what goes to other ranks, id's bits behind the record, as far as the rows reach.

    Columns behind the id are not written. With rooms the wire has all their rows, and the first column of each room's
    last one is 1 if the overflow flag is set, else 0. Compiled kernels write rows of whole 16-byte words, and ids in 32
    bits (`check_ids`).
    """
    kernels.called.pack_records(kernels, splats, routing, rank, wire)


def take_flags(
    kernels: KernelSet,
    wire: torch.Tensor,  # [R, >= RECORD] real, contiguous: what came
    rooms: Sequence[int],  # by source, rows of its room
    rank: int,
    overflow: torch.Tensor,  # [1] int32, set if another rank's flag is
) -> None:
    """The flags that `pack_records` gave along."""
    kernels.called.take_flags(kernels, wire, tuple(rooms), rank, overflow)


def keep_records(
    kernels: KernelSet,
    splats: Splats,
    routing: Routing,
    rank: int,
    hole: Hole,
    arrivals: Splats,  # of `take_arrivals`, [R], written in the hole
    places: torch.Tensor | None = None,  # [V] int32, written: as of `Kept`; None: nobody asks
) -> None:
    """What a rank has for itself, put in its place among the records that arrive there."""
    kernels.called.keep_records(kernels, splats, routing, rank, hole, arrivals, places)


def unpack_records(
    kernels: KernelSet,
    wire: torch.Tensor,  # [R, >= wire_width] real, contiguous
    hole: Hole,
    arrivals: Splats,  # of `take_arrivals`, [R], written outside the hole
) -> None:
    """The reverse of `pack_records`, for what came from other ranks and was not received in its place."""
    kernels.called.unpack_records(kernels, wire, hole, arrivals)


def pack_gradients(
    kernels: KernelSet,
    gradients: torch.Tensor,  # [R, GRADIENT] real, rows may lie further apart
    hole: Hole,
    out: torch.Tensor,  # [R, SENT_GRADIENTS] real, contiguous, written outside the hole
    zeros: torch.Tensor,  # [1] int64, added to
) -> None:
    """The columns that travel back, of all records but the rank's own; zeros counts rows that are exactly zero."""
    kernels.called.pack_gradients(kernels, gradients, hole, out, zeros)


def add_to_owners(
    kernels: KernelSet,
    gradients: torch.Tensor,  # [M, GRADIENT] real, by tile instance, rows may lie further apart
    slots: torch.Tensor,  # [M] int32, slot of each instance's record
    walked: torch.Tensor,  # [M] bool, instances that count
    accumulators: Sequence[torch.Tensor],  # by owner [n, ACCUMULATOR_STRIDE] real, contiguous, added to
) -> None:
    """Add each instance's gradient, the columns that travel back, to the accumulator of its slot.

    Slots are numbered owner after owner. The accumulators may lie on other devices that this one reaches; several
    devices may add to those of one owner at once, but to different ones. ValueError for more than 64 owners.
    """
    if len(accumulators) > MOST_RANKS:
        raise ValueError(f"expected at most {MOST_RANKS} owners, got {len(accumulators)}")
    kernels.called.add_to_owners(kernels, gradients, slots, walked, accumulators)


def sum_gradients(
    kernels: KernelSet,
    routing: Routing,
    returned: torch.Tensor,  # [S, SENT_GRADIENTS] real, contiguous, as the records were sent
    rank: int,
    gradients: torch.Tensor | None,  # [R, GRADIENT] real: where the rank's own are, in the hole; None: in `returned`
    hole: Hole,
    out: torch.Tensor,  # [V, GRADIENT] real, rows may lie further apart, written
    zeros: torch.Tensor,  # [1] int64, added to
    shared: bool = False,  # only of splats that went to other ranks too, whose rows alone are written
) -> None:
    """By splat: the sum over ranks of its gradients, rank after rank, so that it has the same bits each time.


    Zero for what went nowhere; the depth's column is zero. zeros counts the rank's own rows that are exactly zero.
    """
    if out.shape[1] != GRADIENT:
        raise ValueError(f"expected gradients of {GRADIENT} columns, got {out.shape[1]}")
    if routing.whole is not None:
        raise ValueError(f"rank {routing.whole} renders all of the view: nothing is left to sum")
    kernels.called.sum_gradients(kernels, routing, returned, rank, gradients, hole, out, zeros, shared)
