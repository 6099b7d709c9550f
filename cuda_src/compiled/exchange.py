"""Routing and packing: what the kernels of exchange.cu and exchange_gradients.cu take; see cuda_src/exchange.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch

from cuda_src.camera import Camera
from cuda_src.compiled.bindings import Launch, ReplayedLaunch, address, count
from cuda_src.compiled.binning import Given
from cuda_src.compiled.raster import aligned_records, as_real
from cuda_src.compiled.scratch import scratch_for
from cuda_src.compiled.seen import ALIGNMENT
from cuda_src.compiled.view import view_of
from cuda_src.exchange import MOST_RANKS, ROUTE_COUNTS, SENT_GRADIENTS, Hole, RankRooms, Routing
from cuda_src.layout import GRADIENT_STRIDE, RECORD_STRIDE
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace

_BLOCK = 256
"""Splats a block: THREADS in config.h."""

_MOST_KEPT = 4096
"""Launches kept ready: some eight for each of several hundred views."""

_OfRanks = ctypes.c_int64 * MOST_RANKS
_NOBODY = -1
"""For `Routes.whole`: the view's tiles are several ranks'."""

_Plain = tuple[Hashable, ...]
"""Addresses and numbers, and tuples of such."""


class Routes(ctypes.Structure):
    """The same struct as in exchange.cu."""

    _fields_ = (
        ("masks", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("splats", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("overflow", ctypes.c_void_p),
        ("ranks", ctypes.c_int),
        ("roomy", ctypes.c_int),
        ("whole", ctypes.c_int),
        ("room_ends", _OfRanks),
        ("room_instances", _OfRanks),
    )


@dataclass(frozen=True)
class RoomyRouting(Routing):
    """A routing that stays, as its rooms do. plain: its fields as `Routes` has them."""

    plain: _Plain = ()


def _plain(routing: Routing, rooms: RankRooms | None = None) -> _Plain:
    """The fields of its `Routes`. rooms: of one that will stay."""
    if isinstance(routing, RoomyRouting):
        return routing.plain
    assert routing.ends is not None
    ranks, blocks = routing.ends.shape
    return (
        address(routing.masks), address(routing.ends), routing.masks.shape[0], blocks, address(routing.overflow), ranks,
        rooms is not None, _NOBODY, tuple(accumulate(rooms.rows)) if rooms else (), rooms.instances if rooms else (),
    )  # fmt: skip


def _routes(plain: Sequence[Any]) -> Any:
    return ctypes.byref(Routes(*plain[:-2], _OfRanks(*plain[-2]), _OfRanks(*plain[-1])))


def _ends(rooms: Sequence[int]) -> Any:
    """Rows up to and with each rank's room."""
    return ctypes.byref(_OfRanks(*accumulate(rooms)))


_ADDRESS, _COUNT, _NUMBER = ctypes.c_void_p, count, int
_ARGUMENTS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "pack_records": (_routes, _NUMBER, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _NUMBER),
    "keep_records": (_routes, _NUMBER, _ADDRESS, _ADDRESS, _COUNT, _ADDRESS, _ADDRESS),
    "unpack_records": (_ADDRESS, _NUMBER, _COUNT, _COUNT, _COUNT, _ADDRESS),
    "pack_gradients": (_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS),
    "take_flags": (_ends, _NUMBER, _NUMBER, _ADDRESS, _NUMBER, _ADDRESS),
    "sum_gradients": (_routes, _ADDRESS, _NUMBER, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _ADDRESS, _NUMBER),
}
"""What each function is given, made of plain numbers."""


@lru_cache(maxsize=_MOST_KEPT)
def _launch(function: str, device: torch.device, *given: Hashable) -> Launch:
    """One of the functions above with these numbers. A view that comes again has the same, and nothing else is asked
    for: they name all that the launch goes by, so that it is never out of date."""
    return Launch(function, device, *(make(one) for make, one in zip(_ARGUMENTS[function], given, strict=True)))


def route_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    owners: torch.Tensor,
    ranks: int,
    workspace: Workspace,
    depth_limit: torch.Tensor | None,
    min_opacity: float,
    rooms: RankRooms | None,
) -> Routing:
    """See `cuda_src.exchange.route_splats`. The host reads nothing."""
    device, n, view = splats.records.device, splats.count, view_of(kernels, camera)
    if n == 0:
        routing = _routing(splats, ranks, workspace, rooms)
        routing.counts.zero_()
        return routing
    records, depth_limit = aligned_records(splats.records, workspace), as_real(depth_limit)
    given = (
        records.data_ptr(), address(splats.ids), n, address(splats.live), address(splats.overflow),
        address(owners), None, address(depth_limit),
    )  # fmt: skip

    def prepared() -> tuple[Routing, Launch]:
        routing, blocks = _routing(splats, ranks, workspace, rooms), -(-n // _BLOCK)
        plain = _plain(routing, rooms)
        launch = ReplayedLaunch(
            "route_splats", device, ctypes.byref(view), ctypes.byref(Given(*given)), float(min_opacity),
            _routes(plain), scratch_for(ranks * blocks, workspace),
            workspace.take("exchange.blocks", (ranks * blocks,), torch.int32), routing.counts,
        )  # fmt: skip
        roomy = RoomyRouting(routing.masks, routing.counts, routing.ends, routing.rooms, splats.overflow, plain=plain)
        return roomy if rooms else routing, launch

    key = "route_splats", view, *given, float(min_opacity), ranks, rooms
    # Without rooms sizes are others at every visit.
    routing, launch = workspace.kept(key, prepared) if rooms else prepared()
    launch()
    return routing


def route_whole(kernels: KernelSet, splats: Splats, rank: int, workspace: Workspace, rooms: RankRooms) -> Routing:
    """See `cuda_src.exchange.route_whole`."""

    def prepared() -> tuple[Routing, Launch]:
        device, ranks = splats.records.device, len(rooms.rows)
        counts = workspace.take("exchange.counts", (ranks, ROUTE_COUNTS), torch.int64)
        ends = workspace.take("exchange.ends", (ranks, 1), torch.int64)
        plain = (
            None, address(ends), splats.count, 1, address(splats.overflow), ranks, True, rank,
            tuple(accumulate(rooms.rows)), rooms.instances,
        )  # fmt: skip
        routing = RoomyRouting(splats.rows[:0], counts, ends, rooms.rows, splats.overflow, rank, plain)
        return routing, Launch("route_whole", device, splats.live, _routes(plain), counts)

    key = "route_whole", address(splats.live), splats.count, address(splats.overflow), rank, rooms
    routing, launch = workspace.kept(key, prepared)
    launch()
    return routing


def _routing(splats: Splats, ranks: int, workspace: Workspace, rooms: RankRooms | None) -> Routing:
    """Memory for a routing of these splats."""
    n = splats.count
    return Routing(
        workspace.take("exchange.masks", (n,), torch.int64),
        workspace.take("exchange.counts", (ranks, ROUTE_COUNTS), torch.int64),
        workspace.take("exchange.ends", (ranks, -(-n // _BLOCK)), torch.int64),
        None if rooms is None else rooms.rows,
        splats.overflow,
    )


def pack_records(kernels: KernelSet, splats: Splats, routing: Routing, rank: int, wire: torch.Tensor) -> None:
    """See `cuda_src.exchange.pack_records`."""
    rows, width = wire.shape
    if splats.count == 0 or rows == 0:
        return
    records, ids = rows_of(splats.records, RECORD_STRIDE), _ids_of(splats, routing)
    _launch("pack_records", wire.device, _plain(routing), rank, records, ids, _wire(wire), rows, width)()


def keep_records(
    kernels: KernelSet,
    splats: Splats,
    routing: Routing,
    rank: int,
    hole: Hole,
    arrivals: Splats,
    places: torch.Tensor | None,
) -> None:
    """See `cuda_src.exchange.keep_records`."""
    if splats.count == 0 or (hole.count == 0 and places is None):
        return
    _launch(
        "keep_records", splats.records.device, _plain(routing), rank, rows_of(splats.records, RECORD_STRIDE),
        _ids_of(splats, routing), hole.first, rows_of(arrivals.records, RECORD_STRIDE), address(places),
    )()  # fmt: skip


def unpack_records(kernels: KernelSet, wire: torch.Tensor, hole: Hole, arrivals: Splats) -> None:
    """See `cuda_src.exchange.unpack_records`."""
    rows, width = wire.shape
    if rows == hole.count:
        return
    _launch(
        "unpack_records", wire.device, _wire(wire), width, rows, hole.first, hole.count,
        rows_of(arrivals.records, RECORD_STRIDE),
    )()  # fmt: skip


def pack_gradients(
    kernels: KernelSet, gradients: torch.Tensor, hole: Hole, out: torch.Tensor, zeros: torch.Tensor
) -> None:
    """See `cuda_src.exchange.pack_gradients`."""
    rows = out.shape[0]
    if rows == hole.count:
        return
    _launch(
        "pack_gradients", out.device, rows_of(gradients, GRADIENT_STRIDE), rows, hole.first, hole.count, address(out),
        address(zeros),
    )()  # fmt: skip


def take_flags(
    kernels: KernelSet, wire: torch.Tensor, rooms: tuple[int, ...], rank: int, overflow: torch.Tensor
) -> None:
    """See `cuda_src.exchange.take_flags`."""
    _launch("take_flags", wire.device, rooms, len(rooms), rank, address(wire), wire.shape[1], address(overflow))()


def sum_gradients(
    kernels: KernelSet,
    routing: Routing,
    returned: torch.Tensor,
    rank: int,
    gradients: torch.Tensor | None,
    hole: Hole,
    out: torch.Tensor,
    zeros: torch.Tensor,
    shared: bool,
) -> None:
    """See `cuda_src.exchange.sum_gradients`."""
    if out.shape[0] == 0:
        return
    if returned.shape[1:] != (SENT_GRADIENTS,):
        raise ValueError(f"expected rows of {SENT_GRADIENTS} gradients, got {tuple(returned.shape)}")
    own = None if gradients is None else rows_of(gradients, GRADIENT_STRIDE)
    _launch(
        "sum_gradients", out.device, _plain(routing), address(returned), rank, own, hole.first, hole.count,
        rows_of(out, GRADIENT_STRIDE), address(zeros), int(shared),
    )()  # fmt: skip


def _ids_of(splats: Splats, routing: Routing) -> int | None:
    """Where ids lie that are to go along; those of splats in their place do already."""
    return address(splats.ids) if routing.whole is None else None


def _wire(rows: torch.Tensor) -> int:
    """The address of rows on a wire; ValueError for others than kernels move."""
    width = rows.shape[1]
    if width < RECORD_STRIDE or width * rows.itemsize % ALIGNMENT:
        raise ValueError(f"expected {RECORD_STRIDE} numbers or more, in words of {ALIGNMENT} bytes, got {width}")
    return rows_of(rows, width)


def rows_of(values: torch.Tensor, stride: int) -> int:
    """The address of records or gradients that lie as kernels read them; ValueError for others."""
    if values.dtype != torch.float32 or not values.is_cuda or (values.shape[0] and values.stride() != (stride, 1)):
        raise ValueError(
            f"expected float32 rows {stride} apart on a GPU, got {values.dtype}, {values.device}, {values.stride()}"
        )
    begins = values.data_ptr()
    if begins % ALIGNMENT:
        raise ValueError(f"expected rows that begin at a multiple of {ALIGNMENT} bytes")
    return begins
