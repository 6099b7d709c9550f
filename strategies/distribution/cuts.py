"""Where batches are cut into regions, from what their tiles cost at their views' last visits.

What a step showed is on its way while the next step runs, and is looked at when a view comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cuda_src.camera import Camera
from strategies.distribution.regions import NO_VIEW_COST, Regions, Unit, ViewCost, cut_regions, largest_share
from strategies.distribution.tile_costs import TileCosts

WORTH_A_CUT = 0.01
"""Share by which new cuts have to make the largest segment smaller to take the place of a batch's last ones."""
OFTEN, SELDOM = 4, 16
"""Visits of a batch after which its work is learnt only every so many: it follows Gaussians that move slowly."""
MOST_BATCHES = 4096
"""Whose cuts are kept: shuffled batches of several views seldom come again."""


@dataclass(frozen=True)
class _Lesson:
    """What a batch showed, on its way; coming: as of `Cuts.learn`."""

    views: tuple[int, ...]
    regions: Regions
    coming: Callable[[], Sequence[torch.Tensor]]


class Cuts:
    """One run of a batch's tiles a place. unit: what a cut may not split. view_cost: in the costs that are learnt."""

    def __init__(self, places: int, unit: Unit, view_cost: ViewCost = NO_VIEW_COST) -> None:
        self._places = places
        self._view_cost = view_cost
        self._unit: Unit = unit
        self._costs = TileCosts()
        self._last: dict[tuple[int, ...], Regions] = {}
        self._visits: dict[tuple[int, ...], int] = {}
        self._news: set[int] = set()
        """Views of which something was learnt since they were cut."""
        self._lessons: deque[_Lesson] = deque()

    def of(self, views: Sequence[int], cameras: Sequence[Camera], even: bool = False) -> Regions:
        """Regions of a batch from what is known of its views. even: all tiles cost the same."""
        while any(view in lesson.views for lesson in self._lessons for view in views):
            self._keep(self._lessons.popleft())
        last = self._last.get(tuple(views))
        if last is not None and last.cameras == tuple(cameras) and not any(view in self._news for view in views):
            return last
        self._news.difference_update(views)
        costs = [torch.ones(c.tiles) for c in cameras] if even else self._costs.of(views, cameras)
        view_cost = NO_VIEW_COST if even or not self._costs.knows(views) else self._view_cost
        best = cut_regions(cameras, costs, self._places, self._unit, view_cost)
        # What is known of a batch goes by its cuts, so they stay while others would hardly be better.
        if last is not None and last.cameras == best.cameras:
            total = torch.cat(costs)
            least = largest_share(best, total, view_cost)
            if largest_share(last, total, view_cost) <= (1 + WORTH_A_CUT) * least:
                return last
        if len(self._last) >= MOST_BATCHES:
            self._last.clear()
            self._visits.clear()
        self._last[tuple(views)] = best
        return best

    def due(self, views: Sequence[int]) -> bool:
        """Whether the work of this visit is to be learnt. Asked once a visit."""
        visits = self._visits[tuple(views)] = self._visits.get(tuple(views), 0) + 1
        return visits <= OFTEN or visits % SELDOM == 0

    def learn(self, views: Sequence[int], regions: Regions, coming: Callable[[], Sequence[torch.Tensor]]) -> None:
        """What the batch's tiles cost, in parts that follow one another as the tiles do; called when it is needed."""
        self._lessons.append(_Lesson(tuple(views), regions, coming))

    def _keep(self, lesson: _Lesson) -> None:
        self._costs.keep(lesson.views, lesson.regions, torch.cat(list(lesson.coming())))
        self._news.update(lesson.views)
