"""Pixel regions: the tiles of a batch of images, cut into one contiguous segment a rank (Grendel, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from cuda_src.camera import TILE, Camera

Unit = Literal["block", "row", "image"]
"""What a cut may not split: a tile of 16 x 16 (paper), a row of tiles (released code), an image."""


@dataclass(frozen=True)
class Regions:
    """Who renders which tiles of a batch, and how deep.

    cameras: of the batch's views, in order. tiles: [views + 1], where each view's tiles begin in the batch's list
    (view-major, row-major). cuts: [ranks + 1] ascending positions in that list; rank r has cuts[r]:cuts[r + 1].
    limits: by view, the greatest view depth that each of its tiles needs ([tiles] real), or None; empty for no limits.
    """

    cameras: tuple[Camera, ...]
    tiles: tuple[int, ...]
    cuts: tuple[int, ...]
    limits: tuple[torch.Tensor | None, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.cuts) - 1

    def of(self, rank: int, view: int) -> torch.Tensor:
        """Tiles of that view that the rank renders, [k] int32 ascending."""
        lo = max(self.cuts[rank], self.tiles[view]) - self.tiles[view]
        hi = min(self.cuts[rank + 1], self.tiles[view + 1]) - self.tiles[view]
        return torch.arange(lo, max(lo, hi), dtype=torch.int32)

    def limit(self, view: int) -> torch.Tensor | None:
        """Greatest view depth that each tile of the view needs, [tiles] real; None for no limit."""
        return self.limits[view] if self.limits else None

    def owner(self, view: int) -> torch.Tensor:
        """Rank of each tile of the view, [tiles] int64."""
        positions = torch.arange(self.tiles[view], self.tiles[view + 1])
        # Ranks without work have equal cuts: the last cut at or before a position is the one that holds it.
        return torch.searchsorted(torch.tensor(self.cuts), positions, right=True) - 1

    def pixel_owner(self, view: int) -> torch.Tensor:
        """Rank of each pixel of the view, [H, W] int64."""
        camera = self.cameras[view]
        grid = self.owner(view).view(camera.tiles_y, camera.tiles_x)
        pixels = grid.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)
        return pixels[: camera.height, : camera.width]


def cut_regions(cameras: Sequence[Camera], costs: Sequence[torch.Tensor], ranks: int, unit: Unit) -> Regions:
    """Cut the batch where the prefix sum of cost passes k / ranks of its total.

    costs: per view [tiles], any non-negative numbers; all zero counts as equal.
    """
    tiles = [0]
    for camera in cameras:
        tiles.append(tiles[-1] + camera.tiles)
    borders = [0]
    for view, camera in enumerate(cameras):
        step = {"block": 1, "row": camera.tiles_x, "image": camera.tiles}[unit]
        borders += range(tiles[view] + step, tiles[view + 1] + 1, step)
    cost = torch.cat([c.double() for c in costs])
    if not bool(cost.sum() > 0):
        cost = torch.ones_like(cost)
    before = torch.cat([torch.zeros(1, dtype=torch.float64), cost.cumsum(0)])[torch.tensor(borders)]
    targets = torch.arange(1, ranks, dtype=torch.float64) * before[-1] / ranks
    # The border nearest to each target, so that a unit that holds a target goes to the side that has more of it.
    above = torch.searchsorted(before, targets).clamp(1, len(borders) - 1)
    nearer_below = targets - before[above - 1] < before[above] - targets
    cuts = torch.tensor(borders)[torch.where(nearer_below, above - 1, above)].tolist()
    return Regions(tuple(cameras), tuple(tiles), (0, *cuts, tiles[-1]))
