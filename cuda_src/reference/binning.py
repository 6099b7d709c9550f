"""Which splats meet which tiles, and in which order a tile composites them."""

from __future__ import annotations

import torch

from cuda_src import layout
from cuda_src.camera import SUBTILE_HEIGHT, SUBTILE_WIDTH, TILE, Camera
from cuda_src.operators import Bins, KernelSet, Splats
from cuda_src.workspace import Workspace

_PAIRS = 1 << 20
"""(splat, tile) pairs tested at once: bounds the memory of the dense test."""


def tile_rectangles(camera: Camera, tiles: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rectangles spanned by the tiles' pixel centres inside the image, [K, 4]: x0, y0, x1, y1, pixels."""
    left = (tiles % camera.tiles_x) * TILE
    top = (tiles // camera.tiles_x) * TILE
    right = (left + TILE).clamp(max=camera.width)
    bottom = (top + TILE).clamp(max=camera.height)
    return torch.stack([left + 0.5, top + 0.5, right - 0.5, bottom - 0.5], dim=1).to(dtype)


def subtile_rectangles(camera: Camera, tiles: torch.Tensor, subtile: int, dtype: torch.dtype) -> torch.Tensor:
    """Rectangles spanned by the pixel centres of one sub-tile of each tile, clipped to the image, [K, 4].

    Of a sub-tile outside the image nothing is left: x1 < x0 or y1 < y0.
    """
    rectangles = tile_rectangles(camera, tiles, dtype)
    row, column = divmod(subtile, TILE // SUBTILE_WIDTH)
    left = rectangles[:, 0] + column * SUBTILE_WIDTH
    top = rectangles[:, 1] + row * SUBTILE_HEIGHT
    right = torch.minimum(left + SUBTILE_WIDTH - 1, rectangles[:, 2])
    bottom = torch.minimum(top + SUBTILE_HEIGHT - 1, rectangles[:, 3])
    return torch.stack([left, top, right, bottom], dim=1)


def rendered_pixels(camera: Camera, subtiles: torch.Tensor) -> torch.Tensor:
    """[H, W] bool: the pixel's sub-tile is rendered; subtiles: [tiles of the image] uint8."""
    bits = (subtiles[:, None] >> torch.arange(8, dtype=torch.uint8, device=subtiles.device)) & 1
    grid = bits.view(camera.tiles_y, camera.tiles_x, TILE // SUBTILE_HEIGHT, TILE // SUBTILE_WIDTH)
    rows = grid.permute(0, 2, 1, 3).reshape(-1, camera.tiles_x * (TILE // SUBTILE_WIDTH))
    pixels = rows.repeat_interleave(SUBTILE_HEIGHT, dim=0).repeat_interleave(SUBTILE_WIDTH, dim=1)
    return pixels[: camera.height, : camera.width] > 0


def least_sigma(records: torch.Tensor, rectangles: torch.Tensor) -> torch.Tensor:
    """Minimum of sigma = (a dx^2 + c dy^2) / 2 + b dx dy over each rectangle, [V, RECORD], [K, 4] -> [V, K].

    Sigma is convex: zero if the mean lies inside, else smallest on one of the four edges.
    """
    x, y = records[:, 0:1], records[:, 1:2]
    a, b, c = records[:, 2:3], records[:, 3:4], records[:, 4:5]
    x0, y0, x1, y1 = rectangles[:, 0] - x, rectangles[:, 1] - y, rectangles[:, 2] - x, rectangles[:, 3] - y

    def sigma(dx: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy

    def upright(dx: torch.Tensor) -> torch.Tensor:
        return sigma(dx, torch.minimum(torch.maximum(-b * dx / c, y0), y1))

    def level(dy: torch.Tensor) -> torch.Tensor:
        return sigma(torch.minimum(torch.maximum(-b * dy / a, x0), x1), dy)

    edges = torch.minimum(torch.minimum(upright(x0), upright(x1)), torch.minimum(level(y0), level(y1)))
    inside = (x0 <= 0) & (x1 >= 0) & (y0 <= 0) & (y1 >= 0)
    return torch.where(inside, torch.zeros_like(edges), edges)


def meets(kernels: KernelSet, records: torch.Tensor, rectangles: torch.Tensor) -> torch.Tensor:
    """[V, K] bool: the splat's footprint meets the rectangle; an empty one meets nothing."""
    if kernels.footprint == "ellipse":
        reach = torch.log(records[:, layout.RECORD_OPACITY] / kernels.convention.alpha_min)
        met = least_sigma(records, rectangles) <= reach[:, None]
    else:
        x, y, radius = records[:, 0:1], records[:, 1:2], records[:, layout.RECORD_RADIUS, None]
        met = (
            (rectangles[:, 0] <= x + radius)
            & (rectangles[:, 2] >= x - radius)
            & (rectangles[:, 1] <= y + radius)
            & (rectangles[:, 3] >= y - radius)
        )
    return met & (rectangles[:, 0] <= rectangles[:, 2]) & (rectangles[:, 1] <= rectangles[:, 3])


def touched_tiles(
    kernels: KernelSet,
    records: torch.Tensor,
    camera: Camera,
    tiles: torch.Tensor | None = None,
    subtiles: torch.Tensor | None = None,
) -> torch.Tensor:
    """[V, K] bool: the footprint meets the pixel centres of the tile, or of one of its rendered sub-tiles."""
    if tiles is None:
        tiles = torch.arange(camera.tiles, dtype=torch.int32, device=records.device)
    whole = tile_rectangles(camera, tiles, records.dtype)
    parts = [subtile_rectangles(camera, tiles, s, records.dtype) for s in range(8)] if subtiles is not None else []
    touched = torch.empty(len(records), len(tiles), dtype=torch.bool, device=records.device)
    step = max(1, _PAIRS // max(1, len(tiles)))
    for start in range(0, len(records), step):
        piece = records[start : start + step]
        met = meets(kernels, piece, whole)
        if subtiles is not None:
            mask = subtiles[tiles.long()]
            met &= mask == 255
            for s, part in enumerate(parts):
                met |= meets(kernels, piece, part) & (mask < 255) & ((mask >> s) & 1 > 0)
        touched[start : start + step] = met
    return touched


@torch.no_grad()
def bin_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
) -> Bins:
    device = splats.records.device
    if tiles is None:
        tiles = torch.arange(camera.tiles, dtype=torch.int32, device=device)
    touched = touched_tiles(kernels, splats.records, camera, tiles, subtiles)
    if depth_limit is not None:
        touched &= splats.records[:, layout.RECORD_DEPTH, None] <= depth_limit[tiles.long()]
    # Row-major order of the dense table is splat-major order, tiles ascending: the index is the slot.
    splat, tile = torch.nonzero(touched, as_tuple=True)
    # Least significant key first, each sort stable: id, depth, tile.
    slot = torch.argsort(splats.ids[splat], stable=True)
    slot = slot[torch.argsort(splats.records[splat[slot], layout.RECORD_DEPTH], stable=True)]
    slot = slot[torch.argsort(tile[slot], stable=True)]
    return Bins(
        tiles=tiles,
        starts=_offsets(touched.sum(dim=0)),
        splat=splat[slot].to(torch.int32),
        slot=slot,
        splat_starts=_offsets(touched.sum(dim=1)),
    )


def _offsets(counts: torch.Tensor) -> torch.Tensor:
    """Exclusive prefix sums with the total at the end, [n] -> [n + 1] int64."""
    return torch.cat([counts.new_zeros(1, dtype=torch.int64), torch.cumsum(counts, dim=0)])
