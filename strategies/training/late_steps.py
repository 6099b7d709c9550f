"""Steps that are queued before it is known whether their rooms suffice; those that did not are done again exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cuda_src.operators import Bins, Room
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


class LateStep:
    """A step that has been queued; its outcome is known once it is settled."""

    def __init__(self, plan: Plan, rooms: Sequence[Room], readback: Readback) -> None:
        self.plan = plan
        self.rooms = rooms
        self.readback = readback
        self.outcome: Callable[[], Outcome] | None = None


class LateSteps:
    """The queued steps of one strategy, oldest first, and how they come to an end.

    The kernels keep the overflow flag set once a room was too small, and leave the Gaussians alone while it is. So the
    first step that overflowed and all queued after it did nothing: they are done again, in their order, with their own
    views and images seen, and the result is what exact steps would have given.
    """

    def __init__(self, rooms: Rooms[int], device: torch.device, again: Callable[[Plan], Outcome]) -> None:
        """again: does a step exactly, with sizes read by the host, and has `rooms` learn them."""
        self._rooms = rooms
        self._device = device
        self._again = again
        self._queued: deque[LateStep] = deque()
        self._idle: list[Readback] = []

    def add(
        self, plan: Plan, rooms: Sequence[Room], bins: Sequence[Bins], losses: Sequence[torch.Tensor]
    ) -> Callable[[], Outcome]:
        """A step whose last kernel is queued, one room, bins and loss a view. Returns what waits for its outcome.

        The step before it is looked at now that the device has this one to do, so that it never runs dry.
        """
        readback = self._idle.pop() if self._idle else Readback(len(plan.views), self._device)
        readback.send(bins, losses)
        step = LateStep(plan, rooms, readback)
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
            step = self._queued[0]
            needs, losses = step.readback.read()
            if any(need.overflow for need in needs):
                self._redo(next(i for i, need in enumerate(needs) if need.overflow), needs)
                return
            self._queued.popleft()
            self._idle.append(step.readback)
            for view, need in zip(step.plan.views, needs, strict=True):
                self._rooms.learn(view, need.splats, need.instances)
            step.outcome = partial(_outcome, needs, losses)

    def _redo(self, culprit: int, needs: Sequence[Need]) -> None:
        """All queued steps, exactly. culprit: the first view of the oldest step that set the flag."""
        oldest = self._queued[0]
        view, need, room = oldest.plan.views[culprit], needs[culprit], oldest.rooms[culprit]
        steps = list(self._queued)
        self._queued.clear()
        self._idle += [step.readback for step in steps]
        self._rooms.overflow.zero_()  # Behind every kernel that is queued, before those to come.
        for step in steps:
            done = self._again(step.plan)
            step.outcome = partial(Outcome, done.loss, done.visible_gaussians, done.tile_instances)
        self._rooms.overflowed(view, room, need)


def _outcome(needs: Sequence[Need], losses: Sequence[float]) -> Outcome:
    """What a step with these needs and losses of its views did; most are never asked for."""
    visible = sum(need.splats - need.undrawn for need in needs)
    return Outcome(torch.tensor(sum(losses) / len(losses)), visible, sum(need.instances for need in needs))
