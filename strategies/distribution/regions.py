"""Pixel regions: the tiles of a batch of images, cut into one contiguous segment a rank (Grendel, section 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from cuda_src.camera import TILE, Camera
from strategies.base import Rect

Unit = Literal["block", "row", "image"]
"""What a cut may not split: a tile of 16 x 16 (paper), a row of tiles (released code), an image."""
_HALVINGS = 30
"""Of the interval in which the least largest share is looked for."""


@dataclass(frozen=True)
class ViewCost:
    """What views cost besides their tiles. each: a rank, for every view of which it has any tile. cut: all ranks, where
    any view is several ranks'."""

    each: float = 0.0
    cut: float = 0.0


NO_VIEW_COST = ViewCost()


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

    def segment(self, rank: int, view: int) -> range:
        """Tiles of that view that the rank renders."""
        lo = max(self.cuts[rank], self.tiles[view]) - self.tiles[view]
        hi = min(self.cuts[rank + 1], self.tiles[view + 1]) - self.tiles[view]
        return range(lo, max(lo, hi))

    def of(self, rank: int, view: int, device: torch.device | None = None) -> torch.Tensor:
        """The same as a tensor, [k] int32 ascending, made where it is asked for: on the host or a device."""
        tiles = self.segment(rank, view)
        return torch.arange(tiles.start, tiles.stop, dtype=torch.int32, device=device)

    def rectangles(self, rank: int, view: int) -> list[Rect]:
        """The same as rectangles of pixels in the image, at most three: part of a row, whole rows, part of a row."""
        tiles, camera, parts = self.segment(rank, view), self.cameras[view], []
        first, columns = tiles.start, camera.tiles_x
        while first < tiles.stop:
            row, column = divmod(first, columns)
            rows = max(1, (tiles.stop - first) // columns) if column == 0 else 1
            last = min(tiles.stop, (row + rows) * columns)
            right = min(column + last - first, columns)
            bottom = min((row + rows) * TILE, camera.height)
            parts.append(Rect(column * TILE, row * TILE, min(right * TILE, camera.width), bottom))
            first = last
        return parts

    def whole(self, view: int) -> int | None:
        """The rank that renders all tiles of the view; None where they are several ranks'."""
        rank = bisect_right(self.cuts, self.tiles[view]) - 1  # The one that has its first tile.
        return rank if self.cuts[rank + 1] >= self.tiles[view + 1] else None

    @property
    def lengths(self) -> list[int]:
        """Tiles of the batch that each rank renders, by rank."""
        return [after - before for before, after in pairwise(self.cuts)]

    def limit(self, view: int) -> torch.Tensor | None:
        """Greatest view depth that each tile of the view needs, [tiles] real; None for no limit."""
        return self.limits[view] if self.limits else None

    def owners(self, device: torch.device) -> list[torch.Tensor]:
        """By view, rank of each tile, [tiles] int32 on the device, where they come without the host's waiting."""
        every = torch.arange(self.ranks, dtype=torch.int32).repeat_interleave(torch.tensor(self.lengths))
        return list(queued_copy(every, device).split([camera.tiles for camera in self.cameras]))

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


def largest_share(regions: Regions, costs: torch.Tensor, view_cost: ViewCost = NO_VIEW_COST) -> float:
    """Of the tiles' costs, [tiles of the batch], what the rank with most has, and what views cost it."""
    tiles, cuts = np.array(regions.tiles), np.array(regions.cuts)
    summed = np.concatenate(([0.0], costs.double().numpy().cumsum()))
    begins, ends = cuts[:-1], cuts[1:]
    views = tiles.searchsorted(ends, "left") - tiles.searchsorted(begins, "right") + 1
    views[begins == ends] = 0
    any_cut = not np.isin(cuts, tiles).all()
    return float((summed[ends] - summed[begins] + view_cost.each * views).max()) + view_cost.cut * any_cut


def queued_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on the device, for work that is queued from here on; nobody waits."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def cut_regions(
    cameras: Sequence[Camera],
    costs: Sequence[torch.Tensor],
    ranks: int,
    unit: Unit,
    view_cost: ViewCost = NO_VIEW_COST,
) -> Regions:
    """Cut the batch where the prefix sum of cost passes k / ranks of its total.

    costs: per view [tiles], any non-negative numbers; all zero counts as equal. Where a view costs a rank something
    besides, cuts make the largest share least.
    """
    tiles = [0]
    for camera in cameras:
        tiles.append(tiles[-1] + camera.tiles)
    by_view = [torch.zeros(1, dtype=torch.int64)]
    for view, camera in enumerate(cameras):
        step = {"block": 1, "row": camera.tiles_x, "image": camera.tiles}[unit]
        by_view.append(torch.arange(tiles[view] + step, tiles[view + 1] + 1, step))
    borders = torch.cat(by_view)
    cost = torch.cat([c.double() for c in costs])
    if not bool(cost.sum() > 0):
        cost = torch.ones_like(cost)
    before = torch.cat([torch.zeros(1, dtype=torch.float64), cost.cumsum(0)])[borders]
    if view_cost.each > 0:
        found, of_views = [], torch.searchsorted(borders, torch.tensor(tiles))
        for at, up_to in ((borders, before), (borders[of_views], before[of_views])):
            least = at[_least_cuts(up_to.numpy(), at.numpy(), np.array(tiles), ranks, view_cost.each)]
            found.append(Regions(tuple(cameras), tuple(tiles), tuple(least.tolist())))
        return min(found, key=lambda regions: largest_share(regions, cost, view_cost))
    targets = torch.arange(1, ranks, dtype=torch.float64) * before[-1] / ranks
    # The border nearest to each target, so that a unit that holds a target goes to the side that has more of it.
    above = torch.searchsorted(before, targets).clamp(1, len(borders) - 1)
    nearer_below = targets - before[above - 1] < before[above] - targets
    cuts = borders[torch.where(nearer_below, above - 1, above)].tolist()
    return Regions(tuple(cameras), tuple(tiles), (0, *cuts, tiles[-1]))


def _least_cuts(before: np.ndarray, borders: np.ndarray, tiles: np.ndarray, ranks: int, view_cost: float) -> list[int]:
    """Which borders to cut at, [ranks + 1], so that the largest share is least. view_cost: `ViewCost.each`.

    before: cost of all tiles before each border, [n]. tiles: where each view begins, and the end.
    """
    first_view = np.searchsorted(tiles, borders, side="right") - 1  # Of a share that begins there,
    last_view = np.searchsorted(tiles, borders, side="left") - 1  # and of one that ends there.
    # Read one by one, numbers come out of a view of the memory sooner than out of an array.
    ends = memoryview(before + view_cost * last_view)
    begins = memoryview(before + view_cost * (first_view - 1))

    def filled(most: float) -> list[int]:
        """Each rank with as much as that allows."""
        at = [0]
        for _ in range(ranks):
            at.append(bisect_right(ends, most + begins[at[-1]], lo=at[-1] + 1) - 1)
        return at

    too_little, enough = 0.0, float(ends[-1] - begins[0])
    for _ in range(_HALVINGS):
        middle = (too_little + enough) / 2
        if filled(middle)[-1] == len(borders) - 1:
            enough = middle
        else:
            too_little = middle
    return filled(enough)
