"""Sub-tiles of 8 x 4 pixels: the grain of visible regions and of saturation masks.

A grid is a boolean [4 tiles_y, 2 tiles_x] tensor in image layout; kernels take the same as one byte a tile, bit
row * 2 + column. Grids and tiles lie on the host, which decides by them; pixels lie where images do. What makes pixels
of grids, or grids of pixels, takes any number of them at once, on any device, and waits for none.
"""

from __future__ import annotations

import torch

from cuda_src.camera import TILE, Camera

WIDTH, HEIGHT = 8, 4
"""Pixels of a sub-tile: whole 16 x 16 tiles catch a fraction of what is saturated."""
COLUMNS, ROWS = TILE // WIDTH, TILE // HEIGHT
_BITS = torch.arange(ROWS * COLUMNS, dtype=torch.uint8)
_PAIR = torch.int16
"""A row of a tile's sub-tiles read as one number, the left one in its low byte: rows of tiles stay rows in memory."""
_MOST_FLAGS = 1 << 28
"""Flags that are looked through at once: 4 GB of numbers if all are set; torch takes no more than 2^31."""


def grid_shape(camera: Camera) -> tuple[int, int]:
    """Rows and columns of the view's grid; sub-tiles at the border may reach beyond the image."""
    return camera.tiles_y * ROWS, camera.tiles_x * COLUMNS


def to_bits(grid: torch.Tensor) -> torch.Tensor:
    """One byte a tile, [tiles] uint8."""
    bits = [(pair & 1 | pair >> 7 & 2) << row * COLUMNS for row, pair in enumerate(_rows_of_tiles(grid))]
    return (bits[0] | bits[1] | bits[2] | bits[3]).to(torch.uint8).flatten()


def from_bits(bits: torch.Tensor, camera: Camera) -> torch.Tensor:
    """The grid of those bytes."""
    flags = (bits[:, None] >> _BITS) & 1
    blocks = flags.bool().view(camera.tiles_y, camera.tiles_x, ROWS, COLUMNS)
    return blocks.permute(0, 2, 1, 3).reshape(grid_shape(camera))


def tiles_of(grid: torch.Tensor) -> torch.Tensor:
    """Tiles with at least one sub-tile of the grid, [tiles] bool."""
    first, second, third, fourth = _rows_of_tiles(grid)
    return (first | second | third | fourth).flatten() != 0


def pixels_of(grid: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Pixels of the grid's sub-tiles, [..., rows, columns] -> [..., H, W] bool."""
    return _spread(grid, HEIGHT, WIDTH)[..., : camera.height, : camera.width]


def tile_pixels(tiles: torch.Tensor, camera: Camera) -> torch.Tensor:
    """Pixels of the flagged tiles, [..., tiles] -> [..., H, W], of the same type (bool, or a value a tile)."""
    return _spread(_by_row(tiles, camera), TILE, TILE)[..., : camera.height, : camera.width]


def pixel_count(tiles: torch.Tensor, camera: Camera) -> int:
    """Pixels of the image that lie in the flagged tiles, [tiles] bool on the host."""
    rows, columns = (
        (pixels - TILE * torch.arange(number)).clamp(max=TILE)
        for pixels, number in ((camera.height, camera.tiles_y), (camera.width, camera.tiles_x))
    )
    return int((_by_row(tiles, camera) * rows[:, None] * columns).sum())


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
        pixel = torch.arange(pixels, device=grid.device)
        within = pixel % TILE
        part = (within >= TILE - distance).long() + (within >= distance)
        grid = parts.index_select(axis, 3 * (pixel // TILE) + part)
    return grid


def touched_by(pixels: torch.Tensor, camera: Camera) -> torch.Tensor:
    """The grid of sub-tiles that hold at least one flagged pixel, [..., H, W] -> [..., rows, columns]."""
    rows, columns = grid_shape(camera)
    others = pixels.shape[:-2]
    padded = torch.zeros((*others, rows * HEIGHT, columns * WIDTH), dtype=torch.bool, device=pixels.device)
    padded[..., : camera.height, : camera.width] = pixels
    return padded.view(*others, rows, HEIGHT, columns, WIDTH).any(dim=-1).any(dim=-2)


def numbers_of(masks: torch.Tensor) -> list[torch.Tensor]:
    """By mask, the numbers of what it flags, ascending: [K, n] bool -> K tensors int64. Waits for the device twice,
    however many masks there are, or a few times if they hold very much."""
    found: list[torch.Tensor] = []
    together = max(1, _MOST_FLAGS // max(1, masks.shape[1]))
    for first in range(0, len(masks), together):
        some = masks[first : first + together]
        lengths = some.sum(dim=1).tolist()
        found += torch.nonzero(some)[:, 1].contiguous().split(lengths)
    return found


def _rows_of_tiles(grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """By row of a tile, the two sub-tiles there as one number, [tiles_y, tiles_x] each."""
    return grid.contiguous().view(_PAIR).unflatten(0, (-1, ROWS)).unbind(dim=1)


def _by_row(tiles: torch.Tensor, camera: Camera) -> torch.Tensor:
    return tiles.unflatten(-1, (camera.tiles_y, camera.tiles_x))


def _spread(grid: torch.Tensor, down: int, across: int) -> torch.Tensor:
    """Every value repeated so many times each way, [..., rows, columns] -> [..., rows down, columns across]."""
    rows, columns = grid.shape[-2:]
    wide = grid[..., :, None, :, None].expand(*grid.shape[:-2], rows, down, columns, across)
    return wide.reshape(*grid.shape[:-2], rows * down, columns * across)
