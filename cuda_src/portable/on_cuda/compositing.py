"""Tiles composited front to back: a block a tile, a thread a pixel, splats in batches through shared memory."""

from __future__ import annotations

from dataclasses import fields

import torch

from cuda_src import layout
from cuda_src.camera import SUBTILE_HEIGHT, SUBTILE_WIDTH, TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.portable.arrays import flat_background, flat_map
from cuda_src.portable.compositing import cut_off
from cuda_src.portable.on_cuda.runtime import cuda, kernel
from cuda_src.portable.scalar import HALF, INFINITE, ZERO, f32
from cuda_src.portable.scalar_compositing import blend
from cuda_src.workspace import Workspace

PIXELS = TILE * TILE
"""Threads of a block, and splats that it loads at a time."""
DRAWN = layout.RECORD_DEPTH + 1
"""Columns of a record that compositing reads."""


@kernel
def composite_tiles(
    tiles,
    starts,
    splat,
    records,
    start,
    start_stride,
    subtiles,
    subtile_stride,
    depth_range,
    ranged,
    background,
    background_stride,
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
    batch = cuda.shared.array((PIXELS, DRAWN), f32)
    height, width = transmittance.shape
    tiles_x = (width + TILE - 1) // TILE
    thread, k = cuda.threadIdx.x, cuda.blockIdx.x
    y, x = thread // TILE, thread % TILE
    top, left = tiles[k] // tiles_x * TILE, tiles[k] % tiles_x * TILE
    row, column = top + y, left + x
    inside = row < height and column < width
    pixel = row * width + column
    light, until, near, far = ZERO, ZERO, -INFINITE, INFINITE
    if inside:
        light = start[pixel * start_stride]
        if (subtiles[tiles[k] * subtile_stride] >> (y // SUBTILE_HEIGHT * 2 + x // SUBTILE_WIDTH)) & 1:
            until = INFINITE
        if ranged:
            near, far = depth_range[2 * pixel], depth_range[2 * pixel + 1]
    red, green, blue, far_off, number = ZERO, ZERO, ZERO, ZERO, 0
    begin, end = starts[k], starts[k + 1]
    for first in range(begin, end, PIXELS):
        # Besides the count: nobody reads the batch before any more.
        if cuda.syncthreads_count(1 if until == INFINITE else 0) == 0:
            break
        if first + thread < end:
            for c in range(DRAWN):
                batch[thread, c] = records[splat[first + thread], c]
        cuda.syncthreads()
        for j in range(min(PIXELS, end - first)):
            if until != INFINITE:
                break
            z = batch[j, 9]
            if not (near <= z and z < far):
                continue
            conic = (batch[j, 2], batch[j, 3], batch[j, 4])
            dx, dy = f32(left) + HALF - batch[j, 0] + f32(x), f32(top) + HALF - batch[j, 1] + f32(y)
            weight, light, until = blend(light, until, dx, dy, conic, batch[j, 5], z, alpha_min, alpha_max, stop)
            red += weight * batch[j, 6]
            green += weight * batch[j, 7]
            blue += weight * batch[j, 8]
            far_off += weight * z
            if weight > ZERO:
                number = first - begin + j + 1
    if inside:
        at = pixel * background_stride
        colour[row, column, 0] = red + light * background[at]
        colour[row, column, 1] = green + light * background[at + 1]
        colour[row, column, 2] = blue + light * background[at + 2]
        transmittance[row, column] = light
        depth[row, column] = far_off
        stopped[row, column] = 1 if until > ZERO and until < INFINITE else 0
        stop_depth[row, column] = until if until > ZERO else INFINITE
        last[row, column] = number


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
    composite_tiles.launch(
        splats.records.device, len(bins.tiles), PIXELS, bins.tiles, bins.starts, bins.splat, splats.records,
        *flat_map(start_transmittance, 1.0, "raster.no_start", workspace),
        *flat_map(subtiles, 255, "raster.no_subtiles", workspace, torch.uint8),
        *flat_map(depth_range, 0.0, "raster.no_range", workspace),
        *flat_background(background, workspace),
        *cut_off(kernels),
        *(getattr(raster, f.name) for f in fields(raster)),
    )  # fmt: skip
    return raster
