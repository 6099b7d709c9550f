"""Layout of the procedural city: square blocks, one box building on each or an open place, streets in between.

Metres, z up, ground at z = 0, the city centred on the origin. Every number of a block is keyed by (seed, block).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch

from strategies.randomness import uniform

BLOCK = 30.0
"""Side of a block, metres; streets run along the lines between blocks."""
ROAD = 4.0
"""Half the width of a roadway."""
PAVEMENT = 6.0
"""From a street's middle to the inner edge of its pavement: no building comes closer."""
SIDE_PER_MILLION = 120.0
"""Side of a city of a million Gaussians: the side grows with the root of their number, so density is constant."""
FEWEST_BLOCKS = 3
"""Blocks along a side of the smallest city; below half a million Gaussians they thin out instead."""
OPEN_SHARE = 0.12
"""Blocks without a building: parks and paved squares."""
SURROUNDINGS = 60.0
"""Width of the meadow around the city, which fades into haze."""

BUILDING, PARK, SQUARE = 0, 1, 2

_STREAM_USE, _STREAM_WIDTH, _STREAM_DEPTH, _STREAM_SHIFT_X, _STREAM_SHIFT_Y, _STREAM_HEIGHT = range(100, 106)
_STREAM_STYLE = 110

_WALLS = (
    (0.72, 0.42, 0.33),
    (0.80, 0.70, 0.55),
    (0.62, 0.63, 0.66),
    (0.86, 0.83, 0.76),
    (0.52, 0.38, 0.32),
    (0.70, 0.76, 0.78),
    (0.83, 0.62, 0.42),
    (0.58, 0.62, 0.52),
)
"""Brick, sandstone, concrete, plaster, dark brick, pale blue, ochre, olive."""

GROUND_FLOOR = 4.0
CORNICE = 0.8
"""Heights of the ground floor and of the band under the roof, metres."""


@dataclass(frozen=True)
class CityBlocks:
    """A city of `blocks` x `blocks` blocks; block (ix, iy) has the index iy * blocks + ix.

    seed: of everything. boxes: [5, B] float32, x0 x1 y0 y1 of the footprint and the height, 0 on open blocks.
    use: [B] int64, BUILDING, PARK or SQUARE. wall: [3, B] base colour in [0, 1]. bays: [2, B] columns of windows
    on the faces that run along x and along y. storey: [B] height of an upper storey, metres. window: [2, B] share
    of a bay and of a storey that is glass. noise: [N * N] values in [0, 1] of a periodic lattice.
    """

    seed: int
    blocks: int
    boxes: torch.Tensor
    use: torch.Tensor
    wall: torch.Tensor
    bays: torch.Tensor
    storey: torch.Tensor
    window: torch.Tensor
    noise: torch.Tensor

    @property
    def side(self) -> float:
        """Side of the city, metres."""
        return self.blocks * BLOCK

    @property
    def tallest(self) -> float:
        """Height of the highest roof, metres."""
        return float(self.boxes[4].max())

    def on(self, device: torch.device) -> CityBlocks:
        """The same city with its tables on the device."""
        tables = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if isinstance(getattr(self, f.name), torch.Tensor)
        }
        return replace(self, **tables)


NOISE_CELLS = 128
"""Cells along a side of the noise lattice."""


def blocks_along_side(gaussians: int) -> int:
    """Blocks along a side of the city of so many Gaussians."""
    side = SIDE_PER_MILLION * math.sqrt(gaussians / 1e6)
    return max(FEWEST_BLOCKS, round(side / BLOCK))


def city_blocks(gaussians: int, seed: int) -> CityBlocks:
    """Lay out the city that so many Gaussians fill."""
    blocks = blocks_along_side(gaussians)
    ids = torch.arange(blocks * blocks, dtype=torch.int64)

    def draw(stream: int) -> torch.Tensor:
        return uniform(seed, stream, ids)

    chance = draw(_STREAM_USE)
    use = torch.where(chance < 0.6 * OPEN_SHARE, PARK, torch.where(chance < OPEN_SHARE, SQUARE, BUILDING))
    lot = BLOCK - 2 * PAVEMENT
    width, depth = lot * (0.6 + 0.4 * draw(_STREAM_WIDTH)), lot * (0.6 + 0.4 * draw(_STREAM_DEPTH))
    x0 = (ids % blocks - blocks / 2) * BLOCK + PAVEMENT + (lot - width) * draw(_STREAM_SHIFT_X)
    y0 = (ids // blocks - blocks / 2) * BLOCK + PAVEMENT + (lot - depth) * draw(_STREAM_SHIFT_Y)
    # Low houses are common and towers rare; a small city has no towers, so that aerial views see its streets.
    tallest = min(45.0, 0.22 * blocks * BLOCK)
    rise = draw(_STREAM_HEIGHT)
    height = 7.0 + (tallest - 7.0) * rise * (0.4 + 0.6 * rise)
    height = torch.where(use == BUILDING, height, 0.0)

    palette = torch.tensor(_WALLS)[(draw(_STREAM_STYLE) * len(_WALLS)).long()].T
    tint = torch.stack([draw(_STREAM_STYLE + 1 + c) for c in range(3)])
    bay = 2.6 + 1.4 * draw(_STREAM_STYLE + 4)
    bays = torch.stack([torch.round(width / bay), torch.round(depth / bay)])
    upper = (height - GROUND_FLOOR - CORNICE).clamp(min=1.0)
    storey = upper / torch.round(upper / 3.3).clamp(min=1.0)
    ribbon = draw(_STREAM_STYLE + 5) < 0.2
    glass_width = torch.where(ribbon, 0.92, 0.42 + 0.25 * draw(_STREAM_STYLE + 6))
    window = torch.stack([glass_width, 0.45 + 0.2 * draw(_STREAM_STYLE + 7)])
    noise = uniform(seed, _STREAM_STYLE + 8, torch.arange(NOISE_CELLS * NOISE_CELLS, dtype=torch.int64))
    return CityBlocks(
        seed=seed,
        blocks=blocks,
        boxes=torch.stack([x0, x0 + width, y0, y0 + depth, height]).float(),
        use=use,
        wall=(palette + 0.07 * (tint - 0.5)).clamp(0.0, 1.0),
        bays=bays,
        storey=storey,
        window=window,
        noise=noise,
    )
