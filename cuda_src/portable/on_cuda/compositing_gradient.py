"""Tiles back to front: the gradient of compositing, over exactly the instances that the forward blended.

A block a tile, a thread a pixel. What the pixels of a warp have to say of a splat is summed by the warp and added to
the splat atomically, so that the last bit varies with the order of tiles. What the forward left of a pixel's
transmittance is divided back, splat by splat.
"""

from __future__ import annotations

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.portable.arrays import flat_background, flat_map
from cuda_src.portable.compositing import cut_off
from cuda_src.portable.on_cuda.compositing import DRAWN, PIXELS
from cuda_src.portable.on_cuda.runtime import blocks_for, cuda, kernel, leads_warp, warp_any, warp_sum
from cuda_src.portable.scalar import HALF, INFINITE, LARGEST, ZERO, f32, finite_or_zero
from cuda_src.portable.scalar_compositing import record_gradient, unblend
from cuda_src.workspace import Workspace

_THREADS = 128
i32 = np.int32


@kernel
def differentiate_tiles(
    tiles,
    starts,
    splat,
    records,
    transmittance,
    last,
    grad_colour,
    background,
    background_stride,
    grad_transmittance,
    grad_transmittance_stride,
    grad_depth,
    grad_depth_stride,
    depth_range,
    ranged,
    alpha_min,
    alpha_max,
    past_clamp,
    sums,
):
    """sums: [V, GRADIENT], added to: moments of dL/dsigma (`record_gradient`), then as in a splat's gradient."""
    batch = cuda.shared.array((PIXELS, DRAWN), f32)
    owners = cuda.shared.array(PIXELS, i32)
    most = cuda.shared.array(1, i32)
    height, width = transmittance.shape
    tiles_x = (width + TILE - 1) // TILE
    thread, k = cuda.threadIdx.x, cuda.blockIdx.x
    y, x = thread // TILE, thread % TILE
    top, left = tiles[k] // tiles_x * TILE, tiles[k] % tiles_x * TILE
    row, column = top + y, left + x
    inside = row < height and column < width
    pixel = row * width + column
    light, behind, near, far = ZERO, ZERO, -INFINITE, INFINITE
    grad_red, grad_green, grad_blue, grad_z = ZERO, ZERO, ZERO, ZERO
    own = 0
    if thread == 0:
        most[0] = 0
    cuda.syncthreads()
    if inside:
        red, green, blue = grad_colour[row, column, 0], grad_colour[row, column, 1], grad_colour[row, column, 2]
        at = pixel * background_stride
        hidden = red * background[at] + green * background[at + 1] + blue * background[at + 2]
        hidden += grad_transmittance[pixel * grad_transmittance_stride]
        light = transmittance[row, column]
        behind = light * hidden
        grad_red, grad_green, grad_blue = red, green, blue
        grad_z = grad_depth[pixel * grad_depth_stride]
        if ranged:
            near, far = depth_range[2 * pixel], depth_range[2 * pixel + 1]
        own = last[row, column]
        cuda.atomic.max(most, 0, last[row, column])
    cuda.syncthreads()
    for end in range(most[0], 0, -PIXELS):
        first = max(end - PIXELS, 0)
        # Nobody reads the batch before any more.
        cuda.syncthreads()
        if first + thread < end:
            owner = splat[starts[k] + first + thread]
            owners[thread] = owner
            for c in range(DRAWN):
                batch[thread, c] = records[owner, c]
        cuda.syncthreads()
        for j in range(end - first - 1, -1, -1):
            z = batch[j, 9]
            blended = first + j < own and near <= z and z < far
            if not warp_any(blended):
                continue
            conic = (batch[j, 2], batch[j, 3], batch[j, 4])
            dx, dy = f32(left) + HALF - batch[j, 0] + f32(x), f32(top) + HALF - batch[j, 1] + f32(y)
            value = batch[j, 6] * grad_red + batch[j, 7] * grad_green + batch[j, 8] * grad_blue + z * grad_z
            light, behind, grad_sigma, grad_opacity, weight = unblend(
                light, behind, blended, dx, dy, conic, batch[j, 5], value, alpha_min, alpha_max, past_clamp
            )
            if not warp_any(weight > ZERO or grad_opacity != ZERO):
                continue
            grad_x, grad_y = grad_sigma * dx, grad_sigma * dy
            sum_x, sum_y = warp_sum(grad_x), warp_sum(grad_y)
            sum_xx, sum_xy, sum_yy = warp_sum(grad_x * dx), warp_sum(grad_x * dy), warp_sum(grad_y * dy)
            sum_opacity = warp_sum(grad_opacity)
            sum_red, sum_green = warp_sum(weight * grad_red), warp_sum(weight * grad_green)
            sum_blue, sum_z = warp_sum(weight * grad_blue), warp_sum(weight * grad_z)
            if leads_warp():
                cuda.atomic.add(sums, (owners[j], 0), sum_x)
                cuda.atomic.add(sums, (owners[j], 1), sum_y)
                cuda.atomic.add(sums, (owners[j], 2), sum_xx)
                cuda.atomic.add(sums, (owners[j], 3), sum_xy)
                cuda.atomic.add(sums, (owners[j], 4), sum_yy)
                cuda.atomic.add(sums, (owners[j], 5), sum_opacity)
                cuda.atomic.add(sums, (owners[j], 6), sum_red)
                cuda.atomic.add(sums, (owners[j], 7), sum_green)
                cuda.atomic.add(sums, (owners[j], 8), sum_blue)
                cuda.atomic.add(sums, (owners[j], 9), sum_z)


@kernel
def finish_gradients(records, sums):
    """Turn a splat's sums into its gradient, in their place."""
    v = cuda.grid(1)
    if v < sums.shape[0]:
        g = sums[v]
        conic = (records[v, 2], records[v, 3], records[v, 4])
        g[0], g[1], g[2], g[3], g[4] = record_gradient(conic, g[0], g[1], g[2], g[3], g[4])
        for c in range(layout.GRADIENT):
            g[c] = finite_or_zero(g[c])


def raster_backward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    raster: Raster,
    camera: Camera,
    grad_colour: torch.Tensor,
    workspace: Workspace,
    background: torch.Tensor | None,
    grad_transmittance: torch.Tensor | None,
    grad_depth: torch.Tensor | None,
    start_transmittance: torch.Tensor | None,
    depth_range: torch.Tensor | None,
) -> torch.Tensor:
    """See `cuda_src.operators.raster_backward`.

    The start transmittance is not needed: what the forward left is divided back.
    """
    device = splats.records.device
    gradients = workspace.zeros("raster.gradients", (splats.count, layout.GRADIENT))
    alpha_min, alpha_max, _ = cut_off(kernels)
    past_clamp = LARGEST if kernels.convention.clamp_gradient else alpha_max
    differentiate_tiles.launch(
        device, len(bins.tiles), PIXELS, bins.tiles, bins.starts, bins.splat, splats.records,
        raster.transmittance, raster.last, grad_colour.detach(),
        *flat_background(background, workspace),
        *flat_map(grad_transmittance, 0.0, "raster.no_grad_transmittance", workspace),
        *flat_map(grad_depth, 0.0, "raster.no_grad_depth", workspace),
        *flat_map(depth_range, 0.0, "raster.no_range", workspace),
        alpha_min, alpha_max, past_clamp, gradients,
    )  # fmt: skip
    finish_gradients.launch(device, blocks_for(splats.count, _THREADS), _THREADS, splats.records, gradients)
    return gradients
