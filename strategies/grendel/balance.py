"""Cost of tiles, learnt from the last visit of each view, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.camera import TILE, Camera
from cuda_src.operators import Raster
from strategies.distribution.communicator import Communicator
from strategies.distribution.regions import Regions, cut_regions
from strategies.grendel.info import GrendelOptions


def contributors(raster: Raster, tiles: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Instances that the pixels of each listed tile went through, [k] float64."""
    padded = torch.zeros((camera.tiles_y * TILE, camera.tiles_x * TILE), dtype=torch.float64)
    padded[: camera.height, : camera.width] = raster.last.double().cpu()
    by_tile = padded.view(camera.tiles_y, TILE, camera.tiles_x, TILE).sum(dim=(1, 3)).flatten()
    return by_tile[tiles.long()]


class Balance:
    """Cuts batches into regions; `learn` keeps what the step showed."""

    def __init__(self, comm: Communicator, options: GrendelOptions):
        self._comm = comm
        self._options = options
        self._costs: dict[int, torch.Tensor] = {}

    def cut(self, views: Sequence[int], cameras: Sequence[Camera]) -> Regions:
        """Regions of a batch from what is known of its views; an unknown view costs the same everywhere.

        An unknown view beside known ones costs their mean, so that it is not taken for free.
        """
        known = [self._costs[v] for v in views if v in self._costs]
        typical = float(torch.cat(known).mean()) if known else 1.0
        costs = [self._costs.get(v, torch.full((c.tiles,), typical)) for v, c in zip(views, cameras, strict=True)]
        if not self._learns(len(views)):
            costs = [torch.ones(c.tiles) for c in cameras]
        return cut_regions(cameras, costs, self._comm.ranks, self._options.unit)

    def learn(
        self,
        views: Sequence[int],
        regions: Regions,
        rasters: Sequence[Raster | None],
        seconds: float,
    ) -> None:
        """Share each rank's costs of its own tiles. Collective.

        rasters: by view, None where this rank renders nothing. seconds: of this rank's segment, forward + backward
        + twice the loss (Grendel, section 3), spread evenly over its tiles.
        """
        if not self._learns(len(views)):
            return
        rank = self._comm.rank
        mine = []
        for view, raster in enumerate(rasters):
            tiles = regions.of(rank, view)
            if self._options.balance == "measured":
                share = seconds / max(1, regions.cuts[rank + 1] - regions.cuts[rank])
                mine.append(torch.full((len(tiles),), share, dtype=torch.float64))
            elif raster is not None:
                # A tile without splats still costs its share of clearing, loss and launch.
                mine.append(contributors(raster, tiles, regions.cameras[view]) + TILE * TILE)
        own = torch.cat(mine) if mine else torch.empty(0, dtype=torch.float64)
        # Segments follow one another in rank order, so the parts laid end to end are the batch's list of tiles.
        every = torch.cat(self._comm.gather("balance", own))
        for number, view in enumerate(views):
            self._costs[view] = every[regions.tiles[number] : regions.tiles[number + 1]]

    def _learns(self, batch: int) -> bool:
        if self._options.balance == "off":
            return False
        return self._options.balance_batches or batch < self._comm.ranks
