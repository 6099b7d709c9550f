"""Tiles back to front: the gradient of compositing, over exactly the instances that the forward blended.

Each instance's gradient is written at its slot and then summed by splat in slot order, so that the result depends on
no thread. What the forward left of a pixel's transmittance is divided back, splat by splat.
"""

from __future__ import annotations

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.portable.arrays import array, flat_background, optional_map
from cuda_src.portable.compositing import (
    HELD,
    PLANE,
    PLANES,
    RANGES,
    SCRATCH,
    TILE_COST,
    cut_off,
    hide_out_of_range,
    load_ranges,
    rows_reached,
)
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import HALF, LARGEST, ZERO, f32, finite_or_zero, loop, piece
from cuda_src.portable.scalar_compositing import record_gradient, unblend
from cuda_src.portable.threads import run_ranges, weighted_ranges
from cuda_src.workspace import Workspace

# Planes of a tile's scratch; those of depth ranges follow as in the forward, then the sums of one instance.
_T, _BEHIND, _GRAD_RED, _GRAD_GREEN, _GRAD_BLUE, _GRAD_DEPTH, _END = (k * PLANE for k in range(7))


@piece
def _unblend_rows(state, sums, first, end, dx, dy, record, number, alpha_min, alpha_max, past_clamp):
    """`_blend_rows` undone; fills 10 sums, each of 16 lanes so that a row vectorises."""
    conic = (record[2], record[3], record[4])
    opacity, red, green, blue, depth = record[5], record[6], record[7], record[8], record[9]
    for j in range(layout.GRADIENT * TILE):
        sums[j] = ZERO
    for y in range(first, end):
        row = state[y * TILE :]
        above = dy + f32(y)
        for i in range(TILE):
            grad_red, grad_green = row[_GRAD_RED + i], row[_GRAD_GREEN + i]
            grad_blue, grad_depth = row[_GRAD_BLUE + i], row[_GRAD_DEPTH + i]
            beside = dx + f32(i)
            value = red * grad_red + green * grad_green + blue * grad_blue + depth * grad_depth
            row[_T + i], row[_BEHIND + i], grad_sigma, grad_opacity, weight = unblend(
                row[_T + i],
                row[_BEHIND + i],
                number < row[_END + i],
                beside,
                above,
                conic,
                opacity,
                value,
                alpha_min,
                alpha_max,
                past_clamp,
            )
            grad_x, grad_y = grad_sigma * beside, grad_sigma * above
            sums[i] += grad_x
            sums[TILE + i] += grad_y
            sums[2 * TILE + i] += grad_x * beside
            sums[3 * TILE + i] += grad_x * above
            sums[4 * TILE + i] += grad_y * above
            sums[5 * TILE + i] += grad_opacity
            sums[6 * TILE + i] += weight * grad_red
            sums[7 * TILE + i] += weight * grad_green
            sums[8 * TILE + i] += weight * grad_blue
            sums[9 * TILE + i] += weight * grad_depth


@piece
def _store_instance(sums, record, gradient):
    """Add up the lanes, in a fixed order, and turn the moments of dL/dsigma into the record's gradient."""
    for k in range(layout.GRADIENT):
        lanes = sums[k * TILE :]
        for half in (8, 4, 2, 1):
            for i in range(half):
                lanes[i] += lanes[i + half]
        gradient[k] = lanes[0]
    conic = (record[2], record[3], record[4])
    gradient[0], gradient[1], gradient[2], gradient[3], gradient[4] = record_gradient(
        conic, gradient[0], gradient[1], gradient[2], gradient[3], gradient[4]
    )


@piece
def _load_backward(
    state,
    top,
    left,
    transmittance,
    last,
    grad_colour,
    background,
    background_stride,
    grad_transmittance,
    grad_transmittance_stride,
    grad_depth,
    grad_depth_stride,
):
    """Fill the tile's planes; how many of its instances were blended at any pixel."""
    height, width = transmittance.shape
    blended = 0
    for k in range(RANGES):
        state[k] = ZERO
    for y in range(min(TILE, height - top)):
        for x in range(min(TILE, width - left)):
            k = y * TILE + x
            row, column = top + y, left + x
            pixel = row * width + column
            red, green, blue = grad_colour[row, column, 0], grad_colour[row, column, 1], grad_colour[row, column, 2]
            at = pixel * background_stride
            hidden = red * background[at] + green * background[at + 1] + blue * background[at + 2]
            hidden += grad_transmittance[pixel * grad_transmittance_stride]
            state[_T + k] = transmittance[row, column]
            state[_BEHIND + k] = transmittance[row, column] * hidden
            state[_GRAD_RED + k], state[_GRAD_GREEN + k], state[_GRAD_BLUE + k] = red, green, blue
            state[_GRAD_DEPTH + k] = grad_depth[pixel * grad_depth_stride]
            state[_END + k] = f32(last[row, column])
            blended = max(blended, last[row, column])
    return blended


@loop
def differentiate_tiles(
    lo,
    hi,
    first_row,
    tiles,
    starts,
    splat,
    slot,
    records,
    scratch,
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
    instances,
):
    """Tiles lo to hi of the list, from maps whose first row is that of tile row `first_row`."""
    height, width = transmittance.shape
    tiles_x = (width + TILE - 1) // TILE
    state = scratch[:PLANES]
    sums = scratch[PLANES:SCRATCH]
    for k in range(lo, hi):
        top, left = (tiles[k] // tiles_x - first_row) * TILE, (tiles[k] % tiles_x) * TILE
        rows = min(TILE, height - top)
        blended = _load_backward(
            state,
            top,
            left,
            transmittance,
            last,
            grad_colour,
            background,
            background_stride,
            grad_transmittance,
            grad_transmittance_stride,
            grad_depth,
            grad_depth_stride,
        )
        if ranged:
            load_ranges(state, top, left, height, width, depth_range)
        for i in range(starts[k] + blended, starts[k + 1]):
            instances[slot[i]] = ZERO
        for number in range(blended - 1, -1, -1):
            i = starts[k] + number
            record = records[splat[i]]
            dx, dy = f32(left) + HALF - record[0], f32(top + first_row * TILE) + HALF - record[1]
            first, end = rows_reached(record, alpha_min, dy, rows)
            if ranged:
                hide_out_of_range(state, _END, first, end, record[9])
            _unblend_rows(state, sums, first, end, dx, dy, record, f32(number), alpha_min, alpha_max, past_clamp)
            if ranged:
                for p in range(first * TILE, end * TILE):
                    state[_END + p] = state[HELD + p]
            _store_instance(sums, record, instances[slot[i]])


@loop
def _sum_instances(lo, hi, splat_starts, instances, gradients):
    for v in range(lo, hi):
        for k in range(layout.GRADIENT):
            total = ZERO
            for s in range(splat_starts[v], splat_starts[v + 1]):
                total += instances[s, k]
            gradients[v, k] = finite_or_zero(total)


def background_map(background: torch.Tensor | None, workspace: Workspace) -> tuple[np.ndarray, int]:
    """`flat_background` as an array."""
    flat, distance = flat_background(background, workspace)
    return flat.numpy(), distance


@by_device
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
    # This back end's own lists have both.
    assert bins.slot is not None
    assert bins.splat_starts is not None
    starts = array(bins.starts)
    ranges = weighted_ranges(starts, TILE_COST, kernels.threads)
    scratch = workspace.take("raster.scratch", (len(ranges), SCRATCH)).numpy()
    instances = workspace.take("raster.instance_gradients", (bins.instances, layout.GRADIENT)).numpy()
    arrays = (
        array(bins.tiles),
        starts,
        array(bins.splat),
        array(bins.slot),
        array(splats.records),
    )
    upstream = (
        array(raster.transmittance),
        array(raster.last),
        array(grad_colour),
        *background_map(background, workspace),
        *optional_map(grad_transmittance, 0.0, "raster.no_grad_transmittance", workspace),
        *optional_map(grad_depth, 0.0, "raster.no_grad_depth", workspace),
        *optional_map(depth_range, 0.0, "raster.no_range", workspace),
    )
    alpha_min, alpha_max, _ = cut_off(kernels)
    past_clamp = LARGEST if kernels.convention.clamp_gradient else alpha_max

    def work(chunk: int, lo: int, hi: int) -> None:
        differentiate_tiles(lo, hi, 0, *arrays, scratch[chunk], *upstream, alpha_min, alpha_max, past_clamp, instances)

    run_ranges(kernels.threads, ranges, work)

    gradients = workspace.take("raster.gradients", (splats.count, layout.GRADIENT))
    splat_starts, out = array(bins.splat_starts), gradients.numpy()
    run_ranges(
        kernels.threads,
        weighted_ranges(splat_starts, 2, kernels.threads),
        lambda _, lo, hi: _sum_instances(lo, hi, splat_starts, instances, out),
    )
    return gradients
