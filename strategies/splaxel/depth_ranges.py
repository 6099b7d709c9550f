"""Depths at which a box's splats are blended, by pixel: how splats that cross a face are cut there."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch

from strategies.distribution.regions import queued_copy
from strategies.splaxel import subtiles
from strategies.splaxel.boxes import Boxes
from strategies.splaxel.sight import Sight
from strategies.splaxel.visibility import Rays, depth_interval

Boundary = Literal["drop", "keep", "exact"]

HELD_BYTES = 1 << 30
"""Intervals kept of views' boxes, bytes: 64 of them at 1920 x 1080."""


class DepthRanges:
    """The ranges of one rank's boxes. Intervals change with boxes alone: those used last are kept, within a limit."""

    def __init__(self, boundary: Boundary, real: torch.dtype, device: torch.device, limit: int = HELD_BYTES):
        self._boundary, self._limit = boundary, limit
        self._every_depth = torch.tensor([-torch.inf, torch.inf], dtype=real).to(device)
        self._held: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()

    def forget(self) -> None:
        """The boxes have changed."""
        self._held.clear()

    @property
    def bytes(self) -> int:
        """What is kept now."""
        return sum(interval.nbytes for interval in self._held.values())

    def of(self, sight: Sight, boxes: Boxes, box: int, rays: Rays, view: int | None) -> torch.Tensor | None:
        """Of one box, [H, W, 2] real; None for all depths. view: whose interval to keep; None to keep none.

        `exact`: the ray's stretch inside the box. `drop`: the same where another box's region lies too, everything
        elsewhere (Splaxel).
        """
        if self._boundary == "keep":
            return None
        if self._boundary == "exact":
            return self._interval(boxes, box, rays, view)
        grid = sight.crowded & sight.projected[box]
        if not subtiles.count(grid):
            return None
        contested = subtiles.pixels_of(queued_copy(grid, rays.device), sight.camera)
        return torch.where(contested[..., None], self._interval(boxes, box, rays, view), self._every_depth)

    def _interval(self, boxes: Boxes, box: int, rays: Rays, view: int | None) -> torch.Tensor:
        key = -1 if view is None else view, box
        interval = self._held.pop(key, None)
        if interval is None:
            interval = depth_interval(rays, boxes.corners[box]).to(self._every_depth.dtype)
        if view is not None:
            self._held[key] = interval
            while self.bytes > self._limit:
                self._held.popitem(last=False)
        return interval
