"""Steps that are queued before it is known whether their rooms suffice; those that did not are done again exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cuda_src.operators import Bins, Room
from strategies.base import StepReport
from strategies.training.rooms import Need, Readback, Rooms


@dataclass(frozen=True)
class Plan:
    """What a step is to do: its views, and the images the job saw before it, which its schedules follow."""

    views: tuple[int, ...]
    images_seen: int


@dataclass(frozen=True)
class Outcome:
    """What a step did: loss, a 0-d tensor, of the mean over its views; their visible Gaussians and tile instances."""

    loss: torch.Tensor
    visible_gaussians: int
    tile_instances: int


def report_of(images: int, outcome: Callable[[], Outcome]) -> StepReport:
    """The report of a step that may not be settled yet: asking it settles the step."""
    return StepReport(
        images,
        1,
        lambda: outcome().loss,
        lambda: outcome().visible_gaussians,
        lambda: outcome().tile_instances,
    )


class QueuedStep(ABC):
    """A step whose last kernel is queued, and what has been copied of it to be looked at later."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outcome: Callable[[], Outcome] | None = None
        """Known once the step is settled."""

    @abstractmethod
    def overflowed(self) -> bool:
        """Whether the flag was up when it was done; waits until that is known."""

    @abstractmethod
    def learn(self) -> Callable[[], Outcome]:
        """It did what it should: keep what its views needed, and say what it did."""

    @abstractmethod
    def blame(self) -> None:
        """It was the first that overflowed, and has been done again exactly: give its views more room, or none."""

    @abstractmethod
    def release(self) -> None:
        """It has been looked at for the last time."""


class StepQueue:
    """The queued steps of one strategy, oldest first, and how they come to an end.

    The kernels keep the overflow flag set once a room was too small, and leave the Gaussians alone while it is. So the
    first step that overflowed and all queued after it did nothing: they are done again, in their order, with their own
    views and images seen, and the result is what exact steps would have given.
    """

    def __init__(self, overflow: torch.Tensor, again: Callable[[Plan], Outcome]) -> None:
        """again: does a step exactly, with sizes read by the host, and learns them. overflow: as of a `Room`."""
        self._overflow = overflow
        self._again = again
        self._queued: deque[QueuedStep] = deque()

    def put(self, step: QueuedStep) -> Callable[[], Outcome]:
        """Returns what waits for the step's outcome.

        The step before it is looked at now that the device has this one to do, so that it never runs dry.
        """
        self._queued.append(step)
        self._settle(but=1)

        def outcome() -> Outcome:
            self.settle()
            assert step.outcome is not None
            return step.outcome()

        return outcome

    def settle(self) -> None:
        """Wait for all queued steps, and do again what has to be."""
        self._settle(but=0)

    def _settle(self, but: int) -> None:
        while len(self._queued) > but:
            if self._queued[0].overflowed():
                self._redo()
                return
            step = self._queued.popleft()
            step.outcome = step.learn()
            step.release()

    def _redo(self) -> None:
        """All queued steps, exactly, of which the oldest set the flag."""
        steps = list(self._queued)
        self._queued.clear()
        self._overflow.zero_()  # Behind every kernel that is queued, before those to come.
        for step in steps:
            done = self._again(step.plan)
            step.outcome = partial(Outcome, done.loss, done.visible_gaussians, done.tile_instances)
        steps[0].blame()
        for step in steps:
            step.release()


class LateSteps(StepQueue):
    """Of a strategy on one device, whose views have rooms of their own."""

    def __init__(self, rooms: Rooms[int], device: torch.device, again: Callable[[Plan], Outcome]) -> None:
        super().__init__(rooms.overflow, again)
        self._rooms = rooms
        self._device = device
        self._idle: list[Readback] = []

    def add(
        self, plan: Plan, rooms: Sequence[Room], bins: Sequence[Bins], losses: Sequence[torch.Tensor]
    ) -> Callable[[], Outcome]:
        """One room, bins and loss a view; see `put`."""
        readback = self._idle.pop() if self._idle else Readback(len(plan.views), self._device)
        readback.send(bins, losses)
        return self.put(_LateStep(plan, rooms, readback, self._rooms, self._idle))


class _LateStep(QueuedStep):
    def __init__(
        self, plan: Plan, given: Sequence[Room], readback: Readback, rooms: Rooms[int], idle: list[Readback]
    ) -> None:
        super().__init__(plan)
        self._given, self._readback, self._rooms, self._idle = given, readback, rooms, idle

    def overflowed(self) -> bool:
        self._needs, self._losses = self._readback.read()
        return any(need.overflow for need in self._needs)

    def learn(self) -> Callable[[], Outcome]:
        for view, need in zip(self.plan.views, self._needs, strict=True):
            self._rooms.learn(view, need.splats, need.instances)
        return partial(_outcome, self._needs, self._losses)

    def blame(self) -> None:
        culprit = next(i for i, need in enumerate(self._needs) if need.overflow)
        self._rooms.overflowed(self.plan.views[culprit], self._given[culprit], self._needs[culprit])

    def release(self) -> None:
        self._idle.append(self._readback)


def _outcome(needs: Sequence[Need], losses: Sequence[float]) -> Outcome:
    """What a step with these needs and losses of its views did; most are never asked for."""
    visible = sum(need.splats - need.undrawn for need in needs)
    return Outcome(torch.tensor(sum(losses) / len(losses)), visible, sum(need.instances for need in needs))
