"""Regions as a rank's device is told of them: made once, since a view that comes again is mostly cut as before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from strategies.distribution.halo import Halo, halo_of_regions
from strategies.distribution.regions import Regions
from strategies.distribution.turns import Turns

MOST_KEPT = 1024
"""Some 60 KB on the device each, at 1920 x 1080."""


@dataclass(frozen=True, eq=False)
class PlacedRegions:
    """tiles: by view, those of the rank, [k] int32; owners: by view, the rank of every tile, [tiles] int32."""

    regions: Regions
    rank: int
    tiles: tuple[torch.Tensor, ...]
    owners: tuple[torch.Tensor, ...]

    @cached_property
    def halo(self) -> Halo:
        return halo_of_regions(self.regions, self.rank)

    @cached_property
    def turns(self) -> Turns:
        return Turns.of(self.regions)

    @cached_property
    def whole(self) -> tuple[int | None, ...]:
        """By view, the rank that renders all of it, if one does."""
        return tuple(map(self.regions.whole, range(len(self.tiles))))

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.tiles, *self.owners))


class PlacedRegionsKept:
    """By where the tiles are cut."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        self._placed: dict[tuple[object, ...], PlacedRegions] = {}

    def of(self, regions: Regions) -> PlacedRegions:
        key = (regions.tiles, regions.cuts, *((c.width, c.height) for c in regions.cameras))
        placed = self._placed.get(key)
        if placed is None:
            if len(self._placed) >= MOST_KEPT:
                self._placed.clear()
            views = range(len(regions.cameras))
            tiles = tuple(regions.of(self._rank, view, self._device) for view in views)
            placed = PlacedRegions(regions, self._rank, tiles, tuple(regions.owners(self._device)))
            self._placed[key] = placed
        return placed

    @property
    def bytes(self) -> int:
        return sum(placed.bytes for placed in self._placed.values())
