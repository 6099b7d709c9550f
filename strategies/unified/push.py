"""Records pushed into inboxes: each owner stores its splats straight into the memory of the places that render them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from cuda_src.exchange import SENT_INSTANCES, SENT_RECORDS, Routing, take_records
from cuda_src.layout import RECORD
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace
from strategies.distribution.ledger import Ledger
from strategies.distribution.marked_rows import marked
from strategies.unified.arenas import Arena
from strategies.unified.sectors import run_bytes

COUNT_BYTES = 8
"""The number of records that a place says it has stored, a view and destination: metadata."""
_WORD = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True)
class Addressed:
    """An owner's splats, by view, and which of them each place renders.

    sent: by view and destination, [n] int64 ascending positions in the view's splats. instances: by view and
    destination, those that they have among its tiles.
    """

    splats: Sequence[Splats]
    sent: Sequence[Sequence[torch.Tensor]]
    instances: Sequence[Sequence[int]]


ViewCounts = list[list[int]]
"""`Routing.counts` of a view on the host: by destination, then column."""


@dataclass(frozen=True)
class Routed:
    """A view's splats and their routing."""

    splats: Splats
    routing: Routing

    def those(self, which: slice | torch.Tensor) -> Routed:
        """Some of the splats, by position."""
        splats = Splats(self.splats.rows[which], self.splats.ids[which], self.splats.records[which])
        return Routed(splats, Routing(self.routing.masks[which], self.routing.counts))

    @property
    def shown(self) -> Routed:
        """Without splats that go nowhere: hidden in all their tiles, they are neither sent nor moved."""
        return self.those(self.routing.masks.nonzero()[:, 0])

    def sent(self, counts: ViewCounts) -> list[torch.Tensor]:
        """By destination, positions of its splats, [n] int64 ascending; nobody waits, since it is known how many."""
        masks = self.routing.masks
        return [
            marked(((masks >> place) & 1).cumsum(0), of_place[SENT_RECORDS]) for place, of_place in enumerate(counts)
        ]


def addressed(views: Sequence[Routed], counts: Sequence[ViewCounts]) -> Addressed:
    """Which places' tiles each of the owner's splats meets, by view."""
    return Addressed(
        [one.splats for one in views],
        [one.sent(of_view) for one, of_view in zip(views, counts, strict=True)],
        [[of_place[SENT_INSTANCES] for of_place in of_view] for of_view in counts],
    )


@dataclass(frozen=True)
class Route:
    """Where the records of a batch lie.

    owners: by place. first: by view and destination, [places + 1] slots: those of source s are
    first[s]:first[s + 1]. inboxes: by view and destination, [slots, record / 4] real: a splat's 11 values, the
    bits of its row in the table, padding.
    """

    owners: Sequence[Addressed]
    first: Sequence[Sequence[list[int]]]
    inboxes: Sequence[Sequence[torch.Tensor]]
    record: int

    @classmethod
    def reserve(cls, owners: Sequence[Addressed], arenas: Sequence[Arena], record: int, dtype: torch.dtype) -> Route:
        """Room for every source's records one after another in each inbox."""
        first, inboxes = [], []
        for view in range(len(owners[0].sent)):
            to_place = [[len(owner.sent[view][place]) for owner in owners] for place in range(len(owners))]
            slots = [list(accumulate(counts, initial=0)) for counts in to_place]
            size = record // 4
            first.append(slots)
            inboxes.append(
                [a.works[view].take("inbox", (s[-1], size), dtype) for a, s in zip(arenas, slots, strict=True)]
            )
        return cls(owners, first, inboxes, record)

    @property
    def views(self) -> int:
        return len(self.inboxes)

    def slots(self, view: int, source: int, destination: int) -> slice:
        first = self.first[view][destination]
        return slice(first[source], first[source + 1])

    def instances(self, view: int, destination: int) -> int:
        """Of the records of an inbox, among the tiles of its place."""
        return sum(owner.instances[view][destination] for owner in self.owners)

    def store(self, source: int) -> None:
        """On the source's stream: compact its records and store them into every inbox.

        Into another GPU's they go packed, so that the link moves whole slots.
        """
        owner = self.owners[source]
        for view, splats in enumerate(owner.splats):
            for destination, sent in enumerate(owner.sent[view]):
                slots = self.inboxes[view][destination][self.slots(view, source, destination)]
                here = splats.records.device
                packed = slots if slots.device == here else torch.empty_like(slots, device=here)
                packed[:, :RECORD] = splats.records[sent]
                numbers(packed).copy_(splats.ids[sent])
                if packed is not slots:
                    slots.copy_(packed, non_blocking=True)

    def rows(self, view: int, destination: int) -> torch.Tensor:
        """Row in the table of each slot of an inbox, [slots] int64."""
        # Rows take 32 bits, unsigned: the sign that int32 reads into them goes.
        return numbers(self.inboxes[view][destination]).to(torch.int64) & 0xFFFFFFFF

    def received(self, view: int, destination: int, kernels: KernelSet, work: Workspace) -> Splats:
        """On the destination's stream: the splats of its inbox, by slot, in its workspace of the view.

        Their ids are rows of the table.
        """
        inbox = self.inboxes[view][destination]
        # As kernels read them, so that none makes a copy of its own.
        records = take_records(kernels, work, "inbox.records", len(inbox)).copy_(inbox[:, :RECORD])
        return Splats(torch.arange(len(inbox), device=inbox.device), self.rows(view, destination), records)

    @cached_property
    def stored_bytes(self) -> list[list[int]]:
        """Bytes of the slots by source and destination, in sectors of 32 B."""
        places = range(len(self.owners))

        def stored(source: int, destination: int) -> int:
            runs = [self.slots(view, source, destination) for view in range(self.views)]
            return sum(run_bytes(run.start * self.record, run.stop * self.record) for run in runs)

        return [[stored(source, destination) for destination in places] for source in places]

    def enter(self, ledger: Ledger, stage: str) -> None:
        """What `store` wrote, in the ledger; the counts beside it are metadata."""
        for source, bytes_to in enumerate(self.stored_bytes):
            ledger.add(stage, source, bytes_to)
            ledger.add(stage, source, [COUNT_BYTES * self.views] * len(self.owners), metadata=True)


def numbers(inbox: torch.Tensor) -> torch.Tensor:
    """The column of the inbox that holds the bits of the records' rows, as integers, [slots]."""
    return inbox[:, RECORD].view(_WORD[inbox.dtype])
