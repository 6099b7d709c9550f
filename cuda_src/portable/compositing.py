"""Tiles composited front to back, and back to front for the gradient.

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
from cuda_src.portable.scalar import HALF, LARGEST, ONE, ZERO, exact_sum, f32, finite_or_zero, loop, piece
from cuda_src.portable.scalar_compositing import blend, unblend
from cuda_src.portable.scalar_footprint import footprint_reach, half_extent
from cuda_src.portable.threads import run_ranges, weighted_ranges
from cuda_src.workspace import Workspace

_PLANE = TILE * TILE + TILE

# Planes of a tile's scratch in the forward pass, and in the backward pass.
_T, _ALIVE, _RED, _GREEN, _BLUE, _DEPTH, _LAST = (k * _PLANE for k in range(7))
_BEHIND, _GRAD_RED, _GRAD_GREEN, _GRAD_BLUE, _GRAD_DEPTH, _END = (k * _PLANE for k in range(1, 7))
_SUMS = 7 * _PLANE
_SCRATCH = _SUMS + layout.GRADIENT * TILE

_LIVENESS_INTERVAL = 16
"""Splats between two looks at which rows of the tile are still alive."""

_SLACK = f32(0.01)
"""Added to the reach of an ellipse, pixels, against rounding: rows too many cost time, a row too few an error."""

_TILE_COST = 24
"""What a tile costs besides its instances, in instances: balances the chunks of threads."""


@piece
def _rows_reached(record, alpha_min, dy, rows):
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
    for k in range(_SUMS):
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
    state = scratch[:_SUMS]
    living = scratch[_SUMS : _SUMS + TILE]
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
            first, end = _rows_reached(record, alpha_min, dy, rows)
            _blend_rows(state, living, first, end, dx, dy, record, f32(number + 1), alpha_min, alpha_max, stop)
        _store_forward(state, top, left, height, width, colour, transmittance, depth, stopped, last)


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
    a, b, c = record[2], record[3], record[4]
    x, y = gradient[0], gradient[1]
    gradient[0] = -(a * x + b * y)
    gradient[1] = -(b * x + c * y)
    gradient[2] *= HALF
    gradient[4] *= HALF


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
    for k in range(_SUMS):
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
def _differentiate_tiles(
    lo,
    hi,
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
    alpha_min,
    alpha_max,
    past_clamp,
    instances,
):
    height, width = transmittance.shape
    tiles_x = (width + TILE - 1) // TILE
    state = scratch[:_SUMS]
    sums = scratch[_SUMS:_SCRATCH]
    for k in range(lo, hi):
        top, left = (tiles[k] // tiles_x) * TILE, (tiles[k] % tiles_x) * TILE
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
        for i in range(starts[k] + blended, starts[k + 1]):
            instances[slot[i]] = ZERO
        for number in range(blended - 1, -1, -1):
            i = starts[k] + number
            record = records[splat[i]]
            dx, dy = f32(left) + HALF - record[0], f32(top) + HALF - record[1]
            first, end = _rows_reached(record, alpha_min, dy, rows)
            _unblend_rows(state, sums, first, end, dx, dy, record, f32(number), alpha_min, alpha_max, past_clamp)
            _store_instance(sums, record, instances[slot[i]])


@loop
def _sum_instances(lo, hi, splat_starts, instances, gradients):
    for v in range(lo, hi):
        for k in range(layout.GRADIENT):
            total = ZERO
            for s in range(splat_starts[v], splat_starts[v + 1]):
                total += instances[s, k]
            gradients[v, k] = finite_or_zero(total)


def _cut_off(kernels: KernelSet) -> tuple[np.float32, np.float32, np.float32]:
    """alpha_min, alpha_max, and the transmittance below which compositing stops."""
    convention = kernels.convention
    stop = f32(kernels.stop)
    if convention.stop_inclusive:
        # T <= stop is T < the next number.
        stop = np.nextafter(stop, f32(1))
    return f32(convention.alpha_min), f32(convention.alpha_max), stop


def _per_pixel(values: torch.Tensor | None, absent: float, name: str, workspace: Workspace) -> tuple[np.ndarray, int]:
    """A map [H, W] or its absence as one array and the distance of pixels in it (0: one value for all)."""
    if values is None:
        return workspace.take(name, (1,)).fill_(absent).numpy(), 0
    return values.detach().contiguous().view(-1).numpy(), 1


def _background(background: torch.Tensor | None, workspace: Workspace) -> tuple[np.ndarray, int]:
    if background is None:
        return workspace.zeros("raster.no_background", (3,)).numpy(), 0
    return background.detach().contiguous().view(-1).numpy(), 3 if background.dim() == 3 else 0


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
    starts = bins.starts.numpy()
    ranges = weighted_ranges(starts, _TILE_COST, kernels.threads)
    scratch = workspace.take("raster.scratch", (len(ranges), _SCRATCH)).numpy()
    arrays = (bins.tiles.numpy(), starts, bins.splat.numpy(), splats.records.detach().numpy())
    start = _per_pixel(start_transmittance, 1.0, "raster.no_start", workspace)
    outputs = tuple(t.numpy() for t in (raster.colour, raster.transmittance, raster.depth, raster.stopped, raster.last))
    cut_off = _cut_off(kernels)

    def work(chunk: int, lo: int, hi: int) -> None:
        _composite_tiles(lo, hi, *arrays, scratch[chunk], *start, *cut_off, *outputs)

    run_ranges(kernels.threads, ranges, work)
    return raster


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
) -> torch.Tensor:
    """See `cuda_src.operators.raster_backward`.

    The start transmittance is not needed: what the forward left is divided back.
    """
    starts = bins.starts.numpy()
    ranges = weighted_ranges(starts, _TILE_COST, kernels.threads)
    scratch = workspace.take("raster.scratch", (len(ranges), _SCRATCH)).numpy()
    instances = workspace.take("raster.instance_gradients", (bins.instances, layout.GRADIENT)).numpy()
    arrays = (
        bins.tiles.numpy(),
        starts,
        bins.splat.numpy(),
        bins.slot.numpy(),
        splats.records.detach().numpy(),
    )
    upstream = (
        raster.transmittance.detach().numpy(),
        raster.last.numpy(),
        grad_colour.detach().contiguous().numpy(),
        *_background(background, workspace),
        *_per_pixel(grad_transmittance, 0.0, "raster.no_grad_transmittance", workspace),
        *_per_pixel(grad_depth, 0.0, "raster.no_grad_depth", workspace),
    )
    alpha_min, alpha_max, _ = _cut_off(kernels)
    past_clamp = LARGEST if kernels.convention.clamp_gradient else alpha_max

    def work(chunk: int, lo: int, hi: int) -> None:
        _differentiate_tiles(lo, hi, *arrays, scratch[chunk], *upstream, alpha_min, alpha_max, past_clamp, instances)

    run_ranges(kernels.threads, ranges, work)

    gradients = workspace.take("raster.gradients", (splats.count, layout.GRADIENT))
    splat_starts, out = bins.splat_starts.numpy(), gradients.numpy()
    run_ranges(
        kernels.threads,
        weighted_ranges(splat_starts, 2, kernels.threads),
        lambda _, lo, hi: _sum_instances(lo, hi, splat_starts, instances, out),
    )
    return gradients
