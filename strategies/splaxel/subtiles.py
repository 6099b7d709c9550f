"""Sub-tiles of 8 x 4 pixels: the grain of visible regions and of saturation masks.

A grid is a boolean [4 tiles_y, 2 tiles_x] tensor in image layout; kernels take the same as one byte a tile, bit
row * 2 + column. Grids and tiles lie on the host, which decides by them; pixels lie where images do. What makes pixels
of grids, or grids of pixels, takes any number of them at once, on any device, and waits for none.

A step looks at a dozen grids: by NumPy, whose calls on so little cost less than PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from cuda_src.camera import TILE, Camera
from strategies.distribution.marked_rows import marked

WIDTH, HEIGHT = 8, 4
"""Pixels of a sub-tile: whole 16 x 16 tiles catch a fraction of what is saturated."""
COLUMNS, ROWS = TILE // WIDTH, TILE // HEIGHT
_SHIFTS = np.arange(0, ROWS * COLUMNS, COLUMNS, dtype=np.uint8)[:, None]
"""Of the bits of each row of a tile."""
_PAIR, _BOTH = np.int16, 0x0101
"""A row of a tile's sub-tiles read as one number, the left one in its low byte: rows of tiles stay rows in memory."""
_MOST_FLAGS = 1 << 27
"""Flags that are looked through at once: 1 GB to count them in."""


def grid_shape(camera: Camera) -> tuple[int, int]:
    """Rows and columns of the view's grid; sub-tiles at the border may reach beyond the image."""
    return camera.tiles_y * ROWS, camera.tiles_x * COLUMNS


def count(grid: torch.Tensor) -> int:
    """Sub-tiles of a grid, or tiles, that are flagged."""
    return int(np.count_nonzero(grid.numpy()))


def numbers(tiles: torch.Tensor) -> torch.Tensor:
    """Of the flagged tiles, ascending, as kernels are given them: [tiles] -> [k] int32."""
    return torch.from_numpy(np.flatnonzero(tiles.numpy()).astype(np.int32))


def to_bits(grid: torch.Tensor) -> torch.Tensor:
    """One byte a tile, [..., rows, columns] -> [..., tiles] uint8."""
    pairs = np.ascontiguousarray(grid.numpy()).view(_PAIR)
    bits = (pairs | pairs >> 7).astype(np.uint8) & 3
    *others, rows, columns = bits.shape
    first, second, third, fourth = np.moveaxis(bits.reshape(*others, rows // ROWS, ROWS, columns), -2, 0)
    return torch.from_numpy(first | second << 2 | third << 4 | fourth << 6).flatten(-2)


def from_bits(bits: torch.Tensor, camera: Camera) -> torch.Tensor:
    """The grids of those bytes, [..., tiles] -> [..., rows, columns]."""
    tiles = bits.numpy().reshape(*bits.shape[:-1], camera.tiles_y, 1, camera.tiles_x)
    pairs = (tiles >> _SHIFTS & 3).astype(_PAIR)
    grid = ((pairs | pairs << 7) & _BOTH).view(np.bool_)
    return torch.from_numpy(grid.reshape(*bits.shape[:-1], *grid_shape(camera)))


def tiles_of(grid: torch.Tensor) -> torch.Tensor:
    """Tiles with at least one sub-tile of the grid, [..., rows, columns] -> [..., tiles] bool."""
    return to_bits(grid) != 0


def pixels_of(grid: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Pixels of the grid's sub-tiles, [..., rows, columns] -> [..., H, W] bool."""
    return _spread(grid, HEIGHT, WIDTH)[..., : camera.height, : camera.width]


def tile_pixels(tiles: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Pixels of the flagged tiles, [..., tiles] -> [..., H, W], of the same type (bool, or a value a tile)."""
    return _spread(_by_row(tiles, camera), TILE, TILE)[..., : camera.height, : camera.width]


def pixel_count(tiles: torch.Tensor, camera: Camera) -> int:
    """Pixels of the image that lie in the flagged tiles, [tiles] bool on the host."""
    return int(_pixels_of_tiles(camera.width, camera.height) @ tiles.numpy())


def pixels_near(tiles: torch.Tensor, camera: Camera, distance: int) -> torch.Tensor:
    """Pixels within `distance` (half a tile to a tile), corners included, of the flagged tiles.

    [..., tiles] -> [..., H, W] bool. The first TILE - distance pixels of a tile are near the tile before it, the last
    ones near the one behind it, and those in the middle near both.
    """
    grid = _by_row(tiles, camera)
    for axis, number, pixels in ((-2, camera.tiles_y, camera.height), (-1, camera.tiles_x, camera.width)):
        edge = torch.zeros_like(grid.narrow(axis, 0, 1))
        before = grid | torch.cat([edge, grid.narrow(axis, 0, number - 1)], dim=axis)
        behind = grid | torch.cat([grid.narrow(axis, 1, number - 1), edge], dim=axis)
        parts = torch.stack([before, before | behind, behind], dim=axis).flatten(axis - 1, axis)
        grid = parts.index_select(axis, _parts_of_tiles(pixels, distance, grid.device))
    return grid


def touched_by(pixels: torch.Tensor, camera: Camera) -> torch.Tensor:
    """The grid of sub-tiles that hold at least one flagged pixel, [..., H, W] -> [..., rows, columns]."""
    rows, columns = grid_shape(camera)
    others = pixels.shape[:-2]
    padded = torch.zeros((*others, rows * HEIGHT, columns * WIDTH), dtype=torch.bool, device=pixels.device)
    padded[..., : camera.height, : camera.width] = pixels
    return padded.view(*others, rows, HEIGHT, columns, WIDTH).any(dim=-1).any(dim=-2)


def numbers_of(masks: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """By mask, the numbers of what it flags, ascending: [K, n] bool -> K tensors int64. lengths: how many each flags,
    so that nobody waits for a device to say so."""
    found: list[torch.Tensor] = []
    together = max(1, _MOST_FLAGS // max(1, masks.shape[1]))
    for first in range(0, len(masks), together):
        some, of_some = masks[first : first + together], lengths[first : first + together]
        found += _numbers(some, sum(of_some)).split(list(of_some))
    return found


def _numbers(masks: torch.Tensor, total: int) -> torch.Tensor:
    """Of all that the masks flag, row after row, [total] int64."""
    if not masks.is_cuda:
        return torch.nonzero(masks)[:, 1].contiguous()
    return marked(masks.flatten().cumsum(0, dtype=torch.int32), total).remainder_(masks.shape[1])


@lru_cache(maxsize=16)
def _pixels_of_tiles(width: int, height: int) -> np.ndarray:
    """Pixels of the image in each of its tiles, [tiles] int64."""
    down, across = (np.diff(np.minimum(np.arange(0, pixels + TILE, TILE), pixels)) for pixels in (height, width))
    return np.outer(down, across).ravel()


@lru_cache(maxsize=16)
def _parts_of_tiles(pixels: int, distance: int, device: torch.device) -> torch.Tensor:
    """Of a row of pixels, each one's part of its tile as `pixels_near` has them, three a tile: [pixels] int64."""
    pixel = torch.arange(pixels, device=device)
    within = pixel % TILE
    return 3 * (pixel // TILE) + (within >= TILE - distance) + (within >= distance)


def _by_row(tiles: torch.Tensor, camera: Camera) -> torch.Tensor:
    return tiles.unflatten(-1, (camera.tiles_y, camera.tiles_x))


def _spread(grid: torch.Tensor, down: int, across: int) -> torch.Tensor:
    """Every value repeated so many times each way, [..., rows, columns] -> [..., rows down, columns across]."""
    rows, columns = grid.shape[-2:]
    wide = grid[..., :, None, :, None].expand(*grid.shape[:-2], rows, down, columns, across)
    return wide.reshape(*grid.shape[:-2], rows * down, columns * across)
