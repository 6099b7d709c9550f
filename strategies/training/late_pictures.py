"""Pictures that are queued before it is known whether their rooms sufficed; nobody gets one before that is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from cuda_src.camera import Camera
from cuda_src.operators import Bins, Room, Splats
from strategies.training.rooms import Readback, Rooms

MOST_CAMERAS = 4096
"""Cameras whose rooms are kept, before all are forgotten: a viewer's are seen once each."""

Draw = Callable[[Camera, Room | None], tuple[torch.Tensor, Splats, Bins]]
"""Queues a picture, in memory of its own, and says what it was made of."""


@dataclass(frozen=True)
class _Queued:
    camera: Camera
    picture: torch.Tensor
    room: Room | None
    readback: Readback | None


class LatePictures:
    """Pictures of Gaussians that do not move meanwhile; a camera that comes again reads no sizes on the host.

    What a picture needed is looked at when the one after it is queued, so that the device never runs dry. A picture
    that outgrew its room is drawn again with exact sizes before it is given.
    """

    def __init__(self, device: torch.device, draw: Draw, with_rooms: bool) -> None:
        """with_rooms: the kernels take them; else every picture is exact."""
        self._device = device
        self._draw = draw
        self._rooms: Rooms[Camera] | None = Rooms(device) if with_rooms else None
        self._idle: list[Readback] = []

    def of(self, cameras: Iterable[Camera]) -> Iterator[torch.Tensor]:
        """In the order of the cameras, [H, W, 3] each."""
        queued: deque[_Queued] = deque()
        for camera in cameras:
            queued.append(self._queue(camera))
            if len(queued) > 1:
                yield self._looked_at(queued.popleft())
        while queued:
            yield self._looked_at(queued.popleft())

    def forget(self) -> None:
        """What pictures needed: the Gaussians are others now."""
        if self._rooms is not None:
            self._rooms.clear()

    def _queue(self, camera: Camera) -> _Queued:
        rooms = None if self._rooms is None else self._rooms.of([camera])
        if rooms is None:
            return _Queued(camera, self._exactly(camera), None, None)
        rooms[0].overflow.zero_()  # Of a picture before, which has been copied by now.
        picture, _, bins = self._draw(camera, rooms[0])
        readback = self._idle.pop() if self._idle else Readback(1, self._device)
        readback.send([bins])
        return _Queued(camera, picture, rooms[0], readback)

    def _looked_at(self, queued: _Queued) -> torch.Tensor:
        if queued.readback is None or queued.room is None or self._rooms is None:
            return queued.picture
        (need,), _ = queued.readback.read()
        self._idle.append(queued.readback)
        if not need.overflow:
            self._rooms.learn(queued.camera, need.splats, need.instances)
            return queued.picture
        picture = self._exactly(queued.camera)
        self._rooms.overflowed(queued.camera, queued.room, need)
        return picture

    def _exactly(self, camera: Camera) -> torch.Tensor:
        picture, splats, bins = self._draw(camera, None)
        if self._rooms is not None:
            if self._rooms.visited >= MOST_CAMERAS:
                self._rooms.clear()
            self._rooms.learn(camera, splats.count, bins.instances)
        return picture
