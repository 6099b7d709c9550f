"""Tiles composited front to back; what the gradient shares with it is public here.

A tile's state lies in one small scratch array, as planes of 256 pixels: with one base pointer and constant
distances LLVM needs no overlap tests, and a row of 16 pixels becomes a few vector instructions. A tile takes splat
after splat; each touches only the rows that its ellipse reaches.
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import SUBTILE_HEIGHT, SUBTILE_WIDTH, TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.portable.arrays import array, optional_map
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import HALF, INFINITE, ONE, ZERO, exact_sum, f32, loop, piece
from cuda_src.portable.scalar_compositing import blend
from cuda_src.portable.scalar_footprint import footprint_reach, half_extent
from cuda_src.portable.threads import run_ranges, weighted_ranges
from cuda_src.workspace import Workspace

PLANE = TILE * TILE + TILE
"""Distance of planes. A row more than the tile: planes exactly 4 KiB apart would alias in the store buffer."""

# The planes.
_T, _UNTIL, _RED, _GREEN, _BLUE, _DEPTH, _LAST = (k * PLANE for k in range(7))
"""_UNTIL as in `blend`, and 0 where nothing is rendered."""
RANGES = 7 * PLANE
"""Where the planes of depth ranges begin; they are filled and read only if there are ranges."""
_NEAR, _FAR, HELD = (RANGES + k * PLANE for k in range(3))
PLANES = 10 * PLANE
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
def hide_out_of_range(state, plane, first, end, depth):
    """Zero that plane of rows [first, end) where a splat's depth lies outside the pixel's range; HELD keeps what was.

    Around the loop over pixels and not in it: that one costs the same whether there are ranges or not.
    """
    for k in range(first * TILE, end * TILE):
        exists = (state[_NEAR + k] <= depth) & (depth < state[_FAR + k])
        state[HELD + k] = state[plane + k]
        state[plane + k] = state[plane + k] if exists else ZERO


@piece
def _restore_until(state, first, end):
    """Undo `hide_out_of_range` of _UNTIL where it was hidden; elsewhere it may have changed."""
    for k in range(first * TILE, end * TILE):
        state[_UNTIL + k] = state[HELD + k] if state[_UNTIL + k] == ZERO else state[_UNTIL + k]


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
            weight, row[_T + i], row[_UNTIL + i] = blend(
                row[_T + i],
                row[_UNTIL + i],
                dx + f32(i),
                dy + f32(y),
                conic,
                opacity,
                depth,
                alpha_min,
                alpha_max,
                stop,
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
            living += ONE if state[_UNTIL + y * TILE + i] == INFINITE else ZERO
        alive_rows[y] = living
        if living > ZERO:
            count += 1
    return count


@piece
def load_ranges(state, top, left, height, width, depth_range):
    """The depth ranges of the tile's pixels inside the image; depth_range: [H * W * 2]."""
    for y in range(min(TILE, height - top)):
        for x in range(min(TILE, width - left)):
            at = 2 * ((top + y) * width + left + x)
            state[_NEAR + y * TILE + x], state[_FAR + y * TILE + x] = depth_range[at], depth_range[at + 1]


@piece
def _load_forward(state, top, left, height, width, start, start_stride, mask):
    for k in range(RANGES):
        state[k] = ZERO
    for y in range(min(TILE, height - top)):
        for x in range(min(TILE, width - left)):
            pixel = (top + y) * width + left + x
            rendered = (mask >> (y // SUBTILE_HEIGHT * 2 + x // SUBTILE_WIDTH)) & 1
            state[_T + y * TILE + x] = start[pixel * start_stride]
            state[_UNTIL + y * TILE + x] = INFINITE if rendered else ZERO


@piece
def _store_forward(state, top, left, height, width, colour, transmittance, depth, stopped, last, stop_depth):
    for y in range(min(TILE, height - top)):
        for x in range(min(TILE, width - left)):
            k = y * TILE + x
            colour[top + y, left + x, 0] = state[_RED + k]
            colour[top + y, left + x, 1] = state[_GREEN + k]
            colour[top + y, left + x, 2] = state[_BLUE + k]
            transmittance[top + y, left + x] = state[_T + k]
            depth[top + y, left + x] = state[_DEPTH + k]
            until = state[_UNTIL + k]
            stopped[top + y, left + x] = until > ZERO and until < INFINITE
            stop_depth[top + y, left + x] = until if until > ZERO else INFINITE
            last[top + y, left + x] = np.int32(state[_LAST + k])


@loop
def composite_tiles(
    lo,
    hi,
    first_row,
    tiles,
    starts,
    splat,
    records,
    scratch,
    start,
    start_stride,
    subtiles,
    subtile_stride,
    depth_range,
    ranged,
    alpha_min,
    alpha_max,
    stop,
    colour,
    transmittance,
    depth,
    stopped,
    last,
    stop_depth,
):
    """Tiles lo to hi of the list into maps whose first row is that of tile row `first_row`."""
    height, width = transmittance.shape
    tiles_x = (width + TILE - 1) // TILE
    state = scratch[:PLANES]
    living = scratch[PLANES : PLANES + TILE]
    for k in range(lo, hi):
        top, left = (tiles[k] // tiles_x - first_row) * TILE, (tiles[k] % tiles_x) * TILE
        rows = min(TILE, height - top)
        _load_forward(state, top, left, height, width, start, start_stride, subtiles[tiles[k] * subtile_stride])
        if ranged:
            load_ranges(state, top, left, height, width, depth_range)
        for i in range(starts[k], starts[k + 1]):
            number = i - starts[k]
            if number % _LIVENESS_INTERVAL == 0 and _living_rows(state, living) == 0:
                break
            record = records[splat[i]]
            dx, dy = f32(left) + HALF - record[0], f32(top + first_row * TILE) + HALF - record[1]
            first, end = rows_reached(record, alpha_min, dy, rows)
            if ranged:
                hide_out_of_range(state, _UNTIL, first, end, record[9])
            _blend_rows(state, living, first, end, dx, dy, record, f32(number + 1), alpha_min, alpha_max, stop)
            if ranged:
                _restore_until(state, first, end)
        _store_forward(state, top, left, height, width, colour, transmittance, depth, stopped, last, stop_depth)


def cut_off(kernels: KernelSet) -> tuple[np.float32, np.float32, np.float32]:
    """alpha_min, alpha_max, and the transmittance below which compositing stops."""
    convention = kernels.convention
    stop = f32(kernels.stop)
    if convention.stop_inclusive:
        # T <= stop is T < the next number.
        stop = np.nextafter(stop, f32(1))
    return f32(convention.alpha_min), f32(convention.alpha_max), stop


@by_device
def raster_forward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    workspace: Workspace,
    start_transmittance: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_range: torch.Tensor | None,
    background: torch.Tensor | None = None,
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
        stop_depth=buffer("raster.stop_depth", size),
    )
    starts = array(bins.starts)
    ranges = weighted_ranges(starts, TILE_COST, kernels.threads)
    scratch = workspace.take("raster.scratch", (len(ranges), SCRATCH)).numpy()
    arrays = (array(bins.tiles), starts, array(bins.splat), array(splats.records))
    maps = (
        *optional_map(start_transmittance, 1.0, "raster.no_start", workspace),
        *optional_map(subtiles, 255, "raster.no_subtiles", workspace, torch.uint8),
        *optional_map(depth_range, 0.0, "raster.no_range", workspace),
    )
    outputs = tuple(getattr(raster, f.name).numpy() for f in fields(raster))
    limits = cut_off(kernels)

    def work(chunk: int, lo: int, hi: int) -> None:
        composite_tiles(lo, hi, 0, *arrays, scratch[chunk], *maps, *limits, *outputs)

    run_ranges(kernels.threads, ranges, work)
    if background is not None:
        # In tiles that are not listed transmittance is zero.
        raster.colour.addcmul_(raster.transmittance[..., None], background.to(raster.colour))
    return raster
