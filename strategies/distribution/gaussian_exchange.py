"""Gaussian-level exchange: splat records go to the ranks whose pixels they touch, gradients come back.

One mechanism for Grendel and ByteSplat: ownership x regions x codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from cuda_src.camera import Camera
from cuda_src.exchange import (
    NO_HOLE,
    OVERFLOWED,
    OWN_SPLATS,
    SENT_GRADIENTS,
    SENT_RECORDS,
    Hole,
    keep_records,
    pack_gradients,
    pack_records,
    route_splats,
    route_whole,
    sum_gradients,
    take_arrivals,
    take_flags,
    unpack_records,
    wire_width,
)
from cuda_src.layout import GRADIENT, GRADIENT_STRIDE, RECORD, RECORD_STRIDE
from cuda_src.operators import Kept, KernelSet, Splats
from cuda_src.tape import act
from cuda_src.workspace import Workspace
from strategies.distribution.berth import Berth
from strategies.distribution.codec import CODECS, Incoming, Outgoing
from strategies.distribution.codec import STAGE as RETURN_STAGE
from strategies.distribution.communicator import Communicator, Terms
from strategies.distribution.inbox import Inbox
from strategies.distribution.passage_counts import Counted, Told
from strategies.distribution.passage_rooms import PassageRoom
from strategies.distribution.turns import InTurns, Turns

FORWARD_BYTES = 44
"""mean2D 2, conic 3, opacity 1, colour 3, depth and radius: 11 float32."""
BACKWARD_BYTES = 36
"""Gradients of the first nine, zeros included."""
PADDED_RECORD = 16
"""64 B, so that scattered access to records runs at the link's rate; the id lies in the padding."""
_SPARE_RECORDS = 4
"""Room on the wire at a view's first visit: for every splat once, and for one in so many, at a border, once more."""


class GaussianExchange:
    """Sends records forward and gradients backward, on one communicator.

    pad: records travel as 64 B, aligned. codec: how gradients travel (`CODECS`). The id that a record has on the wire,
    and padding, are metadata. `zeros` of `records` sent back since `clear` had a gradient of exactly zero, whatever the
    codec.
    """

    def __init__(self, comm: Communicator, kernels: KernelSet, pad: bool = False, codec: str = "dense"):
        self.comm, self.kernels = comm, kernels
        self.width = PADDED_RECORD if pad else wire_width(kernels)
        self.in_place = kernels.backend == "compiled" and self.width == RECORD_STRIDE
        """A row on the wire is a record as kernels read it, and is received where they do."""
        self.codec = CODECS[codec]()
        self.counted_zeros = torch.zeros(1, dtype=torch.int64, device=comm.device)
        """On the device, where they are counted."""
        self.records = 0
        self.unused = 0
        """Rows counted there that held no record: those of a room count as zero."""

    @property
    def keeps_gradients(self) -> bool:
        """Whether those of what went to no other rank are used where they lie, while the others' still cross."""
        return self.kernels.moves_at_once and self.comm.ranks > 1 and not self.codec.moves_own

    def berth(self, work: Workspace, room: PassageRoom, whole: int | None) -> Berth:
        """Of a passage with that room. Collective, in the same order on all ranks. whole: the rank that renders all of
        the view, to which nothing but its records goes."""
        rank = self.comm.rank
        to, come = room.to(rank), room.into(rank)
        inbox = self.inbox(work, come, room.records)
        if whole is None or not self.in_place:
            return Berth(room, inbox)
        begin, rows = (sum(come[:rank]), inbox.memory) if whole == rank else (sum(to[:whole]), self.wire(work, sum(to)))
        return Berth(room, inbox, whole, rows[begin : begin + to[whole] - 1, :RECORD])

    def inbox(self, work: Workspace, come: Sequence[int], table: Sequence[Sequence[int]] | None = None) -> Inbox:
        """Where records of a view come; as of `Inbox`."""
        return Inbox(self.comm, work, self.inbox_name, come, self.width, self.kernels.dtype, table)

    @property
    def inbox_name(self) -> str:
        """Of its memory in a view's workspace."""
        return "exchange.records" if self.in_place else "exchange.arrived"

    def wire(self, work: Workspace, rows: int) -> torch.Tensor:
        """What travels, [rows, width]."""
        return work.take("exchange.wire", (rows, self.width), self.kernels.dtype)

    @property
    def zeros(self) -> int:
        return int(self.counted_zeros) - self.unused

    def clear(self) -> None:
        """Start a new window of the counters."""
        self.counted_zeros.zero_()
        self.records = self.unused = 0


@dataclass(frozen=True)
class _Member:
    """Of a batch, one view. to: rows to each rank."""

    work: Workspace
    to: list[int]
    room: PassageRoom | None

    def awaits(self, comm: Communicator, dtype: torch.dtype) -> Inbox:
        """Gradients of all rows that were sent."""
        table = None if self.room is None else tuple(zip(*self.room.records, strict=True))
        return Inbox(comm, self.work, "exchange.awaited", self.to, SENT_GRADIENTS, dtype, table)


@dataclass
class _Batch:
    """Passages that depart together. members: by view. awaited: likewise, once gradients return."""

    there: InTurns[torch.Tensor]
    back: InTurns[Incoming]
    members: list[_Member] = field(default_factory=list)
    awaited: list[Inbox] = field(default_factory=list)


class Passage:
    """One view's records on their way to the ranks whose tiles they touch, and their gradients on the way back.

    Used in this order, by all ranks alike: made, which counts and packs what this rank sends and waits for nothing;
    `fits` and `depart`, which need all ranks' counts on the host unless there is a room; `arrive`, `give_back`;
    `proceed`, which needs counts where a codec leaves rows out; perhaps `kept_gradients`; `collect`. Between them comes
    whatever need not wait: that is what an exchange hides behind. With a room nothing waits, and `settle` follows once
    the counts are there; all of it may then be played again from a tape, whatever was counted of the time before.
    With rooms the passages of a batch may also `depart_in_turns`; they are then given back in the turns of the way
    back, and all of them before any is collected. workspace: of the view, holds what is under way.
    """

    def __init__(
        self,
        exchange: GaussianExchange,
        splats: Splats,
        camera: Camera,
        owners: torch.Tensor,
        workspace: Workspace,
        depth_limit: torch.Tensor | None = None,
        min_opacity: float = 0.0,
        stage: str = "exchange_forward",
        berth: Berth | None = None,
    ) -> None:
        """splats: of this rank's Gaussians. owners: rank of each tile, [tiles] int32. min_opacity: of what is sent.
        berth: where there is a room."""
        self.splats, self.stage, self.room = splats, stage, None if berth is None else berth.room
        self._exchange, self._work, self._inbox = exchange, workspace, None if berth is None else berth.inbox
        comm, kernels = exchange.comm, exchange.kernels
        if berth is None or berth.whole is None:
            rooms = None if berth is None else berth.room.of(comm.rank)
            self._routing = route_splats(
                kernels, splats, camera, owners, comm.ranks, workspace, depth_limit, min_opacity, rooms
            )
        else:
            self._routing = route_whole(kernels, splats, berth.whole, workspace, berth.room.of(comm.rank))
        if berth is not None:
            self._to, self._from = berth.room.to(comm.rank), berth.room.into(comm.rank)
            self._pack(sum(self._to))
        else:
            self.count()
            held = workspace.capacity("exchange.wire", kernels.dtype) // exchange.width
            self._pack(max(held, splats.count + splats.count // _SPARE_RECORDS))
        self._packed = comm.mark()

    def count(self) -> None:
        """Tell all ranks what this one sends. Done when it is made without a room; with one, for whoever makes them to
        do of all passages of a batch in the same order on all ranks, whenever that costs least."""
        comm = self._exchange.comm

        def counted() -> None:
            # All of a rank's counts to every rank: so that its own come back to its host with the others'.
            counts = self._routing.counts.view(1, -1).expand(comm.ranks, -1)
            self.counted = Counted(comm.counts(self.stage, counts), comm.ranks)
            """Of the last time that it was made, or played from a tape."""

        act(counted)

    @property
    def fits(self) -> bool:
        """Whether every rank's room was large enough for its splats; if not, all ranks make the passage anew."""
        return not bool(self.counts[:, :, OVERFLOWED].any())

    @property
    def needed(self) -> int:
        """Splats that a room must hold."""
        return int(self.counts[self._exchange.comm.rank, 0, OWN_SPLATS])

    @property
    def told(self) -> Told:
        """What counts say of this rank."""
        return self.told_by(self.counted)

    def told_by(self, counted: Counted) -> Told:
        """The same of another time."""
        return Told(counted.table, self._exchange.comm.rank)

    def depart(self) -> None:
        """Start the exchange of records. This rank's own take their place meanwhile."""
        self.depart_in_turns([self], Turns.alike(self._exchange.comm.ranks))

    @staticmethod
    def depart_in_turns(passages: Sequence[Passage], turns: Turns) -> None:
        """The same of a batch, by view. Without rooms turns are alike, and every rank knows all counts."""
        comm = passages[0]._exchange.comm
        batch = _Batch(InTurns(turns, comm.rank), InTurns(turns.back, comm.rank))
        ready = [passage._board(batch) for passage in passages]
        for _ in range(turns.views):
            coming = [passages[view] for view in batch.there.next]
            sent = coming[comm.rank]
            batch.there.begun(sent._start(coming, all(ready)))
            keep_records(
                sent._exchange.kernels, sent.splats, sent._routing, comm.rank, sent._hole, sent._arrived, sent._places
            )

    def _board(self, batch: _Batch) -> bool:
        """Make room for what arrives. Returns whether an exchange may start as soon as its rows are packed."""
        exchange, comm, work = self._exchange, self._exchange.comm, self._work
        if self.room is None:
            records = self.counts[:, :, SENT_RECORDS]
            self._to, self._from = records[comm.rank].tolist(), records[:, comm.rank].tolist()
        sent, came = sum(self._to), sum(self._from)
        self._batch, self._number = batch, len(batch.members)
        batch.members.append(_Member(work, self._to, self.room))
        self._hole = Hole(sum(self._from[: comm.rank]), self._to[comm.rank])
        self._places = None
        if exchange.keeps_gradients and self._routing.whole is None:
            self._places = work.take("exchange.places", (self.splats.count,), torch.int32)
        packed, known = sent <= self._wire.shape[0], True
        if not packed:
            self._pack(sent)
        # On a CPU engines have memory of their own, which holds rows of one view.
        if self.room is None and (exchange.in_place or comm.device.type == "cuda"):
            # Memory that was not there when the packing was queued may still be in use by what was queued since.
            known = came * exchange.width <= work.capacity(exchange.inbox_name, self._wire.dtype)
            self._inbox = exchange.inbox(work, self._from)
        self._arrived = take_arrivals(exchange.kernels, work, "exchange.records", came)
        return packed and known

    def _start(self, coming: Sequence[Passage], ready: bool) -> Callable[[], torch.Tensor]:
        """Send the records. coming: by rank, the passage whose turn it is there. ready: see `_board`."""
        into = [passage._inbox.of(source) for source, passage in enumerate(coming) if passage._inbox is not None]
        there = None if self._inbox is None else self._inbox.there
        after = self._packed if ready else None
        pending = self._exchange.comm.exchange(
            self.stage,
            self._wire[: sum(self._to)],
            self._to,
            [passage._from[source] for source, passage in enumerate(coming)],
            padding=self._exchange.width - RECORD,
            terms=Terms(own=False, after=after, into=into or None, there=there),
        )
        return pending.wait

    @property
    def kept(self) -> tuple[Splats, range]:
        """Where all records will be, and which of them are there as soon as it has departed: this rank's own."""
        return self._arrived, range(self._hole.first, self._hole.first + self._hole.count)

    def arrive(self) -> Splats:
        """The records that touch this rank's tiles, from all ranks, by source, with the Gaussians' own ids.

        They are rows of no table here: ids stand in for them.
        """
        rows = self._batch.there.wait(self._number)
        if self._inbox is not None:
            rows = self._inbox.memory
        if self.room is not None:
            assert self.splats.overflow is not None
            take_flags(self._exchange.kernels, rows, self._from, self._exchange.comm.rank, self.splats.overflow)
        if not self._exchange.in_place:
            unpack_records(self._exchange.kernels, rows, self._hole, self._arrived)
        return self._arrived

    def give_back(self, gradients: torch.Tensor, view: int) -> None:
        """Start the return of the gradients of what arrived, [R, GRADIENT], as raster_backward left them.

        They, and the workspace, stay as they are until `collect`. view: the view's number.
        """
        exchange = self._exchange
        hole = NO_HOLE if exchange.codec.moves_own else self._hole
        rows = self._work.take("exchange.returned", (sum(self._from), SENT_GRADIENTS), gradients.dtype)
        pack_gradients(exchange.kernels, gradients, hole, rows, exchange.counted_zeros)
        act(partial(self._gives, rows.shape[0]))
        groups = [[n] for n in self._from]
        if exchange.codec.moves_own:  # All at once, anew each time: what it sends follows from the rows.
            self._gradients = None

            def send() -> None:
                outgoing = Outgoing(rows, groups, [view], self._arrived.ids)
                self._leaving = exchange.codec.send(exchange.comm, outgoing, [[n] for n in self._to])

            act(send)
            return
        self._gradients = gradients
        batch, coming = self._batch, self._batch.back.next
        assert coming[exchange.comm.rank] == self._number, "gradients are given back in their turns"
        if not batch.awaited:
            batch.awaited = [member.awaits(exchange.comm, gradients.dtype) for member in batch.members]
        into = [batch.awaited[number].of(source) for source, number in enumerate(coming)]
        outgoing = Outgoing(rows, groups, [view], self._arrived.ids, into, batch.awaited[self._number].there)
        awaited = [[batch.members[number].to[source]] for source, number in enumerate(coming)]
        self._leaving = exchange.codec.send(exchange.comm, outgoing, awaited)
        batch.back.begun(lambda: self._returning())

    def _gives(self, records: int) -> None:
        self._exchange.records += records
        self._some_kept = False

    def proceed(self) -> None:
        """Let the gradients follow that could not leave before the host knew how many they are."""

        def proceed() -> None:
            self._returning = self._leaving()

        act(proceed)

    def kept_gradients(self) -> tuple[torch.Tensor, Kept]:
        """Where `collect` puts sums, from now on of what other ranks have a share of; and what is there already."""
        assert self._gradients is not None
        self._some_kept = True
        zeros = self._exchange.counted_zeros
        if self._routing.whole is None:
            return self._total(), Kept(self._places, self._gradients, zeros)
        rows = self._of_whole(self._batch.awaited[self._number].memory)
        return rows, Kept(None, rows if self._routing.whole == self._exchange.comm.rank else None, zeros)

    def collect(self) -> torch.Tensor:
        """Gradients of this rank's own splats, as of `Seen`, summed over the ranks that rendered them."""
        if not self._exchange.codec.moves_own:
            self._batch.back.wait(self._number)
            return self._summed(self._batch.awaited[self._number].memory, self._some_kept)
        rows = self._work.take("exchange.sparse", (sum(self._to), SENT_GRADIENTS), self._exchange.kernels.dtype)
        act(lambda: _put(self._returning(), rows))
        return self._summed(rows, False)

    @property
    def rows_to(self) -> list[int]:
        """Rows for each rank, this one included, of a passage that has departed."""
        return self._to

    @property
    def rows_from(self) -> list[int]:
        """Rows of each rank."""
        return self._from

    def pack_again(self) -> None:
        """Pack the same records once more, so that they can depart again."""
        self._pack(sum(self._to))
        self._packed = self._exchange.comm.mark()

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Any values of what arrived, [R, k], summed at their owners: [V, k]."""
        received = self._exchange.comm.exchange(self.stage, values, self._from, self._to).wait()
        total = values.new_zeros((self.splats.count, *values.shape[1:]))
        for rank, part in enumerate(received.split(self._to)):
            total.index_add_(0, self._routing.splats_to(rank), part)
        return total

    def settle(self, counted: Counted, returned: bool = True) -> None:
        """Of a passage with a room: what its rows did not hold counts for nothing. counted: of the time that is meant.
        returned: gradients went back."""
        exchange, rank, records = self._exchange, self._exchange.comm.rank, counted.table.numpy()[:, :, SENT_RECORDS]
        gone = [max(0, room - n) for room, n in zip(self._to, records[rank].tolist(), strict=True)]
        exchange.comm.ledger.add_unused(self.stage, rank, [FORWARD_BYTES * n for n in gone])
        if not returned:
            return
        left = [max(0, room - n) for room, n in zip(self._from, records[:, rank].tolist(), strict=True)]
        exchange.records -= sum(left)
        if exchange.codec.moves_own:  # Zeros, which it has left out.
            exchange.unused += sum(left)
            return
        exchange.unused += sum(left) - left[rank]
        exchange.comm.ledger.add_unused(RETURN_STAGE, rank, [BACKWARD_BYTES * n for n in left])

    @property
    def counts(self) -> torch.Tensor:
        """All ranks' counts, [source, destination, ROUTE_COUNTS] on the host; waits for them once."""
        return self.counted.table

    def _pack(self, rows: int) -> None:
        """Records of the other ranks into a buffer of so many rows, as far as they reach."""
        exchange = self._exchange
        self._wire = exchange.wire(self._work, rows)
        pack_records(exchange.kernels, self.splats, self._routing, exchange.comm.rank, self._wire)

    def _total(self) -> torch.Tensor:
        shape = self.splats.count, GRADIENT_STRIDE
        return self._work.take("exchange.gradients", shape, self._exchange.kernels.dtype)[:, :GRADIENT]

    def _of_whole(self, returned: torch.Tensor) -> torch.Tensor:
        """Gradients of the splats of a view that one rank renders whole, where they are; as of `Seen`."""
        whole, rows, first = self._routing.whole, returned, sum(self._to[: self._routing.whole])
        if whole == self._exchange.comm.rank and self._gradients is not None:
            rows, first = self._gradients, self._hole.first
        return rows[first : first + self.splats.count]

    def _summed(self, returned: torch.Tensor, shared: bool) -> torch.Tensor:
        if self._routing.whole is not None:
            return self._of_whole(returned)
        exchange, total = self._exchange, self._total()
        sum_gradients(
            exchange.kernels,
            self._routing,
            returned,
            exchange.comm.rank,
            self._gradients,
            self._hole,
            total,
            exchange.counted_zeros,
            shared,
        )
        return total


def _put(incoming: Incoming, rows: torch.Tensor) -> None:
    """What came among all rows that were sent, [S, SENT_GRADIENTS]; zeros for those that a codec left out."""
    if incoming.positions is None:
        rows.copy_(incoming.rows)
    else:
        rows.zero_().index_copy_(0, incoming.positions, incoming.rows)


assert FORWARD_BYTES == 4 * RECORD
assert BACKWARD_BYTES == 4 * SENT_GRADIENTS
