"""Costs of tiles on their way to the host, which looks at them when a view comes again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cuda_src.camera import Camera
from strategies.distribution.host_copies import HostCopy
from strategies.distribution.regions import Regions
from strategies.distribution.tile_costs import TileCosts


@dataclass(frozen=True)
class _Lesson:
    """What the tiles of a batch cost: in parts, in the order of its list of tiles."""

    views: Sequence[int]
    regions: Regions
    coming: Sequence[HostCopy]


class LateCosts:
    """Cost of every tile of every view at its last visit, so that the step after it need not wait for its end."""

    def __init__(self) -> None:
        self._costs = TileCosts()
        self._lessons: deque[_Lesson] = deque()

    def of(self, views: Sequence[int], cameras: Sequence[Camera]) -> list[torch.Tensor]:
        """See `TileCosts.of`; waits for what these views' last visits cost."""
        while self._lessons and (self._there() or any(v in one.views for one in self._lessons for v in views)):
            lesson = self._lessons.popleft()
            parts = [part.read(torch.clone) for part in lesson.coming]
            self._costs.keep(lesson.views, lesson.regions, torch.cat(parts))
        return self._costs.of(views, cameras)

    def learn(self, views: Sequence[int], regions: Regions, coming: Sequence[HostCopy]) -> None:
        """What the tiles of a batch cost, in parts that follow one another as its tiles do."""
        self._lessons.append(_Lesson(views, regions, coming))

    def _there(self) -> bool:
        """The first lesson has come: read now, its memory serves the next."""
        return all(part.there for part in self._lessons[0].coming)
