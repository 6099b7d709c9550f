"""L1 + SSIM with its gradient on rows of pixels: three passes with separable windows.

1. `average_rows`: windows along x of the image, the target, their squares and product.
2. `differentiate_rows`: the same along y gives SSIM and its derivatives by the averages; windows along x of those.
3. `gradient_rows`: windows along y of the derivatives, chained to the image; L1 added.

A row is 3 W interleaved colour values, so a window's taps are 3 apart. Planes have 5 rows more above and below the
image. Each pass computes only the columns that the listed tiles need (`Spans`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cuda_src.camera import TILE
from cuda_src.portable.scalar import ONE, ZERO, finite_or_zero, loop, piece
from cuda_src.portable.scalar_loss import (
    REACH,
    SHIFT,
    W0,
    W1,
    W2,
    W3,
    W4,
    W5,
    byte_value,
    loss_gradient,
    sign,
    ssim,
    window,
)

PAD = 3 * REACH
COLUMNS = 192
"""Columns that the vertical windows take at a time; their sums lie in one small array at constant distances."""

AVERAGES, DERIVATIVES = 4, 3


@dataclass(frozen=True)
class Spans:
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


def needed_spans(inside: np.ndarray, height: int, width: int, exact: bool) -> Spans:
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
    return Spans(listed, maps, _spread(maps), _spread(listed))


@piece
def window_row(padded, target):
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
def window_column(plane, row, lo, hi, sums):
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
def load_values(image, target, x, y):
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
    x[lo : hi + 2 * PAD] = -SHIFT
    y[lo : hi + 2 * PAD] = -SHIFT
    lo, hi = max(lo - PAD, 0), min(hi + PAD, image.size)
    if cut:
        for tile in range(inside.size):
            if inside[tile]:
                left, right = 3 * TILE * tile, min(3 * TILE * (tile + 1), image.size)
                load_values(image[left:right], target[left:right], x[left + PAD :], y[left + PAD :])
    else:
        load_values(image[lo:hi], target[lo:hi], x[lo + PAD :], y[lo + PAD :])


@piece
def multiply(x, y, squares, products):
    for i in range(x.size):
        squares[i] = x[i] * x[i] + y[i] * y[i]
    for i in range(x.size):
        products[i] = x[i] * y[i]


@loop
def average_rows(lo, hi, image, target, inside, cut, spans, scratch, planes):
    height = image.shape[0]
    x, y, squares, products = scratch[0], scratch[1], scratch[2], scratch[3]
    for row in range(lo - REACH, hi - REACH):
        first, end = 3 * spans[row + REACH, 0], 3 * spans[row + REACH, 1]
        if end <= first:
            continue
        padded = slice(first, end + 2 * PAD)
        if row >= 0 and row < height:
            _load_row(image[row], target[row], inside[row // TILE], cut, first, end, x, y)
        else:
            x[padded] = -SHIFT
            y[padded] = -SHIFT
        multiply(x[padded], y[padded], squares[padded], products[padded])
        for k in range(AVERAGES):
            window_row(scratch[k, padded], planes[k, row + REACH, first:end])


@piece
def ssim_block(sums, n):
    """SSIM and derivatives of n columns in place of their averages: the four parts of `sums`."""
    for j in range(n):
        sums[j], sums[COLUMNS + j], sums[2 * COLUMNS + j], sums[3 * COLUMNS + j] = ssim(
            sums[j], sums[COLUMNS + j], sums[2 * COLUMNS + j], sums[3 * COLUMNS + j]
        )


@piece
def scale(values, factors, target):
    for j in range(values.size):
        target[j] = values[j] * factors[j]


@piece
def load_weights(mask, masked, row, weights):
    """Weight of each colour value of one row: its pixel's mask."""
    if masked:
        for column in range(mask.shape[1]):
            weight = byte_value(mask[row, column])
            for colour in range(3):
                weights[3 * column + colour] = weight
    else:
        weights[:] = ONE


@piece
def listed_sums(image, target, row, inside, weights, values):
    """Weighted sums of |x - y| and SSIM over the listed pixels of one row."""
    l1, similarity = ZERO, ZERO
    for tile in range(inside.shape[1]):
        if inside[row // TILE, tile]:
            for i in range(3 * TILE * tile, min(3 * TILE * (tile + 1), image.shape[1])):
                l1 += weights[i] * abs(image[row, i] - byte_value(target[row, i]))
                similarity += weights[i] * values[i]
    return l1, similarity


@loop
def differentiate_rows(
    lo, hi, image, target, mask, masked, inside, cut, spans, needed, scratch, sums, planes, derivatives, totals
):
    values = image.shape[1]
    weights, similarity = scratch[3], scratch[4]
    for row in range(lo - REACH, hi - REACH):
        first, end = 3 * spans[row + REACH, 0], 3 * spans[row + REACH, 1]
        left, right = 3 * needed[row + REACH, 0], 3 * needed[row + REACH, 1]
        if right <= left and end <= first:
            continue
        for k in range(DERIVATIVES):
            scratch[k, :] = ZERO
        if end > first:
            load_weights(mask, masked, row, weights)
            for at in range(first, end, COLUMNS):
                n = min(COLUMNS, end - at)
                for k in range(AVERAGES):
                    window_column(planes[k], row, at, at + n, sums[k * COLUMNS : k * COLUMNS + n])
                ssim_block(sums, n)
                similarity[at : at + n] = sums[:n]
                for k in range(DERIVATIVES):
                    part = sums[(k + 1) * COLUMNS : (k + 1) * COLUMNS + n]
                    scale(part, weights[at : at + n], scratch[k, at + PAD : at + PAD + n])
            if cut:
                for tile in range(inside.shape[1]):
                    if not inside[row // TILE, tile]:
                        for k in range(DERIVATIVES):
                            scratch[k, 3 * TILE * tile + PAD : min(3 * TILE * (tile + 1), values) + PAD] = ZERO
            totals[row, 0], totals[row, 1] = listed_sums(image, target, row, inside, weights, similarity)
        for k in range(DERIVATIVES):
            window_row(scratch[k, left : right + 2 * PAD], derivatives[k, row + REACH, left:right])


@piece
def chain_block(image, target, weights, sums, l1_scale, ssim_scale, gradient):
    for j in range(image.size):
        gradient[j] = loss_gradient(
            image[j],
            byte_value(target[j]),
            weights[j],
            sums[j],
            sums[COLUMNS + j],
            sums[2 * COLUMNS + j],
            l1_scale,
            ssim_scale,
        )


@loop
def gradient_rows(
    lo, hi, image, target, mask, masked, inside, derivatives, scratch, sums, l1_scale, ssim_scale, gradient
):
    values = image.shape[1]
    weights = scratch[3]
    for row in range(lo, hi):
        load_weights(mask, masked, row, weights)
        first = 0
        while first < values:
            # A run of listed tiles, at most a block long.
            end = first
            while end < values and end - first < COLUMNS and inside[row // TILE, end // (3 * TILE)]:
                end = min(end + 3 * TILE, values)
            if end == first:
                first += 3 * TILE
                continue
            for k in range(DERIVATIVES):
                window_column(derivatives[k], row, first, end, sums[k * COLUMNS : k * COLUMNS + end - first])
            chain_block(
                image[row, first:end],
                target[row, first:end],
                weights[first:end],
                sums,
                l1_scale,
                ssim_scale,
                gradient[row, first:end],
            )
            first = end


@loop
def l1_rows(lo, hi, image, target, mask, masked, inside, weights, l1_scale, gradient, totals):
    """L1 alone, and its gradient, of the listed tiles of these rows."""
    for row in range(lo, hi):
        load_weights(mask, masked, row, weights)
        total = ZERO
        for tile in range(inside.shape[1]):
            if inside[row // TILE, tile]:
                for i in range(3 * TILE * tile, min(3 * TILE * (tile + 1), image.shape[1])):
                    difference = image[row, i] - byte_value(target[row, i])
                    total += weights[i] * abs(difference)
                    gradient[row, i] = finite_or_zero(weights[i] * (l1_scale * (weights[i] * sign(difference))))
        totals[row, 0] = total
