"""Cost of tiles, learnt from the last visit of each view, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from cuda_src.camera import Camera
from strategies.distribution.communicator import Communicator
from strategies.distribution.cuts import Cuts
from strategies.distribution.regions import NO_VIEW_COST, Regions, Unit, ViewCost

STAGE = "balance"
_NANOSECONDS = 1e9


class Balance:
    """Cuts batches into regions; `learn` keeps what the step showed.

    unit: what a cut may not split. cost: of a tile, `measured` (its segment's seconds), `work` (what is counted of it)
    or `off` (constant). batches: False learns nothing from batches of at least as many views as ranks. view_work: what
    views cost besides, where cost is `work`.
    """

    def __init__(
        self,
        comm: Communicator,
        unit: Unit,
        cost: Literal["measured", "work", "off"],
        batches: bool = True,
        view_work: ViewCost = NO_VIEW_COST,
    ) -> None:
        self._comm = comm
        self._cost = cost
        self._batches = batches
        self._cuts = Cuts(comm.ranks, unit, view_work if cost == "work" else NO_VIEW_COST)
        self._timed: tuple[tuple[int, ...], Regions, Callable[[], float]] | None = None

    def cut(self, views: Sequence[int], cameras: Sequence[Camera]) -> Regions:
        """Regions of a batch from what is known of its views."""
        return self._cuts.of(views, cameras, even=not self._learns(len(views)))

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
        if not self._cuts.due(views):
            return
        mine = torch.cat([of_view().to(torch.int64) for of_view in work])
        # All ranks send as many, so that nobody need be told how many come.
        padded = mine.new_zeros(max(regions.lengths))
        padded[: len(mine)] = mine
        self._share(tuple(views), regions, padded)

    def _share(self, views: tuple[int, ...], regions: Regions, costs: torch.Tensor) -> None:
        coming = self._comm.counts(STAGE, costs.expand(self._comm.ranks, -1))

        def of_ranks() -> list[torch.Tensor]:
            every = coming.wait().cpu().double()
            if self._cost == "measured":
                return [own.expand(k) / max(1, k) for own, k in zip(every, regions.lengths, strict=True)]
            return [own[:k] for own, k in zip(every, regions.lengths, strict=True)]

        self._cuts.learn(views, regions, of_ranks)

    def _learns(self, batch: int) -> bool:
        if self._cost == "off":
            return False
        return self._batches or batch < self._comm.ranks
