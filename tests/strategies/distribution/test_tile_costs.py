"""What is counted of a tile, by hand."""

from __future__ import annotations

import numpy as np
import torch

from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, Raster
from strategies.distribution.tile_costs import INSTANCE_WORK, PIXEL_WORK, tile_work

CAMERA = Camera(40, 24, 30.0, 30.0, 20.0, 12.0, np.eye(4))
"""Three columns of tiles and two rows, of which the last are cut."""


def test_a_tile_costs_what_its_pixels_went_through_its_instances_and_its_size():
    last = torch.randint(
        0, 9, (CAMERA.height, CAMERA.width), dtype=torch.int32, generator=torch.Generator().manual_seed(3)
    )
    none = torch.zeros(0)
    tiles, lengths = torch.tensor([0, 2, 5], dtype=torch.int32), [7, 0, 8]
    starts = torch.tensor([0, 7, 7, 15])
    bins = Bins(tiles, starts, torch.zeros(15, dtype=torch.int32), None, None)
    work = tile_work(Raster(none, none, none, none, last, none), bins, CAMERA).tolist()
    for tile, length, cost in zip(tiles.tolist(), lengths, work, strict=True):
        y, x = divmod(tile, CAMERA.tiles_x)
        seen = int(last[TILE * y : TILE * (y + 1), TILE * x : TILE * (x + 1)].sum())
        assert cost == seen + INSTANCE_WORK * length + PIXEL_WORK * TILE * TILE
