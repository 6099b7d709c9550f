"""L1 + SSIM with its gradient: a block a tile, a thread a pixel, separable windows through shared memory.

1. `differentiate_pixels`: windows over the image, the target, their squares and product give SSIM and its derivatives
   by those averages.
2. `chain_pixels`: windows over the derivatives, chained to the image; L1 added.

Windows that end at blocks of 32 x 32 (`LossWindow("tile")`) are the same with fewer taps.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from cuda_src.camera import TILE
from cuda_src.operators import LOSS_BLOCK, WHOLE_IMAGE, Halo, KernelSet, Loss, LossWindow
from cuda_src.portable.loss_blocks import INVERSE
from cuda_src.portable.on_cuda.runtime import cuda, kernel
from cuda_src.portable.scalar import ONE, ZERO, f32, piece
from cuda_src.portable.scalar_loss import REACH, SHIFT, TAPS, byte_value, loss_gradient, ssim
from cuda_src.workspace import Workspace

_PIXELS = TILE * TILE
_SPAN = TILE + 2 * REACH
"""Side of a tile with its halo, pixels."""
_TAPS = 2 * REACH + 1
_ENDLESS = 1 << 30


@piece
def _block_span(at, size, tiled, offset):
    """Pixels [lo, hi) along one axis that the window of pixel `at` may see; all of them unless `tiled`."""
    if not tiled:
        return -_ENDLESS, _ENDLESS
    lo = (at + offset) // LOSS_BLOCK * LOSS_BLOCK - offset
    return max(lo, 0), min(lo + LOSS_BLOCK, size)


@piece
def _windowed(line, lo, hi, taps):
    """The window's sum of 11 values, of which those at positions [lo, hi) count."""
    total = ZERO
    for k in range(max(lo, 0), min(hi, _TAPS)):
        total += taps[k] * line[k]
    return total


@kernel
def differentiate_pixels(
    visited, image, target, mask, masked, listed, cut, tiled, offset_x, offset_y, taps, inverse, derivatives, totals
):
    """Fill derivatives [9, H, W] of the visited tiles, and by tile the listed ones' weighted sums of L1 and SSIM.

    listed: [tiles of the image] uint8, not zero where a tile counts. cut: only listed tiles count as image.
    """
    planes = cuda.shared.array((4, _SPAN, _SPAN), f32)
    rows = cuda.shared.array((4, _SPAN, TILE), f32)
    sums = cuda.shared.array((2, _PIXELS), f32)
    height, width = image.shape[0], image.shape[1]
    tiles_x = (width + TILE - 1) // TILE
    thread, tile = cuda.threadIdx.x, visited[cuda.blockIdx.x]
    y, x = thread // TILE, thread % TILE
    top, left = tile // tiles_x * TILE, tile % tiles_x * TILE
    row, column = top + y, left + x
    inside = row < height and column < width
    first_row, end_row = _block_span(row, height, tiled, offset_y)
    weight, factor = ZERO, ONE
    if inside:
        weight = byte_value(mask[row, column]) if masked else ONE
        if tiled:
            first, end = _block_span(column, width, tiled, offset_x)
            factor = inverse[end - first, column - first] * inverse[end_row - first_row, row - first_row]
    l1, similarity = ZERO, ZERO
    for colour in range(3):
        for at in range(thread, _SPAN * _SPAN, _PIXELS):
            i, j = at // _SPAN, at % _SPAN
            r, c = top - REACH + i, left - REACH + j
            known = r >= 0 and r < height and c >= 0 and c < width
            if known and cut:
                known = listed[r // TILE * tiles_x + c // TILE] != 0
            value, truth = -SHIFT, -SHIFT
            if known:
                value, truth = image[r, c, colour] - SHIFT, byte_value(target[r, c, colour]) - SHIFT
            planes[0, i, j], planes[1, i, j] = value, truth
            planes[2, i, j], planes[3, i, j] = value * value + truth * truth, value * truth
        cuda.syncthreads()
        for at in range(thread, _SPAN * TILE, _PIXELS):
            i, j = at // TILE, at % TILE
            first, end = _block_span(left + j, width, tiled, offset_x)
            first, end = first - (left + j - REACH), end - (left + j - REACH)
            for k in range(4):
                rows[k, i, j] = _windowed(planes[k, i, j:], first, end, taps)
        cuda.syncthreads()
        if inside:
            first, end = first_row - (row - REACH), end_row - (row - REACH)
            value, by_mean, by_squares, by_product = ssim(
                factor * _windowed(rows[0, y:, x], first, end, taps),
                factor * _windowed(rows[1, y:, x], first, end, taps),
                factor * _windowed(rows[2, y:, x], first, end, taps),
                factor * _windowed(rows[3, y:, x], first, end, taps),
            )
            # A window's sum was multiplied by the factor: so is what flows back through it.
            derivatives[3 * colour, row, column] = weight * factor * by_mean
            derivatives[3 * colour + 1, row, column] = weight * factor * by_squares
            derivatives[3 * colour + 2, row, column] = weight * factor * by_product
            if listed[tile]:
                l1 += weight * abs(image[row, column, colour] - byte_value(target[row, column, colour]))
                similarity += weight * value
    sums[0, thread], sums[1, thread] = l1, similarity
    half = _PIXELS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            sums[0, thread] += sums[0, thread + half]
            sums[1, thread] += sums[1, thread + half]
        half //= 2
    if thread == 0:
        totals[tile, 0], totals[tile, 1] = sums[0, 0], sums[1, 0]


@kernel
def chain_pixels(
    tiles,
    image,
    target,
    mask,
    masked,
    listed,
    cut,
    tiled,
    offset_x,
    offset_y,
    taps,
    derivatives,
    l1_scale,
    ssim_scale,
    gradient,
):
    planes = cuda.shared.array((3, _SPAN, _SPAN), f32)
    rows = cuda.shared.array((3, _SPAN, TILE), f32)
    height, width = image.shape[0], image.shape[1]
    tiles_x = (width + TILE - 1) // TILE
    thread, tile = cuda.threadIdx.x, tiles[cuda.blockIdx.x]
    y, x = thread // TILE, thread % TILE
    top, left = tile // tiles_x * TILE, tile % tiles_x * TILE
    row, column = top + y, left + x
    inside = row < height and column < width
    first_row, end_row = _block_span(row, height, tiled, offset_y)
    weight = ZERO
    if inside:
        weight = byte_value(mask[row, column]) if masked else ONE
    for colour in range(3):
        for at in range(thread, _SPAN * _SPAN, _PIXELS):
            i, j = at // _SPAN, at % _SPAN
            r, c = top - REACH + i, left - REACH + j
            known = r >= 0 and r < height and c >= 0 and c < width
            if known and cut:
                known = listed[r // TILE * tiles_x + c // TILE] != 0
            for k in range(3):
                planes[k, i, j] = derivatives[3 * colour + k, r, c] if known else ZERO
        cuda.syncthreads()
        for at in range(thread, _SPAN * TILE, _PIXELS):
            i, j = at // TILE, at % TILE
            first, end = _block_span(left + j, width, tiled, offset_x)
            first, end = first - (left + j - REACH), end - (left + j - REACH)
            for k in range(3):
                rows[k, i, j] = _windowed(planes[k, i, j:], first, end, taps)
        cuda.syncthreads()
        if inside:
            first, end = first_row - (row - REACH), end_row - (row - REACH)
            gradient[row, column, colour] = loss_gradient(
                image[row, column, colour],
                byte_value(target[row, column, colour]),
                weight,
                _windowed(rows[0, y:, x], first, end, taps),
                _windowed(rows[1, y:, x], first, end, taps),
                _windowed(rows[2, y:, x], first, end, taps),
                l1_scale,
                ssim_scale,
            )


@kernel
def l1_pixels(tiles, image, target, mask, masked, l1_scale, gradient, totals):
    """L1 alone, and its gradient; the sums by tile are added to."""
    height, width = image.shape[0], image.shape[1]
    tiles_x = (width + TILE - 1) // TILE
    thread, tile = cuda.threadIdx.x, tiles[cuda.blockIdx.x]
    row, column = tile // tiles_x * TILE + thread // TILE, tile % tiles_x * TILE + thread % TILE
    if row < height and column < width:
        weight = byte_value(mask[row, column]) if masked else ONE
        total = ZERO
        for colour in range(3):
            value, truth = image[row, column, colour], byte_value(target[row, column, colour])
            total += weight * abs(value - truth)
            gradient[row, column, colour] = loss_gradient(value, truth, weight, ZERO, ZERO, ZERO, l1_scale, ZERO)
        cuda.atomic.add(totals, (tile, 0), total)


@cache
def _window_tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The window's taps, [11], and by length of a block and position in it 1 / the taps' sum, [33, 32]."""
    taps = np.array(TAPS, dtype=np.float32)
    return torch.from_numpy(np.concatenate([taps[:0:-1], taps])).to(device), torch.from_numpy(INVERSE).to(device)


def _reached(listed: torch.Tensor) -> torch.Tensor:
    """Tiles with a pixel in the window of a listed one: those and their neighbours, [n] int32."""
    near = F.max_pool2d(listed.float()[None, None], 3, stride=1, padding=1)
    return near.view(-1).nonzero()[:, 0].to(torch.int32)


def _share(listed: torch.Tensor, mask: torch.Tensor | None, height: int, width: int) -> torch.Tensor:
    """Mask-weighted share of the image that listed tiles hold, 0-d float64."""
    pixels = listed.repeat_interleave(TILE, dim=0).repeat_interleave(TILE, dim=1)[:height, :width]
    weight = pixels.sum() if mask is None else (pixels * mask.to(torch.int64)).sum() / 255
    return weight.to(torch.float64) / (height * width)


def l1_ssim(
    kernels: KernelSet,
    image: torch.Tensor,
    target: torch.Tensor,
    workspace: Workspace,
    mask: torch.Tensor | None,
    tiles: torch.Tensor | None,
    halo: Halo,
    ssim_weight: float,
    window: LossWindow = WHOLE_IMAGE,
) -> Loss:
    """See `cuda_src.operators.l1_ssim`. With tiles given, the host reads how many their windows reach."""
    (height, width), device = target.shape[:2], target.device
    grid = (-(-height // TILE), -(-width // TILE))
    listed = workspace.take("loss.listed", grid, torch.uint8).fill_(1 if tiles is None else 0)
    if tiles is None:
        own = visited = torch.arange(listed.numel(), dtype=torch.int32, device=device)
    else:
        own = tiles.to(device)
        listed.view(-1)[own.long()] = 1
        visited = own if halo == "none" else _reached(listed)
    weight = 0.0 if window.kind == "l1" else ssim_weight
    scales = f32((1 - weight) / (3 * height * width)), f32(-weight / (3 * height * width))
    gradient = (workspace.take if tiles is None else workspace.zeros)("loss.gradient", (height, width, 3))
    totals = workspace.zeros("loss.totals", (listed.numel(), 2))
    no_mask = workspace.zeros("loss.no_mask", (1, 1), torch.uint8)
    pictures = image.detach(), target, no_mask if mask is None else mask, mask is not None
    if window.kind == "l1":
        l1_pixels.launch(device, len(own), _PIXELS, own, *pictures, scales[0], gradient, totals)
    else:
        taps, inverse = _window_tables(device)
        region = listed.view(-1), halo == "none" and tiles is not None, window.kind == "tile", *window.offset, taps
        derivatives = workspace.take("loss.derivatives", (9, height, width))
        differentiate_pixels.launch(
            device, len(visited), _PIXELS, visited, *pictures, *region, inverse, derivatives, totals
        )
        chain_pixels.launch(device, len(own), _PIXELS, own, *pictures, *region, derivatives, *scales, gradient)
    l1, similarity = (totals.sum(dim=0, dtype=torch.float64) / (3 * height * width)).unbind()
    value = (1 - weight) * l1 + weight * (_share(listed, mask, height, width) - similarity)
    return Loss(value.float(), l1.float(), similarity.float(), gradient)
