"""Counting a view's work in plain PyTorch, tile by tile; see `cuda_src.workload`."""

from __future__ import annotations

import torch

from cuda_src import layout
from cuda_src.camera import SUBTILE_HEIGHT, SUBTILE_WIDTH, TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.reference.binning import least_sigma, tile_rectangles
from cuda_src.reference.raster import splat_alphas
from cuda_src.workload import CELL, COUNTED

WARP = SUBTILE_WIDTH * SUBTILE_HEIGHT


@torch.no_grad()
def count_lists(kernels: KernelSet, splats: Splats, bins: Bins, raster: Raster, camera: Camera) -> list[int]:
    """The counts of `cuda_src.workload.COUNTED`, in that order."""
    starts, tiles = bins.starts.tolist(), bins.tiles.tolist()
    total = torch.zeros(len(COUNTED), dtype=torch.int64, device=splats.records.device)
    for k, tile in enumerate(tiles):
        if starts[k] < starts[k + 1]:
            own = splats.records[bins.splat[starts[k] : starts[k + 1]].long()].to(kernels.dtype)
            total += _count_tile(kernels, own, raster, camera, tile)
    return [int(value) for value in total.tolist()]


def _count_tile(kernels: KernelSet, records: torch.Tensor, raster: Raster, camera: Camera, tile: int) -> torch.Tensor:
    """One tile's counts, [COUNTED] int64. records: [n, RECORD] of its list, front to back."""
    top, left = tile // camera.tiles_x * TILE, tile % camera.tiles_x * TILE
    rows, columns = slice(top, min(top + TILE, camera.height)), slice(left, min(left + TILE, camera.width))
    y, x = torch.meshgrid(
        torch.arange(rows.start, rows.stop, device=records.device),
        torch.arange(columns.start, columns.stop, device=records.device),
        indexing="ij",
    )
    y, x = y.flatten(), x.flatten()
    pixels = torch.stack([x, y], dim=1).to(records.dtype) + 0.5
    seen = splat_alphas(kernels, records, pixels) > 0  # [P, n]
    order = torch.arange(len(records), device=records.device)
    last = raster.last[rows, columns].reshape(-1).long()
    blended = seen & (order < last[:, None])
    # What stops a pixel is the first that it sees and does not blend.
    stopped = raster.stopped[rows, columns].reshape(-1, 1) > 0
    ends = _first(seen & (order >= last[:, None]) & stopped) + 1

    whole = tile_rectangles(camera, torch.tensor([tile], device=records.device), records.dtype)[0]
    pairs = []
    for width, height in ((SUBTILE_WIDTH, SUBTILE_HEIGHT), (CELL, CELL)):
        patch = (y - top) // height * (TILE // width) + (x - left) // width
        rectangles = _patches(whole, width, height)
        reaches = _reaches(kernels, records, rectangles)
        for until in (ends, last):
            pairs.append((reaches & (order < _most(until, patch, len(rectangles))[:, None])).sum())
    subtile = (y - top) // SUBTILE_HEIGHT * (TILE // SUBTILE_WIDTH) + (x - left) // SUBTILE_WIDTH
    blending = torch.zeros(TILE * TILE // WARP, len(records), dtype=torch.int64, device=records.device)
    blending.index_add_(0, subtile, blended.long())
    forward, backward, cells_forward, cells_backward = pairs
    return torch.stack(
        [
            ends.max(), last.max(), blended.sum(), forward, backward, (blending > 0).sum(), cells_forward,
            cells_backward,
        ]
    )  # fmt: skip


def _first(where: torch.Tensor) -> torch.Tensor:
    """Column of each row's first True, [P, n] -> [P] int64; the last column in a row without any."""
    found = where.to(torch.uint8).argmax(dim=1)
    return torch.where(where.any(dim=1), found, where.shape[1] - 1)


def _most(values: torch.Tensor, patch: torch.Tensor, patches: int) -> torch.Tensor:
    """The largest value of each patch's pixels, [P] int64 -> [patches]; 0 where none lies in the image."""
    return values.new_zeros(patches).scatter_reduce_(0, patch, values, "amax")


def _patches(tile: torch.Tensor, width: int, height: int) -> torch.Tensor:
    """Rectangles of the pixel centres of a tile's patches, row-major, cut at the tile's own, [patches, 4]."""
    row, column = torch.meshgrid(torch.arange(TILE // height), torch.arange(TILE // width), indexing="ij")
    left = tile[0] + (column.flatten() * width).to(tile)
    top = tile[1] + (row.flatten() * height).to(tile)
    right, bottom = (left + width - 1).clamp(max=float(tile[2])), (top + height - 1).clamp(max=float(tile[3]))
    return torch.stack([left, top, right, bottom], dim=1)


def _reaches(kernels: KernelSet, records: torch.Tensor, rectangles: torch.Tensor) -> torch.Tensor:
    """[patches, n] bool: alpha can come to alpha_min there. Where rounding left a conic indefinite no bound holds."""
    reach = torch.log(records[:, layout.RECORD_OPACITY] / kernels.convention.alpha_min)
    a, b, c = records[:, layout.RECORD_CONIC].unbind(dim=1)
    met = (least_sigma(records, rectangles) <= reach[:, None]) | (a * c - b * b <= 0)[:, None]
    inside = (rectangles[:, 0] <= rectangles[:, 2]) & (rectangles[:, 1] <= rectangles[:, 3])
    return (met & inside).T
