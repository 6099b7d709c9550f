"""Batches that are queued before it is known whether their rooms suffice on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from strategies.distribution.gaussian_exchange import Passage
from strategies.distribution.host_copies import HostCopy
from strategies.distribution.passage_counts import Counted, Told
from strategies.distribution.passage_rooms import PassageRooms
from strategies.distribution.regions import Regions
from strategies.training.late_steps import Outcome, Plan, QueuedStep


class LateBatch(QueuedStep):
    """A batch of views, each with a passage. Every rank has the same flag and counts, and so comes to the same end."""

    def __init__(
        self,
        plan: Plan,
        regions: Regions,
        passages: Sequence[Passage],
        losses: Sequence[torch.Tensor],
        flag: HostCopy,
        rooms: PassageRooms,
    ) -> None:
        """flag: the overflow flag as it was behind the batch, [1]."""
        super().__init__(plan)
        self._regions, self._losses = regions, losses
        self._passages: Sequence[tuple[Passage, Counted]] = [(passage, passage.counted) for passage in passages]
        self._flag, self._rooms = flag, rooms

    def overflowed(self) -> bool:
        return self._flag.read(bool)

    def learn(self) -> Callable[[], Outcome]:
        self._rooms.learn(self.plan.views, self._regions, [counted.table for _, counted in self._passages])
        told = [passage.told_by(counted) for passage, counted in self._passages]
        return partial(_outcome, told, self._losses)

    def blame(self) -> None:
        self._rooms.grow(self.plan.views, self._regions, [counted.table for _, counted in self._passages])

    def release(self) -> None:
        for passage, counted in self._passages:
            passage.settle(counted)
        # Reports outlive their steps: what crossed, and memory that was since outgrown, would stay with them.
        self._passages = ()


def outcome_of(passages: Sequence[Passage], losses: Sequence[torch.Tensor]) -> Outcome:
    """This rank's share of a batch: of the mean loss of its views, their visible Gaussians, instances rendered."""
    return _outcome([passage.told for passage in passages], losses)


def _outcome(told: Sequence[Told], losses: Sequence[torch.Tensor]) -> Outcome:
    """Most are never asked for."""
    visible, instances = sum(one.visible for one in told), sum(one.instances for one in told)
    return Outcome(torch.stack(list(losses)).mean(), visible, instances)
