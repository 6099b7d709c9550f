"""Occlusion history: what lay behind everything a tile showed at the last visit of a view is left out of the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, Raster, Splats
from strategies.training.config import Training

_DRIFT = 0.01
"""How much deeper than its last stop a tile is rendered, as a share of that depth: the splats that stop it move."""

_BUDGET = 1e-3
"""Light at a pixel that may miss what is hidden before the tile is examined again: 60 dB."""


class OcclusionHistory:
    """A depth limit for every tile of every view that was visited; none with `occlusion: off`.

    A tile in which all pixels stopped needs nothing behind the deepest stop. It is rendered up to there, and a little
    deeper, until a visit leaves more than the budget of light at a pixel: that would have shown what is hidden, so the
    next visit has no limit and learns it anew. 4 B a tile and view in float32.
    """

    def __init__(self, training: Training) -> None:
        self.on = training.occlusion == "history"
        self._limits: dict[int, torch.Tensor] = {}

    def limits(self, view: int) -> torch.Tensor | None:
        """Greatest view depth that each tile of the view needs, [tiles] real, +inf for any; None without a visit."""
        return self._limits.get(view)

    def examined(
        self,
        view: int,
        raster: Raster,
        camera: Camera,
        tiles: torch.Tensor | None = None,  # [k], the tiles that were rendered; None: all of the image
    ) -> torch.Tensor:
        """The limits of these tiles for the next visit, [k] real, from what this one left; changes nothing."""
        deepest = (1 + _DRIFT) * _most_of_tile(raster.stop_depth, camera)
        light = _most_of_tile(torch.where(raster.stopped > 0, 0.0, raster.transmittance), camera)
        known = self._limits.get(view)
        if known is not None:
            known = known.to(deepest.device)
            deepest = torch.where(deepest.isinf() & (light < _BUDGET), known, deepest)
        return deepest if tiles is None else deepest[tiles.long()]

    def keep(self, views: Sequence[int], limits: Sequence[torch.Tensor]) -> None:
        """Remember the limits of all tiles of these views, [tiles] each."""
        self._limits.update(zip(views, limits, strict=True))

    def observe(self, view: int, raster: Raster, camera: Camera) -> None:
        """Learn from a visit that rendered all tiles of the image."""
        if self.on:
            self.keep([view], [self.examined(view, raster, camera)])

    def clear(self) -> None:
        """Forget every view: the Gaussians are others now."""
        self._limits.clear()


def with_instances(splats: Splats, bins: Bins) -> tuple[Splats, Bins]:
    """The splats that have an instance, and the same instances with those splats' numbers.

    A Gaussian that is hidden in all its tiles is not visible: it is neither sent nor moved.
    """
    assert bins.splat_starts is not None  # A view with a history is listed without a room.
    kept = bins.splat_starts.diff() > 0
    number = kept.cumsum(0, dtype=torch.int32) - 1
    starts = torch.cat([bins.splat_starts[:-1][kept], bins.splat_starts[-1:]])
    return (
        Splats(splats.rows[kept], splats.ids[kept], splats.records[kept]),
        Bins(bins.tiles, bins.starts, number[bins.splat.long()], bins.slot, starts),
    )


def _most_of_tile(values: torch.Tensor, camera: Camera) -> torch.Tensor:
    """The largest value, at least 0, of each tile's pixels: [H, W] -> [tiles]."""
    right, below = camera.tiles_x * TILE - camera.width, camera.tiles_y * TILE - camera.height
    grid = F.pad(values, (0, right, 0, below)).view(camera.tiles_y, TILE, camera.tiles_x, TILE)
    return grid.amax(dim=(1, 3)).flatten()
