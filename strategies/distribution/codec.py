"""How partial gradients travel back: `dense`, `bitmap`, `index` or `bf16`.

Rows lie in groups, one for each (destination, view), in the order of the records that came forward; both sides know
the groups' sizes. A codec moves the rows; the receiver learns which of the rows arrived and adds them up at once.
A rank that renders a view of a street gets exactly zero for most of its records: what is hidden receives no gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import torch

from strategies.distribution.codec_bits import bitmap_bytes, pack_bits, unpack_bits
from strategies.distribution.communicator import Communicator, Terms
from strategies.distribution.host_copies import HostCopies
from strategies.distribution.marked_rows import MarkedRows

STAGE = "exchange_backward"


Groups = Sequence[Sequence[int]]
"""Rows of each group, by rank, then view: plain numbers, since a step asks for them again and again."""


def by_rank(counts: Groups) -> list[int]:
    """Rows of each rank."""
    return [sum(of_rank) for of_rank in counts]


@dataclass(frozen=True)
class Outgoing:
    """What a rank sends back.

    rows: [n, SENT_GRADIENTS] real, by destination, then view. counts: [ranks][views], rows of each group. views:
    view number of each column. ids: [n] int64 or int32, stable ids of the rows' Gaussians. into: by rank, memory for
    all rows that are awaited, which a codec may receive into; there: the same of the other ranks, in windows.
    """

    rows: torch.Tensor
    counts: Groups
    views: Sequence[int]
    ids: torch.Tensor
    into: Sequence[torch.Tensor] | None = None
    there: Sequence[torch.Tensor] | None = None

    @cached_property
    def nonzero(self) -> torch.Tensor:
        """Rows with any value that is not exactly zero, [n] bool."""
        return nonzero_rows(self.rows)

    @property
    def by_destination(self) -> list[int]:
        return by_rank(self.counts)


@dataclass(frozen=True)
class Incoming:
    """What came back: rows [m, SENT_GRADIENTS], and the positions [m] they have among all that were awaited.

    positions: ascending; None where all of them came, and lie in `Outgoing.into` if there is such memory.
    """

    rows: torch.Tensor
    positions: torch.Tensor | None = None


Arrival = Callable[[], Incoming]
"""Waits for what comes back."""


class Codec(ABC):
    """One way to move the rows. Stateless unless it says otherwise; every call is collective."""

    name: str
    moves_own = True
    """Whether a rank's rows for itself go through it too; if not, their places in what is sent and comes are empty."""
    takes_rooms = True
    """Whether rows may be among those it is given that hold nothing, zeros whose ids mean nothing."""

    @property
    def bytes(self) -> int:
        """Of tensors held from one call to the next."""
        return 0

    @abstractmethod
    def send(self, comm: Communicator, outgoing: Outgoing, awaited: Groups) -> Callable[[], Arrival]:
        """Start. What is returned goes on, for which the host has to know what a sparse code leaves out, and returns
        what waits. Each is called once, in the order of the sends: the former of them all before the first that waits,
        so that one return crosses while another is summed.

        awaited: [ranks][views], rows of each group by source. Bytes are payload unless said.
        """


class Dense(Codec):
    """All rows as they are, zeros included: 36 B a record."""

    name = "dense"
    moves_own = False

    def send(self, comm: Communicator, outgoing: Outgoing, awaited: Groups) -> Callable[[], Arrival]:
        back = by_rank(awaited)
        terms = Terms(own=False, into=outgoing.into, there=outgoing.there)
        pending = comm.exchange(STAGE, outgoing.rows, outgoing.by_destination, back, terms=terms)
        return lambda: lambda: Incoming(pending.wait())


class Sparse(Codec):
    """Rows that are not zero. How many they are the host learns when it goes on."""

    def __init__(self) -> None:
        self._copies = HostCopies()

    def _read(self, *rows: MarkedRows) -> list[list[int]]:
        """How many are marked in each part, of each of the given: one copy to the host, which waits for it."""
        counts = torch.stack([one.counts for one in rows])
        return self._copies.start(counts).read(lambda there: there.tolist())


class Bitmap(Sparse):
    """One bit a record, whole bytes a group, and the rows that are not zero: 36 (1 - z) + 1/8 B a record.

    The bitmap is payload: it is the code itself, and it stands in for the counts that other codes need besides.
    """

    name = "bitmap"

    def send(self, comm: Communicator, outgoing: Outgoing, awaited: Groups) -> Callable[[], Arrival]:
        bits = pack_bits(outgoing.nonzero, _each(outgoing.counts))
        coming = comm.exchange(STAGE, bits, _bitmaps(outgoing.counts), _bitmaps(awaited))
        leaving = MarkedRows(outgoing.nonzero, outgoing.by_destination)

        def proceed() -> Arrival:
            arriving = MarkedRows(unpack_bits(coming.wait(), _each(awaited)), by_rank(awaited))
            sent, came = self._read(leaving, arriving)
            rows = outgoing.rows.index_select(0, leaving.positions(sum(sent)))
            pending = comm.exchange(STAGE, rows, sent, came)
            positions = arriving.positions(sum(came))
            return lambda: Incoming(pending.wait(), positions)

        return proceed


class Index(Sparse):
    """The rows that are not zero, each with its position: 40 (1 - z) B a record. Counts are metadata.

    A position is an int32 within what goes from this source to that destination.
    """

    name = "index"

    def send(self, comm: Communicator, outgoing: Outgoing, awaited: Groups) -> Callable[[], Arrival]:
        leaving = MarkedRows(outgoing.nonzero, outgoing.by_destination)
        counted = comm.counts(STAGE, leaving.counts[:, None])

        def proceed() -> Arrival:
            (sent,), came = self._read(leaving), counted.wait()[:, 0].tolist()
            where = leaving.positions(sum(sent))
            rows = outgoing.rows.index_select(0, where)
            # Only a rank's own positions travel: they fit 32 bits however many records a rank sends.
            own = _moved(where, sent, [-first for first in _firsts(outgoing.counts)]).to(torch.int32)
            places, pending = (comm.exchange(STAGE, part, sent, came) for part in (own, rows))

            def arrive() -> Incoming:
                positions = _moved(places.wait().to(torch.int64), came, _firsts(awaited))
                return Incoming(pending.wait(), positions)

            return arrive

        return proceed


class BFloat16(Codec):
    """All rows rounded to bfloat16, 18 B a record, with error feedback (Seide et al. 2014): lossy, beyond the paper.

    What rounding took away is kept by (view, Gaussian id) at the rank that rendered, which is the destination of the
    forward exchange, and added to the same Gaussian's gradient at this rank's next visit of the view. Records that a
    visit does not bring keep their remainder.
    """

    name = "bf16"
    takes_rooms = False

    def __init__(self) -> None:
        self._remainders: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def bytes(self) -> int:
        tensors = (t for kept in self._remainders.values() for t in kept)
        return sum(t.numel() * t.element_size() for t in tensors)

    def send(self, comm: Communicator, outgoing: Outgoing, awaited: Groups) -> Callable[[], Arrival]:
        rounded = torch.empty_like(outgoing.rows, dtype=torch.bfloat16)
        groups = _each(outgoing.counts)
        ids, rows, out = (tensor.split(groups) for tensor in (outgoing.ids, outgoing.rows, rounded))
        for number, view in enumerate(outgoing.views):
            of_view = slice(number, None, len(outgoing.views))
            values = self._rounded(view, torch.cat(ids[of_view]), torch.cat(rows[of_view]))
            for room, part in zip(out[of_view], values.split(groups[of_view]), strict=True):
                room.copy_(part)
        # As bytes: not every engine moves bfloat16.
        packed = rounded.view(torch.uint8)
        pending = comm.exchange(STAGE, packed, outgoing.by_destination, by_rank(awaited))
        real = outgoing.rows.dtype
        return lambda: lambda: Incoming(pending.wait().contiguous().view(torch.bfloat16).to(real))

    def _rounded(self, view: int, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The rows with what was left of them, rounded; what that leaves is kept. ids are distinct."""
        known, left = self._remainders.get(view, (ids[:0], rows[:0]))
        every, where = torch.unique(torch.cat([known, ids]), return_inverse=True)
        kept = rows.new_zeros((len(every), rows.shape[1]))
        kept[where[: len(known)]] = left
        here = where[len(known) :]
        wanted = rows + kept[here]
        rounded = wanted.to(torch.bfloat16)
        kept[here] = wanted - rounded.to(rows.dtype)
        self._remainders[view] = (every, kept)
        return rounded


CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (Dense, Bitmap, Index, BFloat16)}


def nonzero_rows(rows: torch.Tensor) -> torch.Tensor:
    """Which rows have any value that is not exactly zero, [n, k] -> [n] bool; NaN is not zero."""
    return rows.any(dim=1)


def _each(counts: Groups) -> list[int]:
    """Rows of each group, in their order."""
    return list(chain.from_iterable(counts))


def _bitmaps(counts: Groups) -> list[int]:
    """Bytes of each rank's bitmaps."""
    return [sum(map(bitmap_bytes, of_rank)) for of_rank in counts]


def _firsts(counts: Groups) -> list[int]:
    """Where each rank's rows begin."""
    return list(accumulate(by_rank(counts), initial=0))[:-1]


def _moved(positions: torch.Tensor, lengths: Sequence[int], by: Sequence[int]) -> torch.Tensor:
    """Each of the consecutive parts of the positions moved by a number of its own."""
    return torch.cat([part + step for part, step in zip(positions.split(list(lengths)), by, strict=True)])
