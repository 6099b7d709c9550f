"""Rooms of views: what a view needed when it was last visited, so that a step need not wait for what it needs now."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from cuda_src.operators import Bins, Room

MARGIN_SHARE = 32
"""A room exceeds the last need by one part in so many. Sorts run over the whole room and take 3 % longer for it; a room
too small costs two steps."""
MARGIN = 1024
"""And by so many, for views of few splats: one densified cluster may double them."""


@dataclass(frozen=True)
class Need:
    """What a view needed: splats, those of them that are not drawn, and instances; overflow: some room was too small.

    instances is what the listed splats have: fewer than there would be where the room for splats was too small.
    """

    splats: int
    undrawn: int
    instances: int
    overflow: bool = False


Seen = TypeVar("Seen", bound=Hashable)
"""What stands for a view: its number, or its camera."""


class Rooms(Generic[Seen]):
    """What each view needed at its last visit, and the overflow flag that all their rooms share."""

    def __init__(self, device: torch.device) -> None:
        self.overflow = torch.zeros(1, dtype=torch.int32, device=device)
        self._needs: dict[Seen, tuple[int, int]] = {}
        self._rooms: dict[Seen, Room] = {}

    def of(self, views: Iterable[Seen]) -> list[Room] | None:
        """A room for each view; None if one of them has no visit to learn from."""
        rooms = []
        for view in views:
            room = self._rooms.get(view)
            if room is None:
                return None
            rooms.append(room)
        return rooms

    def learn(self, view: Seen, splats: int, instances: int) -> None:
        """What a visit of the view needed. Its room stays while it fits, as kernels keep what they prepared for it."""
        needs = splats, instances
        if self._needs.get(view) == needs:
            return
        self._needs[view] = needs
        room = self._rooms.get(view)
        if room is None or not (fits(room.splats, splats) and fits(room.instances, instances)):
            self._rooms[view] = Room(with_margin(splats), with_margin(instances), self.overflow)

    def grow(self, view: Seen, splats: int, instances: int) -> None:
        """What the view needed is at least so much: with splats that are not drawn, which exact counts leave out."""
        known = self._needs.get(view, (0, 0))
        self.learn(view, max(known[0], splats), max(known[1], instances))

    @property
    def visited(self) -> int:
        """How many views have been."""
        return len(self._needs)

    def clear(self) -> None:
        """Forget every view: the Gaussians are others now."""
        self._needs.clear()
        self._rooms.clear()


Numbers = TypeVar("Numbers", int, np.ndarray)
"""One, or an array of them."""


def _margin(need: Numbers) -> Numbers:
    return need // MARGIN_SHARE + MARGIN


def with_margin(need: Numbers) -> Numbers:
    """Room for what is needed now and may be needed next."""
    return need + _margin(need)


def fits(room: Numbers, need: Numbers) -> Numbers:
    """Whether a room may stay. Three quarters of the margin are left, and not more than two margins."""
    margin, spare = _margin(need), 4 * (room - need)
    return (3 * margin <= spare) & (spare <= 8 * margin)


class Readback:
    """Needs and losses of a step's views on their way to the host; nobody waits before `read`."""

    def __init__(self, views: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._device = device
        self._needs = torch.empty((views, 4), dtype=torch.int64, pin_memory=on_gpu)
        self._losses = torch.empty(views, pin_memory=on_gpu)
        # Indexing takes as long as a copy does.
        self._by_view = self._needs.unbind(), self._losses.unbind()
        self._arrived = torch.cuda.Event() if on_gpu else None

    def send(self, bins: Sequence[Bins], losses: Sequence[torch.Tensor] = ()) -> None:
        """Copy what these views left, behind the work queued so far; their memory may be reused by later work.

        losses: none of views that are drawn only.
        """
        needs, own_losses = self._by_view
        for need, of_view in zip(needs, bins, strict=True):
            assert of_view.needed is not None
            need.copy_(of_view.needed, non_blocking=True)
        for own, loss in zip(own_losses, losses, strict=False):
            own.copy_(loss, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._device))

    def read(self) -> tuple[list[Need], list[float]]:
        """Need and loss of every view; waits until they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        needs = [
            Need(splats, undrawn, instances, bool(flag)) for splats, undrawn, instances, flag in self._needs.tolist()
        ]
        return needs, self._losses.tolist()
