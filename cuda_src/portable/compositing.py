"""Tiles composited front to back; what the gradient shares with it is public here.

A tile's state lies in one small scratch array, as planes of 256 pixels: with one base pointer and constant
distances LLVM needs no overlap tests, and a row of 16 pixels becomes a few vector instructions. A tile takes splat
after splat; each touches only the rows that its ellipse reaches.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.portable.arrays import array
from cuda_src.portable.scalar import HALF, ONE, ZERO, exact_sum, f32, loop, piece
from cuda_src.portable.scalar_compositing import blend
from cuda_src.portable.scalar_footprint import footprint_reach, half_extent
from cuda_src.portable.threads import run_ranges, weighted_ranges
from cuda_src.workspace import Workspace

PLANE = TILE * TILE + TILE
"""Distance of planes. A row more than the tile: planes exactly 4 KiB apart would alias in the store buffer."""

# The planes.
_T, _ALIVE, _RED, _GREEN, _BLUE, _DEPTH, _LAST = (k * PLANE for k in range(7))
PLANES = 7 * PLANE
"""Size of all planes, forward or backward."""
SCRATCH = PLANES + layout.GRADIENT * TILE
"""Size of one chunk's scratch: the planes, and 10 sums of 16 lanes (backward) or 16 marks of rows (forward)."""

_LIVENESS_INTERVAL = 16
"""Splats between two looks at which rows of the tile are still alive."""

_SLACK = f32(0.01)
"""Added to the reach of an ellipse, pixels, against rounding: rows too many cost time, a row too few an error."""

TILE_COST = 24
"""What a tile costs besides its instances, in instances: balances the chunks of threads."""


@piece
def rows_reached(record, alpha_min, dy, rows):
    """Rows [lo, hi) of the tile that the splat's ellipse alpha >= alpha_min can reach; generous by rounding.

    dy: from the mean to the centre of the tile's first row.
    """
    conic = (record[2], record[3], record[4])
    extent = half_extent(record[2], conic, record[10], footprint_reach(record[5], alpha_min)) + _SLACK
    lo = min(max(-dy - extent, ZERO), f32(rows))
    hi = min(max(ONE - dy + extent, ZERO), f32(rows))
    return math.ceil(lo), math.floor(hi)


@piece
def _blend_rows(state, living, first, end, dx, dy, record, number, alpha_min, alpha_max, stop):
    """One splat over rows [first, end) of the tile; dx, dy: offset of the tile's first pixel from the mean."""
    conic = (record[2], record[3], record[4])
    opacity, red, green, blue, depth = record[5], record[6], record[7], record[8], record[9]
    for y in range(first, end):
        if living[y] == ZERO:
            continue
        row = state[y * TILE :]
        for i in range(TILE):
            weight, row[_T + i], row[_ALIVE + i] = blend(
                row[_T + i], row[_ALIVE + i], dx + f32(i), dy + f32(y), conic, opacity, alpha_min, alpha_max, stop
            )
            row[_RED + i] += weight * red
            row[_GREEN + i] += weight * green
            row[_BLUE + i] += weight * blue
            row[_DEPTH + i] += weight * depth
            row[_LAST + i] = number if weight > ZERO else row[_LAST + i]


@exact_sum
def _living_rows(state, alive_rows):
    """Mark the rows that still have a pixel that did not stop; how many. Sums of zeros and ones are exact."""
    count = 0
    for y in range(TILE):
        living = ZERO
        for i in range(TILE):
            living += state[_ALIVE + y * TILE + i]
        alive_rows[y] = living
        if living > ZERO:
            count += 1
    return count


@piece
def _load_forward(state, top, left, height, width, start, start_stride):
    for k in range(PLANES):
        state[k] = ZERO
    for y in range(min(TILE, height - top)):
        for x in range(min(TILE, width - left)):
            pixel = (top + y) * width + left + x
            state[_T + y * TILE + x] = start[pixel * start_stride]
            state[_ALIVE + y * TILE + x] = ONE


@piece
def _store_forward(state, top, left, height, width, colour, transmittance, depth, stopped, last):
    for y in range(min(TILE, height - top)):
        for x in range(min(TILE, width - left)):
            k = y * TILE + x
            colour[top + y, left + x, 0] = state[_RED + k]
            colour[top + y, left + x, 1] = state[_GREEN + k]
            colour[top + y, left + x, 2] = state[_BLUE + k]
            transmittance[top + y, left + x] = state[_T + k]
            depth[top + y, left + x] = state[_DEPTH + k]
            stopped[top + y, left + x] = state[_ALIVE + k] == ZERO
            last[top + y, left + x] = np.int32(state[_LAST + k])


@loop
def _composite_tiles(
    lo,
    hi,
    tiles,
    starts,
    splat,
    records,
    scratch,
    start,
    start_stride,
    alpha_min,
    alpha_max,
    stop,
    colour,
    transmittance,
    depth,
    stopped,
    last,
):
    height, width = transmittance.shape
    tiles_x = (width + TILE - 1) // TILE
    state = scratch[:PLANES]
    living = scratch[PLANES : PLANES + TILE]
    for k in range(lo, hi):
        top, left = (tiles[k] // tiles_x) * TILE, (tiles[k] % tiles_x) * TILE
        rows = min(TILE, height - top)
        _load_forward(state, top, left, height, width, start, start_stride)
        for i in range(starts[k], starts[k + 1]):
            number = i - starts[k]
            if number % _LIVENESS_INTERVAL == 0 and _living_rows(state, living) == 0:
                break
            record = records[splat[i]]
            dx, dy = f32(left) + HALF - record[0], f32(top) + HALF - record[1]
            first, end = rows_reached(record, alpha_min, dy, rows)
            _blend_rows(state, living, first, end, dx, dy, record, f32(number + 1), alpha_min, alpha_max, stop)
        _store_forward(state, top, left, height, width, colour, transmittance, depth, stopped, last)


def cut_off(kernels: KernelSet) -> tuple[np.float32, np.float32, np.float32]:
    """alpha_min, alpha_max, and the transmittance below which compositing stops."""
    convention = kernels.convention
    stop = f32(kernels.stop)
    if convention.stop_inclusive:
        # T <= stop is T < the next number.
        stop = np.nextafter(stop, f32(1))
    return f32(convention.alpha_min), f32(convention.alpha_max), stop


def per_pixel(values: torch.Tensor | None, absent: float, name: str, workspace: Workspace) -> tuple[np.ndarray, int]:
    """A map [H, W] or its absence as one array and the distance of pixels in it (0: one value for all)."""
    if values is None:
        return workspace.take(name, (1,)).fill_(absent).numpy(), 0
    return array(values).reshape(-1), 1


def raster_forward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    workspace: Workspace,
    start_transmittance: torch.Tensor | None,
) -> Raster:
    """See `cuda_src.operators.raster_forward`."""
    size = (camera.height, camera.width)
    # Every pixel of a listed tile is written: zeros are needed only where tiles are left out.
    buffer = workspace.take if len(bins.tiles) == camera.tiles else workspace.zeros
    raster = Raster(
        colour=buffer("raster.colour", (*size, 3)),
        transmittance=buffer("raster.transmittance", size),
        depth=buffer("raster.depth", size),
        stopped=buffer("raster.stopped", size, torch.uint8),
        last=buffer("raster.last", size, torch.int32),
    )
    starts = array(bins.starts)
    ranges = weighted_ranges(starts, TILE_COST, kernels.threads)
    scratch = workspace.take("raster.scratch", (len(ranges), SCRATCH)).numpy()
    arrays = (array(bins.tiles), starts, array(bins.splat), array(splats.records))
    start = per_pixel(start_transmittance, 1.0, "raster.no_start", workspace)
    outputs = tuple(t.numpy() for t in (raster.colour, raster.transmittance, raster.depth, raster.stopped, raster.last))
    limits = cut_off(kernels)

    def work(chunk: int, lo: int, hi: int) -> None:
        _composite_tiles(lo, hi, *arrays, scratch[chunk], *start, *limits, *outputs)

    run_ranges(kernels.threads, ranges, work)
    return raster
