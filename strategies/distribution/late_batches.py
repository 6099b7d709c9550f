"""Batches that are queued before it is known whether their rooms suffice on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from strategies.distribution.gaussian_exchange import Passage
from strategies.distribution.host_copies import HostCopy
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
        self._regions, self._passages, self._losses = regions, passages, losses
        self._flag, self._rooms = flag, rooms

    def overflowed(self) -> bool:
        return self._flag.read(bool)

    def learn(self) -> Callable[[], Outcome]:
        self._rooms.learn(self.plan.views, self._regions, [passage.counts for passage in self._passages])
        return self._outcome

    def blame(self) -> None:
        self._rooms.grow(self.plan.views, self._regions, [passage.counts for passage in self._passages])

    def release(self) -> None:
        for passage in self._passages:
            passage.settle()

    def _outcome(self) -> Outcome:
        return outcome_of(self._passages, self._losses)


def outcome_of(passages: Sequence[Passage], losses: Sequence[torch.Tensor]) -> Outcome:
    """This rank's share of a batch: of the mean loss of its views, their visible Gaussians, instances rendered."""
    return Outcome(
        torch.stack(list(losses)).mean(),
        sum(passage.visible for passage in passages),
        sum(passage.instances for passage in passages),
    )
