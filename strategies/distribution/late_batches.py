"""Batches that are queued before it is known whether their rooms suffice on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from strategies.distribution.gaussian_exchange import Passage
from strategies.distribution.passage_rooms import PassageRoom, PassageRooms
from strategies.distribution.regions import Regions
from strategies.training.late_steps import Outcome, Plan, QueuedStep


class FlagCopy:
    """The overflow flag on its way to the host."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._flag = torch.empty(1, dtype=torch.int32, pin_memory=on_gpu)
        self._arrived = torch.cuda.Event() if on_gpu else None

    def send(self, flag: torch.Tensor) -> None:
        """Copy it as it is behind the work queued so far."""
        self._flag.copy_(flag, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(flag.device))

    def read(self) -> bool:
        """Waits until it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return bool(self._flag)


class LateBatch(QueuedStep):
    """A batch of views, each with a passage. Every rank has the same flag and counts, and so comes to the same end."""

    def __init__(
        self,
        plan: Plan,
        regions: Regions,
        passages: Sequence[Passage],
        losses: Sequence[torch.Tensor],
        flag: FlagCopy,
        rooms: PassageRooms,
        idle: list[FlagCopy],
    ) -> None:
        super().__init__(plan)
        self._regions, self._passages, self._losses = regions, passages, losses
        self._flag, self._rooms, self._idle = flag, rooms, idle

    def overflowed(self) -> bool:
        return self._flag.read()

    def learn(self) -> Callable[[], Outcome]:
        for passage in self._passages:
            passage.settle()
        self._rooms.learn(self.plan.views, self._regions, [passage.counts for passage in self._passages])
        return self._outcome

    def blame(self) -> None:
        given = [passage.room for passage in self._passages]
        if all(
            isinstance(room, PassageRoom) and room.holds(passage.counts)
            for room, passage in zip(given, self._passages, strict=True)
        ):
            self._rooms.refuse(self.plan.views)  # Not for their size: for equal depths, which they will have again.

    def release(self) -> None:
        self._idle.append(self._flag)

    def _outcome(self) -> Outcome:
        return outcome_of(self._passages, self._losses)


def outcome_of(passages: Sequence[Passage], losses: Sequence[torch.Tensor]) -> Outcome:
    """This rank's share of a batch: of the mean loss of its views, their visible Gaussians, instances rendered."""
    return Outcome(
        torch.stack(list(losses)).mean(),
        sum(passage.visible for passage in passages),
        sum(passage.instances for passage in passages),
    )
