"""One view through all boxes: which are seen where, and who shows, composites and supervises which pixels.

Everything here follows from the camera, the boxes and what all ranks have been told, so every rank computes the same
and no positions travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Literal

import torch

from cuda_src.camera import Camera
from strategies.distribution.halo import SSIM_HALO
from strategies.distribution.host_copies import HostCopies
from strategies.distribution.regions import queued_copy
from strategies.splaxel import subtiles
from strategies.splaxel.boxes import Boxes
from strategies.splaxel.pixel_lists import PixelLists
from strategies.splaxel.visibility import region

OWNER_BLOCK = 4
"""Side of the squares of tiles that `compose: owner` deals: small enough to balance, large enough for few halos."""


@dataclass(frozen=True)
class Layer:
    """Boxes of one rank that follow one another front to back wherever they overlap: one partial image."""

    rank: int
    boxes: tuple[int, ...]


@dataclass(frozen=True)
class Sight:
    """What a view sees of the boxes.

    order: boxes seen, front to back. projected: by box, the grid of its projection. regions: by box, the grid that is
    rendered and sent, before masks. layers: front to back.
    """

    camera: Camera
    order: tuple[int, ...]
    projected: Mapping[int, torch.Tensor]
    regions: Mapping[int, torch.Tensor]
    layers: tuple[Layer, ...]

    @cached_property
    def crowded(self) -> torch.Tensor:
        """Grid of the sub-tiles in more than one box's projection."""
        seen = torch.zeros(subtiles.grid_shape(self.camera), dtype=torch.int32)
        for grid in self.projected.values():
            seen += grid
        return seen > 1

    @cached_property
    def layer_grids(self) -> list[torch.Tensor]:
        """By layer, its region."""
        return [self.layer_grid(layer, {}) for layer in self.layers]

    @cached_property
    def layer_tiles(self) -> list[torch.Tensor]:
        """By layer, the tiles of its region, [tiles] bool."""
        return [subtiles.tiles_of(grid) for grid in self.layer_grids]

    def layer_grid(self, layer: Layer, active: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """What a layer shows, its boxes together. active: by box, what a mask leaves; boxes without one show all."""
        return reduce(torch.logical_or, [self.box_grid(box, active) for box in layer.boxes])

    def box_grid(self, box: int, active: Mapping[int, torch.Tensor]) -> torch.Tensor:
        grid = self.regions[box]
        return grid & active[box] if box in active else grid


def look(
    camera: Camera,
    boxes: Boxes,
    near: float,
    visible: Sequence[torch.Tensor],
    whole: bool,
    margins: Sequence[float] | None = None,
) -> Sight:
    """The view's sight of the boxes.

    visible: by box, the corners [2, 3] that its splats may be seen in; an empty box has lower > upper. whole: the
    regions are the whole image for every box (spatial redundancy left in). margins: by box, pixels to dilate by.
    """
    order, projected = [], {}
    everything = torch.ones(subtiles.grid_shape(camera), dtype=torch.bool)
    for box in boxes.front_to_back(camera.centre):
        margin = 0.0 if margins is None else margins[box]
        grid = region(camera, near, visible[box].numpy(), margin)
        if whole or subtiles.count(grid):
            order.append(box)
            projected[box] = grid
    regions = {box: everything if whole else projected[box] for box in order}
    return Sight(camera, tuple(order), projected, regions, _layers(order, regions, boxes))


def _layers(order: Sequence[int], regions: Mapping[int, torch.Tensor], boxes: Boxes) -> tuple[Layer, ...]:
    """Boxes in as few layers as their order allows: a box joins a layer of its rank that nothing between hides."""
    layers: list[tuple[int, list[int]]] = []
    covers: list[torch.Tensor] = []
    for box in order:
        rank, grid = int(boxes.owner[box]), regions[box]
        # The box must come behind every layer it overlaps; of its own rank's it may join one, since a rank
        # composites the boxes of a layer in their order.
        first = max((n for n, cover in enumerate(covers) if subtiles.count(cover & grid)), default=0)
        joined = next((n for n in range(first, len(layers)) if layers[n][0] == rank), None)
        if joined is None:
            layers.append((rank, [box]))
            covers.append(grid)
        else:
            layers[joined][1].append(box)
            covers[joined] = covers[joined] | grid
    return tuple(Layer(rank, tuple(members)) for rank, members in layers)


@dataclass
class Sharing:
    """Who does what for one visit of a view.

    active: by box, the grid that its mask leaves. takes_part: ranks that render; others show nothing. device: where
    pixels lie; grids and tiles are the host's. collector: a rank that composites the whole image alone, when there is
    no loss to share out. lists: of pixels, from `find` on.
    """

    sight: Sight
    active: Mapping[int, torch.Tensor]
    takes_part: frozenset[int]
    compose: Literal["all", "owner"]
    device: torch.device
    collector: int | None = None
    lists: PixelLists = field(init=False)
    _counted: dict[int, torch.Tensor] = field(default_factory=dict, init=False)
    _supervised: dict[int, torch.Tensor] = field(default_factory=dict, init=False)

    @cached_property
    def grids(self) -> list[torch.Tensor]:
        """By layer, what it shows."""
        sight, nothing = self.sight, torch.zeros(subtiles.grid_shape(self.sight.camera), dtype=torch.bool)
        layer_grids = (
            [sight.layer_grid(layer, self.active) for layer in sight.layers] if self.active else sight.layer_grids
        )
        return [
            grid if layer.rank in self.takes_part else nothing
            for layer, grid in zip(sight.layers, layer_grids, strict=True)
        ]

    @cached_property
    def shown(self) -> torch.Tensor:
        """By layer, the pixels it sends to whoever needs them, [layers, H W] bool on the device."""
        return self.pixels_of(self.grids)

    def pixels_of(self, grids: Sequence[torch.Tensor]) -> torch.Tensor:
        """Pixels of each grid, [len(grids), H W] bool on the device."""
        camera = self.sight.camera
        together = torch.empty((len(grids), *subtiles.grid_shape(camera)), dtype=torch.bool)
        for number, grid in enumerate(grids):
            together[number] = grid
        return subtiles.pixels_of(queued_copy(together, self.device), camera).flatten(1)

    @cached_property
    def counter(self) -> torch.Tensor:
        """Rank that enters each tile's loss, and judges what is saturated there, [tiles] int64.

        `compose: all`: that of the frontmost layer, which no mask ever hides. `owner`: ranks that see the tile, in
        turn. A tile that none sees holds background alone and goes to the first rank that takes part.
        """
        camera = self.sight.camera
        if self.collector is not None:
            return torch.full((camera.tiles,), self.collector)
        seen = [
            (layer.rank, tiles)
            for layer, tiles in zip(self.sight.layers, self.sight.layer_tiles, strict=True)
            if layer.rank in self.takes_part
        ]
        counter = torch.full((camera.tiles,), min(self.takes_part, default=0))
        if self.compose == "all":
            for rank, tiles in reversed(seen):
                counter.masked_fill_(tiles, rank)
            return counter
        ranks = sorted({rank for rank, _ in seen})
        if not ranks:
            return counter
        covers = torch.stack([torch.stack([t for r, t in seen if r == rank]).any(dim=0) for rank in ranks])
        tile = torch.arange(camera.tiles)
        square = tile // camera.tiles_x // OWNER_BLOCK + tile % camera.tiles_x // OWNER_BLOCK
        turn = square % covers.sum(dim=0).clamp(min=1)
        chosen = (covers & (covers.cumsum(dim=0) == turn + 1)).int().argmax(dim=0)
        return torch.where(covers.any(dim=0), torch.tensor(ranks)[chosen], counter)

    def counted(self, rank: int) -> torch.Tensor:
        """Tiles that the rank counts, [tiles] bool."""
        if rank not in self._counted:
            self._counted[rank] = self.counter == rank
        return self._counted[rank]

    def supervised(self, rank: int) -> torch.Tensor:
        """Tiles on which the rank computes a loss, [tiles] bool: those it counts and, with `compose: all`, shows."""
        if rank not in self._supervised:
            tiles = self.counted(rank)
            if self.compose == "all" and self.collector is None and rank in self.takes_part:
                for layer, grid in zip(self.sight.layers, self.grids, strict=True):
                    if layer.rank == rank:
                        tiles = tiles | subtiles.tiles_of(grid)
            self._supervised[rank] = tiles
        return self._supervised[rank]

    def find(self, rank: int, ranks: int, copies: HostCopies) -> None:
        """Queue what finds the pixels that the rank sends, gets and composites, which are `lists` from here on.

        With `compose: all` a rank composites as far as SSIM's gradient reaches beyond the tiles that it supervises.
        """
        camera = self.sight.camera
        tiles = queued_copy(torch.stack([self.supervised(r) for r in range(ranks)]), self.device)
        near = None if self.collector is not None else subtiles.pixels_near(tiles, camera, SSIM_HALO).flatten(1)
        owners = [layer.rank for layer in self.sight.layers]
        if self.compose == "all" and near is not None:
            self.lists = PixelLists(self.shown, owners, near, rank, copies)
        else:
            needs = subtiles.tile_pixels(tiles, camera).flatten(1)
            self.lists = PixelLists(self.shown, owners, needs, rank, copies, near)

    def pixels_counted(self, rank: int) -> torch.Tensor:
        """Pixels of the tiles that the rank counts, [H W] bool on the device."""
        return subtiles.tile_pixels(queued_copy(self.counted(rank), self.device), self.sight.camera).flatten()
