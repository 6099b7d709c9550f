"""Sub-tiles of 8 x 4 pixels: the grain of visible regions and of saturation masks.

A grid is a boolean [4 tiles_y, 2 tiles_x] tensor in image layout; kernels take the same as one byte a tile, bit
row * 2 + column.
"""

from __future__ import annotations

import torch

from cuda_src.camera import TILE, Camera

WIDTH, HEIGHT = 8, 4
"""Pixels of a sub-tile: whole 16 x 16 tiles catch a fraction of what is saturated."""
COLUMNS, ROWS = TILE // WIDTH, TILE // HEIGHT
_BITS = torch.arange(ROWS * COLUMNS)


def grid_shape(camera: Camera) -> tuple[int, int]:
    """Rows and columns of the view's grid; sub-tiles at the border may reach beyond the image."""
    return camera.tiles_y * ROWS, camera.tiles_x * COLUMNS


def by_tile(grid: torch.Tensor) -> torch.Tensor:
    """[tiles, 8] bool: a tile's sub-tiles in the order of their bits."""
    rows, columns = grid.shape
    blocks = grid.view(rows // ROWS, ROWS, columns // COLUMNS, COLUMNS)
    return blocks.permute(0, 2, 1, 3).reshape(-1, ROWS * COLUMNS)


def to_bits(grid: torch.Tensor) -> torch.Tensor:
    """One byte a tile, [tiles] uint8."""
    return (by_tile(grid).to(torch.uint8) << _BITS.to(grid.device, torch.uint8)).sum(dim=1, dtype=torch.uint8)


def from_bits(bits: torch.Tensor, camera: Camera) -> torch.Tensor:
    """The grid of those bytes."""
    flags = (bits[:, None] >> _BITS.to(bits.device, torch.uint8)) & 1
    blocks = flags.bool().view(camera.tiles_y, camera.tiles_x, ROWS, COLUMNS)
    return blocks.permute(0, 2, 1, 3).reshape(grid_shape(camera))


def tiles_of(grid: torch.Tensor) -> torch.Tensor:
    """Tiles with at least one sub-tile of the grid, [tiles] bool."""
    return by_tile(grid).any(dim=1)


def pixels_of(grid: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Pixels of the grid's sub-tiles, [H, W] bool."""
    pixels = grid.repeat_interleave(HEIGHT, dim=0).repeat_interleave(WIDTH, dim=1)
    return pixels[: camera.height, : camera.width]


def tile_pixels(tiles: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Pixels of the flagged tiles, [tiles] -> [H, W], of the same type (bool, or a value a tile)."""
    grid = tiles.view(camera.tiles_y, camera.tiles_x)
    return grid.repeat_interleave(TILE, dim=0).repeat_interleave(TILE, dim=1)[: camera.height, : camera.width]


def pixels_near(tiles: torch.Tensor, camera: Camera, distance: int) -> torch.Tensor:
    """Pixels within `distance` (half a tile to a tile), corners included, of the flagged tiles: [tiles] -> [H, W] bool.

    The first TILE - distance pixels of a tile are near the tile before it, the last ones near the one behind it, and
    those in the middle near both.
    """
    grid = tiles.view(camera.tiles_y, camera.tiles_x)
    lengths = torch.tensor([TILE - distance, 2 * distance - TILE, TILE - distance])
    for axis, size in ((0, camera.tiles_y), (1, camera.tiles_x)):
        edge = torch.zeros_like(grid.narrow(axis, 0, 1))
        before = grid | torch.cat([edge, grid.narrow(axis, 0, size - 1)], dim=axis)
        behind = grid | torch.cat([grid.narrow(axis, 1, size - 1), edge], dim=axis)
        parts = torch.stack([before, before | behind, behind], dim=axis + 1).flatten(axis, axis + 1)
        grid = parts.repeat_interleave(lengths.repeat(size), dim=axis)
    return grid[: camera.height, : camera.width]


def touched_by(pixels: torch.Tensor, camera: Camera) -> torch.Tensor:
    """The grid of sub-tiles that hold at least one flagged pixel of [H, W]."""
    rows, columns = grid_shape(camera)
    padded = torch.zeros((rows * HEIGHT, columns * WIDTH), dtype=torch.bool, device=pixels.device)
    padded[: camera.height, : camera.width] = pixels
    return padded.view(rows, HEIGHT, columns, WIDTH).any(dim=3).any(dim=1)
