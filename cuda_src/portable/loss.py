"""L1 + SSIM with its gradient: three passes over rows of pixels with separable windows.

1. `_average_rows`: windows along x of the image, the target, their squares and product.
2. `_differentiate_rows`: the same along y gives SSIM and its derivatives by the averages; windows along x of those.
3. `_gradient_rows`: windows along y of the derivatives, chained to the image; L1 added.

A row is 3 W interleaved colour values, so a window's taps are 3 apart. Planes have 5 rows more above and below the
image. Each pass computes only the columns that the listed tiles need (`_Spans`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cuda_src.camera import TILE
from cuda_src.operators import WHOLE_IMAGE, Halo, KernelSet, Loss, LossWindow
from cuda_src.portable.arrays import array
from cuda_src.portable.scalar import ONE, TWO, ZERO, f32, finite_or_zero, loop, piece
from cuda_src.portable.scalar_loss import REACH, SHIFT, W0, W1, W2, W3, W4, W5, byte_value, sign, ssim, window
from cuda_src.portable.threads import even_ranges, run_ranges
from cuda_src.workspace import Workspace

_PAD = 3 * REACH
_BLOCK = 192
"""Columns that the vertical windows take at a time; their sums lie in one small array at constant distances."""

_AVERAGES, _DERIVATIVES = 4, 3


@dataclass(frozen=True)
class _Spans:
    """Columns [lo, hi) of each image row, with 5 rows more above and below: each [H + 10, 2] int64.

    listed: those of the listed tiles. maps: where SSIM and its derivatives are needed. averages: where windows
    along x are. blurred: where windows along x of the derivatives are.
    """

    listed: np.ndarray
    maps: np.ndarray
    averages: np.ndarray
    blurred: np.ndarray


def _spread(spans: np.ndarray) -> np.ndarray:
    """Each row's span widened to the spans of the rows within the window's reach."""
    wide = spans.copy()
    for shift in range(1, REACH + 1):
        for to, origin in ((wide[shift:], spans[:-shift]), (wide[:-shift], spans[shift:])):
            np.minimum(to[:, 0], origin[:, 0], out=to[:, 0])
            np.maximum(to[:, 1], origin[:, 1], out=to[:, 1])
    return wide


def _spans(inside: np.ndarray, height: int, width: int, exact: bool) -> _Spans:
    """inside: [tiles_y, tiles_x], not zero where a tile is listed."""
    listed = np.empty((height + 2 * REACH, 2), dtype=np.int64)
    # Empty spans are the other way round, so that they vanish in minima and maxima.
    listed[:] = width, 0
    for row in range(inside.shape[0]):
        columns = np.flatnonzero(inside[row])
        if len(columns):
            lo = REACH + row * TILE
            listed[lo : min(lo + TILE, REACH + height)] = columns[0] * TILE, min((columns[-1] + 1) * TILE, width)
    maps = listed
    if exact:
        maps = _spread(listed)
        some = maps[:, 1] > maps[:, 0]
        maps[some, 0] = np.maximum(maps[some, 0] - REACH, 0)
        maps[some, 1] = np.minimum(maps[some, 1] + REACH, width)
        maps[:REACH] = maps[height + REACH :] = width, 0
    return _Spans(listed, maps, _spread(maps), _spread(listed))


@piece
def _window_row(padded, target):
    """Window along x of a row: `padded` starts 15 values before `target` and ends 15 after."""
    # Loops from 0 on views: a lower bound that might be negative would cost the vectorisation.
    for i in range(target.size):
        target[i] = window(
            padded[i] + padded[i + 30],
            padded[i + 3] + padded[i + 27],
            padded[i + 6] + padded[i + 24],
            padded[i + 9] + padded[i + 21],
            padded[i + 12] + padded[i + 18],
            padded[i + 15],
        )


@piece
def _add_rows(above, below, weight, sums):
    for j in range(above.size):
        sums[j] += weight * (above[j] + below[j])


@piece
def _window_column(plane, row, lo, hi, sums):
    """Window along y of columns lo to hi of a plane, centred on image row `row`, into `sums`."""
    centre = plane[row + 5, lo:hi]
    for j in range(centre.size):
        sums[j] = W0 * centre[j]
    _add_rows(plane[row + 4, lo:hi], plane[row + 6, lo:hi], W1, sums)
    _add_rows(plane[row + 3, lo:hi], plane[row + 7, lo:hi], W2, sums)
    _add_rows(plane[row + 2, lo:hi], plane[row + 8, lo:hi], W3, sums)
    _add_rows(plane[row + 1, lo:hi], plane[row + 9, lo:hi], W4, sums)
    _add_rows(plane[row, lo:hi], plane[row + 10, lo:hi], W5, sums)


@piece
def _load_values(image, target, x, y):
    """Shifted values of a piece of an image row."""
    for i in range(image.size):
        x[i] = image[i] - SHIFT
    for i in range(target.size):
        y[i] = byte_value(target[i]) - SHIFT


@piece
def _load_row(image, target, inside, cut, lo, hi, x, y):
    """Shifted values of columns lo - 15 to hi + 15 of an image row into padded rows: zeros beyond the image.

    cut: only listed tiles count as image.
    """
    x[lo : hi + 2 * _PAD] = -SHIFT
    y[lo : hi + 2 * _PAD] = -SHIFT
    lo, hi = max(lo - _PAD, 0), min(hi + _PAD, image.size)
    if cut:
        for tile in range(inside.size):
            if inside[tile]:
                left, right = 3 * TILE * tile, min(3 * TILE * (tile + 1), image.size)
                _load_values(image[left:right], target[left:right], x[left + _PAD :], y[left + _PAD :])
    else:
        _load_values(image[lo:hi], target[lo:hi], x[lo + _PAD :], y[lo + _PAD :])


@piece
def _multiply(x, y, squares, products):
    for i in range(x.size):
        squares[i] = x[i] * x[i] + y[i] * y[i]
    for i in range(x.size):
        products[i] = x[i] * y[i]


@loop
def _average_rows(lo, hi, image, target, inside, cut, spans, scratch, planes):
    height = image.shape[0]
    x, y, squares, products = scratch[0], scratch[1], scratch[2], scratch[3]
    for row in range(lo - REACH, hi - REACH):
        first, end = 3 * spans[row + REACH, 0], 3 * spans[row + REACH, 1]
        if end <= first:
            continue
        padded = slice(first, end + 2 * _PAD)
        if row >= 0 and row < height:
            _load_row(image[row], target[row], inside[row // TILE], cut, first, end, x, y)
        else:
            x[padded] = -SHIFT
            y[padded] = -SHIFT
        _multiply(x[padded], y[padded], squares[padded], products[padded])
        for k in range(_AVERAGES):
            _window_row(scratch[k, padded], planes[k, row + REACH, first:end])


@piece
def _ssim_block(sums, n):
    """SSIM and derivatives of n columns in place of their averages: the four parts of `sums`."""
    for j in range(n):
        sums[j], sums[_BLOCK + j], sums[2 * _BLOCK + j], sums[3 * _BLOCK + j] = ssim(
            sums[j], sums[_BLOCK + j], sums[2 * _BLOCK + j], sums[3 * _BLOCK + j]
        )


@piece
def _scale(values, factors, target):
    for j in range(values.size):
        target[j] = values[j] * factors[j]


@piece
def _load_weights(mask, masked, row, weights):
    """Weight of each colour value of one row: its pixel's mask."""
    if masked:
        for column in range(mask.shape[1]):
            weight = byte_value(mask[row, column])
            for colour in range(3):
                weights[3 * column + colour] = weight
    else:
        weights[:] = ONE


@piece
def _listed_sums(image, target, row, inside, weights, values):
    """Weighted sums of |x - y| and SSIM over the listed pixels of one row."""
    l1, similarity = ZERO, ZERO
    for tile in range(inside.shape[1]):
        if inside[row // TILE, tile]:
            for i in range(3 * TILE * tile, min(3 * TILE * (tile + 1), image.shape[1])):
                l1 += weights[i] * abs(image[row, i] - byte_value(target[row, i]))
                similarity += weights[i] * values[i]
    return l1, similarity


@loop
def _differentiate_rows(
    lo, hi, image, target, mask, masked, inside, cut, spans, needed, scratch, sums, planes, derivatives, totals
):
    values = image.shape[1]
    weights, similarity = scratch[3], scratch[4]
    for row in range(lo - REACH, hi - REACH):
        first, end = 3 * spans[row + REACH, 0], 3 * spans[row + REACH, 1]
        left, right = 3 * needed[row + REACH, 0], 3 * needed[row + REACH, 1]
        if right <= left and end <= first:
            continue
        for k in range(_DERIVATIVES):
            scratch[k, :] = ZERO
        if end > first:
            _load_weights(mask, masked, row, weights)
            for at in range(first, end, _BLOCK):
                n = min(_BLOCK, end - at)
                for k in range(_AVERAGES):
                    _window_column(planes[k], row, at, at + n, sums[k * _BLOCK : k * _BLOCK + n])
                _ssim_block(sums, n)
                similarity[at : at + n] = sums[:n]
                for k in range(_DERIVATIVES):
                    part = sums[(k + 1) * _BLOCK : (k + 1) * _BLOCK + n]
                    _scale(part, weights[at : at + n], scratch[k, at + _PAD : at + _PAD + n])
            if cut:
                for tile in range(inside.shape[1]):
                    if not inside[row // TILE, tile]:
                        for k in range(_DERIVATIVES):
                            scratch[k, 3 * TILE * tile + _PAD : min(3 * TILE * (tile + 1), values) + _PAD] = ZERO
            totals[row, 0], totals[row, 1] = _listed_sums(image, target, row, inside, weights, similarity)
        for k in range(_DERIVATIVES):
            _window_row(scratch[k, left : right + 2 * _PAD], derivatives[k, row + REACH, left:right])


@piece
def _chain_block(image, target, weights, sums, l1_scale, ssim_scale, gradient):
    for j in range(image.size):
        x, y = image[j], byte_value(target[j])
        by_ssim = sums[j] + TWO * (x - SHIFT) * sums[_BLOCK + j] + (y - SHIFT) * sums[2 * _BLOCK + j]
        by_l1 = weights[j] * sign(x - y)
        gradient[j] = finite_or_zero(weights[j] * (l1_scale * by_l1 + ssim_scale * by_ssim))


@loop
def _gradient_rows(
    lo, hi, image, target, mask, masked, inside, derivatives, scratch, sums, l1_scale, ssim_scale, gradient
):
    values = image.shape[1]
    weights = scratch[3]
    for row in range(lo, hi):
        _load_weights(mask, masked, row, weights)
        first = 0
        while first < values:
            # A run of listed tiles, at most a block long.
            end = first
            while end < values and end - first < _BLOCK and inside[row // TILE, end // (3 * TILE)]:
                end = min(end + 3 * TILE, values)
            if end == first:
                first += 3 * TILE
                continue
            for k in range(_DERIVATIVES):
                _window_column(derivatives[k], row, first, end, sums[k * _BLOCK : k * _BLOCK + end - first])
            _chain_block(
                image[row, first:end],
                target[row, first:end],
                weights[first:end],
                sums,
                l1_scale,
                ssim_scale,
                gradient[row, first:end],
            )
            first = end


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
    """See `cuda_src.operators.l1_ssim`."""
    height, width = target.shape[:2]
    threads = kernels.threads
    grid = (-(-height // TILE), -(-width // TILE))
    whole = tiles is None
    inside = workspace.take("loss.inside", grid, torch.uint8).fill_(1 if whole else 0)
    if tiles is not None:
        inside.view(-1)[tiles.long()] = 1
    cut = halo == "none" and not whole
    spans = _spans(inside.numpy(), height, width, not cut)

    rows = even_ranges(height + 2 * REACH, threads, least=8)
    padded = 3 * width + 2 * _PAD
    scratch = workspace.take("loss.rows", (len(rows), 5, padded)).numpy()
    sums = workspace.take("loss.sums", (len(rows), _AVERAGES * _BLOCK)).numpy()
    planes = workspace.take("loss.averages", (_AVERAGES, height + 2 * REACH, 3 * width)).numpy()
    derivatives = workspace.take("loss.derivatives", (_DERIVATIVES, height + 2 * REACH, 3 * width)).numpy()
    totals = workspace.zeros("loss.totals", (height, 2))
    gradient = (workspace.take if whole else workspace.zeros)("loss.gradient", (height, width, 3))
    x = array(image).reshape(height, 3 * width)
    y = array(target).reshape(height, 3 * width)
    m = array(workspace.zeros("loss.no_mask", (1, 1), torch.uint8) if mask is None else mask)
    listed = inside.numpy()

    run_ranges(
        threads,
        rows,
        lambda c, lo, hi: _average_rows(lo, hi, x, y, listed, cut, spans.averages, scratch[c], planes),
    )
    run_ranges(
        threads,
        rows,
        lambda c, lo, hi: _differentiate_rows(
            lo,
            hi,
            x,
            y,
            m,
            mask is not None,
            listed,
            cut,
            spans.maps,
            spans.blurred,
            scratch[c],
            sums[c],
            planes,
            derivatives,
            totals.numpy(),
        ),
    )
    l1_scale, ssim_scale = f32((1 - ssim_weight) / (3 * height * width)), f32(-ssim_weight / (3 * height * width))
    out = gradient.view(height, 3 * width).numpy()
    run_ranges(
        threads,
        even_ranges(height, threads, least=8),
        lambda c, lo, hi: _gradient_rows(
            lo, hi, x, y, m, mask is not None, listed, derivatives, scratch[c], sums[c], l1_scale, ssim_scale, out
        ),
    )
    return _loss(totals, listed, mask, height, width, ssim_weight, gradient)


def _loss(
    totals: torch.Tensor,
    inside: np.ndarray,
    mask: torch.Tensor | None,
    height: int,
    width: int,
    ssim_weight: float,
    gradient: torch.Tensor,
) -> Loss:
    """Rows' sums to the region's share of the image's mean."""
    l1, similarity = (totals.sum(dim=0, dtype=torch.float64) / (3 * height * width)).unbind()
    pixels = np.repeat(np.repeat(inside, TILE, axis=0), TILE, axis=1)[:height, :width]
    weight = pixels.sum() if mask is None else (pixels * mask.numpy().astype(np.int64)).sum() / 255
    share = float(weight) / (height * width)
    value = (1 - ssim_weight) * l1 + ssim_weight * (share - similarity)
    return Loss(value.float(), l1.float(), similarity.float(), gradient)
