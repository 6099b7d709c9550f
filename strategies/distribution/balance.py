"""Cost of tiles, learnt from the last visit of each view, the same on all ranks.

What a step showed is on its way to the others while the next step runs, and is looked at when a view comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from cuda_src.camera import Camera
from strategies.distribution.communicator import Communicator, Pending
from strategies.distribution.regions import Regions, Unit, cut_regions, largest_share
from strategies.distribution.tile_costs import TileCosts

STAGE = "balance"
WORTH_A_CUT = 0.01
"""Share by which new cuts have to make the largest segment smaller to take the place of a batch's last ones."""
OFTEN, SELDOM = 4, 16
"""Visits of a batch after which its work is learnt only every so many: it follows Gaussians that move slowly."""
MOST_BATCHES = 4096
"""Whose cuts are kept: shuffled batches of several views seldom come again."""
_NANOSECONDS = 1e9


@dataclass(frozen=True)
class _Lesson:
    """Costs of a batch on their way: [ranks, k] int64, of each rank's tiles in order, or its segment's nanoseconds."""

    views: tuple[int, ...]
    regions: Regions
    coming: Pending


class Balance:
    """Cuts batches into regions; `learn` keeps what the step showed.

    unit: what a cut may not split. cost: of a tile, `measured` (its segment's seconds), `work` (what is counted of it)
    or `off` (constant). batches: False learns nothing from batches of at least as many views as ranks.
    """

    def __init__(
        self, comm: Communicator, unit: Unit, cost: Literal["measured", "work", "off"], batches: bool = True
    ) -> None:
        self._comm = comm
        self._unit: Unit = unit
        self._cost = cost
        self._batches = batches
        self._costs = TileCosts()
        self._last: dict[tuple[int, ...], Regions] = {}
        self._visits: dict[tuple[int, ...], int] = {}
        self._news: set[int] = set()
        """Views of which something was learnt since they were cut."""
        self._lessons: deque[_Lesson] = deque()
        self._timed: tuple[tuple[int, ...], Regions, Callable[[], float]] | None = None

    def cut(self, views: Sequence[int], cameras: Sequence[Camera]) -> Regions:
        """Regions of a batch from what is known of its views."""
        while any(view in lesson.views for lesson in self._lessons for view in views):
            self._keep(self._lessons.popleft())
        last = self._last.get(tuple(views))
        if last is not None and last.cameras == tuple(cameras) and not any(view in self._news for view in views):
            return last
        self._news.difference_update(views)
        costs = self._costs.of(views, cameras)
        if not self._learns(len(views)):
            costs = [torch.ones(c.tiles) for c in cameras]
        best = cut_regions(cameras, costs, self._comm.ranks, self._unit)
        # What is known of a batch goes by its cuts, so they stay while others would hardly be better.
        if last is not None and last.cameras == best.cameras:
            total = torch.cat(costs)
            if largest_share(last, total) <= (1 + WORTH_A_CUT) * largest_share(best, total):
                return last
        if len(self._last) >= MOST_BATCHES:
            self._last.clear()
            self._visits.clear()
        self._last[tuple(views)] = best
        return best

    def learn(
        self,
        views: Sequence[int],
        regions: Regions,
        seconds: Callable[[], float],
        work: Sequence[Callable[[], torch.Tensor]],
    ) -> None:
        """Share each rank's costs of its own tiles. Collective.

        seconds: of this rank's segment, forward + backward + twice the loss (Grendel, section 3), spread evenly over
        its tiles; asked at the next step, so that nobody waits for a device. work: by view, as in `learn_work`. Either
        is asked only where it counts.
        """
        self.learn_work(views, regions, work)
        if self._cost != "measured" or not self._learns(len(views)):
            return
        timed, self._timed = self._timed, (tuple(views), regions, seconds)
        if timed is not None:
            known_views, known_regions, took = timed
            self._share(known_views, known_regions, torch.tensor([round(took() * _NANOSECONDS)]))

    def learn_work(self, views: Sequence[int], regions: Regions, work: Sequence[Callable[[], torch.Tensor]]) -> None:
        """Share the work of each rank's own tiles, if that is their cost: also after a forward alone. Collective.

        work: by view, cost of this rank's tiles, [k] whole numbers on any device.
        """
        if self._cost != "work" or not self._learns(len(views)):
            return
        visits = self._visits[tuple(views)] = self._visits.get(tuple(views), 0) + 1
        if visits > OFTEN and visits % SELDOM:
            return
        mine = torch.cat([of_view().to(torch.int64) for of_view in work])
        # All ranks send as many, so that nobody need be told how many come.
        padded = mine.new_zeros(max(regions.lengths))
        padded[: len(mine)] = mine
        self._share(tuple(views), regions, padded)

    def _share(self, views: tuple[int, ...], regions: Regions, costs: torch.Tensor) -> None:
        coming = self._comm.counts(STAGE, costs.expand(self._comm.ranks, -1))
        self._lessons.append(_Lesson(views, regions, coming))

    def _keep(self, lesson: _Lesson) -> None:
        every, lengths = lesson.coming.wait().cpu().double(), lesson.regions.lengths
        if self._cost == "measured":
            shares = [own.expand(k) / max(1, k) for own, k in zip(every, lengths, strict=True)]
        else:
            shares = [own[:k] for own, k in zip(every, lengths, strict=True)]
        # Segments follow one another in rank order, so the parts laid end to end are the batch's list of tiles.
        self._costs.keep(lesson.views, lesson.regions, torch.cat(shares))
        self._news.update(lesson.views)

    def _learns(self, batch: int) -> bool:
        if self._cost == "off":
            return False
        return self._batches or batch < self._comm.ranks
