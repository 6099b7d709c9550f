"""What a tile cost at the last visit of its view: the work by which pixels are cut into regions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster
from strategies.distribution.regions import NO_VIEW_COST, Regions, ViewCost

INSTANCE_WORK = 128
"""What an instance takes beside its contributors, in these: to be listed, sorted and brought to the pixels."""
PIXEL_WORK = 64
"""What a pixel takes without any: clearing and the loss."""
VIEW_WORK, CUT_WORK = 1.2e8, 1.6e8
"""What a view takes a rank's GPU besides: launches too small for it, pictures that are cleared. And what it takes all
of them that a view is cut: its splats have routes, and ranks meet over its halo. Estimated, not measured
(cuda_src/compiled/NOTES.md)."""


def contributors(raster: Raster, tiles: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Instances that the pixels of each listed tile went through, [k] int64 on the tiles' device."""
    right, below = camera.tiles_x * TILE - camera.width, camera.tiles_y * TILE - camera.height
    grid = F.pad(raster.last, (0, right, 0, below)).view(camera.tiles_y, TILE, camera.tiles_x, TILE)
    return grid.sum(dim=(1, 3)).flatten()[tiles.long()]


def tile_work(raster: Raster, bins: Bins, camera: Camera) -> torch.Tensor:
    """Cost of each listed tile of a raster, [k] int64; see `work_of`."""
    return work_of(contributors(raster, bins.tiles, camera), bins)


def work_of(contributors: torch.Tensor, bins: Bins) -> torch.Tensor:
    """Cost of each listed tile, [k] int64, in contributors, of which there are so many [k]."""
    return contributors + INSTANCE_WORK * bins.starts.diff() + PIXEL_WORK * TILE * TILE


def view_work(kernels: KernelSet) -> ViewCost:
    """What views cost besides their tiles, in contributors; nothing to speak of on a CPU."""
    return ViewCost(VIEW_WORK, CUT_WORK) if kernels.backend == "compiled" else NO_VIEW_COST


class TileCosts:
    """Cost of every tile of every view at its last visit."""

    def __init__(self) -> None:
        self._costs: dict[int, torch.Tensor] = {}

    def of(self, views: Sequence[int], cameras: Sequence[Camera]) -> list[torch.Tensor]:
        """By view [tiles]. A view without a visit costs the same everywhere.

        Beside visited ones it costs their mean, so that it is not taken for free.
        """
        known = [self._costs[v] for v in views if v in self._costs]
        typical = float(torch.cat(known).mean()) if known else 1.0
        return [self._costs.get(v, torch.full((c.tiles,), typical)) for v, c in zip(views, cameras, strict=True)]

    def knows(self, views: Sequence[int]) -> bool:
        """Any of them has been visited."""
        return any(view in self._costs for view in views)

    def keep(self, views: Sequence[int], regions: Regions, costs: torch.Tensor) -> None:
        """Costs of all tiles of a batch, in the order of its list of tiles; kept as real numbers on the host."""
        costs = costs.to("cpu", torch.float64)
        for number, view in enumerate(views):
            self._costs[view] = costs[regions.tiles[number] : regions.tiles[number + 1]]
