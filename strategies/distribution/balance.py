"""Cost of tiles, learnt from the last visit of each view, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from cuda_src.camera import Camera
from strategies.distribution.communicator import Communicator
from strategies.distribution.regions import Regions, Unit, cut_regions
from strategies.distribution.tile_costs import TileCosts


class Balance:
    """Cuts batches into regions; `learn` keeps what the step showed.

    unit: what a cut may not split. cost: of a tile, `measured` (its segment's seconds), `work` (its contributors) or
    `off` (constant). batches: False learns nothing from batches of at least as many views as ranks.
    """

    def __init__(
        self, comm: Communicator, unit: Unit, cost: Literal["measured", "work", "off"], batches: bool = True
    ) -> None:
        self._comm = comm
        self._unit: Unit = unit
        self._cost = cost
        self._batches = batches
        self._costs = TileCosts()

    def cut(self, views: Sequence[int], cameras: Sequence[Camera]) -> Regions:
        """Regions of a batch from what is known of its views."""
        costs = self._costs.of(views, cameras)
        if not self._learns(len(views)):
            costs = [torch.ones(c.tiles) for c in cameras]
        return cut_regions(cameras, costs, self._comm.ranks, self._unit)

    def learn(
        self, views: Sequence[int], regions: Regions, seconds: float, work: Callable[[int], torch.Tensor]
    ) -> None:
        """Share each rank's costs of its own tiles. Collective.

        seconds: of this rank's segment, forward + backward + twice the loss (Grendel, section 3), spread evenly over
        its tiles. work: cost of this rank's tiles of a view of the batch, [k], asked only where it counts.
        """
        if not self._learns(len(views)):
            return
        rank = self._comm.rank
        mine = []
        for view in range(len(views)):
            if self._cost == "measured":
                share = seconds / max(1, regions.cuts[rank + 1] - regions.cuts[rank])
                mine.append(torch.full((len(regions.of(rank, view)),), share, dtype=torch.float64))
            else:
                mine.append(work(view).double())
        # Segments follow one another in rank order, so the parts laid end to end are the batch's list of tiles.
        self._costs.keep(views, regions, torch.cat(self._comm.gather("balance", torch.cat(mine))))

    def _learns(self, batch: int) -> bool:
        if self._cost == "off":
            return False
        return self._batches or batch < self._comm.ranks
