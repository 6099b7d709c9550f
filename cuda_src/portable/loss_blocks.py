"""L1 + SSIM with windows that see one block of 32 x 32 pixels alone and are renormalised (`LossWindow("tile")`).

The same three passes as on rows, within a block: a block needs nothing but its own pixels.
"""

from __future__ import annotations

import numpy as np

from cuda_src.camera import TILE
from cuda_src.operators import LOSS_BLOCK
from cuda_src.portable.loss_rows import (
    AVERAGES,
    COLUMNS,
    DERIVATIVES,
    PAD,
    chain_block,
    load_values,
    multiply,
    ssim_block,
    window_column,
    window_row,
)
from cuda_src.portable.scalar import ONE, ZERO, loop, piece
from cuda_src.portable.scalar_loss import REACH, TAPS, byte_value

_VALUES = 3 * LOSS_BLOCK
_LINE = _VALUES + 2 * PAD
_PLANE = (LOSS_BLOCK + 2 * REACH) * _VALUES
BLOCK_SCRATCH = 5 * _LINE + (AVERAGES + DERIVATIVES) * _PLANE + AVERAGES * COLUMNS
"""Floats that one block at a time needs: lines, planes and sums."""


def _renormalisation() -> np.ndarray:
    """[33, 32] float32: of a block n pixels long, 1 / the sum of the window's taps inside it, by position."""
    table = np.ones((LOSS_BLOCK + 1, LOSS_BLOCK))
    for n in range(1, LOSS_BLOCK + 1):
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        table[n, :n] = 1 / np.where(distance <= REACH, np.array(TAPS)[np.minimum(distance, REACH)], 0).sum(axis=1)
    return table.astype(np.float32)


INVERSE = _renormalisation()
"""Written by length of the block, then position in it."""


@piece
def _scale_columns(values, inverse, factor):
    """Times a factor and, pixel by pixel, 1 / the taps' sum along x."""
    for j in range(values.size):
        values[j] *= inverse[j // 3] * factor


@piece
def _averages(top, left, rows, image, target, inverse, lines, planes):
    """Windows along x of each row of the block, in planes with 5 rows of zeros above and below."""
    values = planes.shape[2]
    x, y, squares, products = lines[0], lines[1], lines[2], lines[3]
    lines[:] = ZERO
    planes[:AVERAGES] = ZERO
    inside = slice(PAD, PAD + values)
    for i in range(rows):
        source = slice(left, left + values)
        load_values(image[top + i, source], target[top + i, source], x[inside], y[inside])
        multiply(x[inside], y[inside], squares[inside], products[inside])
        for k in range(AVERAGES):
            window_row(lines[k, : values + 2 * PAD], planes[k, i + REACH])
            _scale_columns(planes[k, i + REACH], inverse, ONE)


@piece
def _load_block_weights(mask, masked, row, left, weights):
    """Weight of each colour value of a row of the block: its pixel's mask."""
    if masked:
        for j in range(weights.size):
            weights[j] = byte_value(mask[row, left + j // 3])
    else:
        weights[:] = ONE


@loop
def block_losses(
    lo,
    hi,
    top,
    end,
    columns,
    image,
    target,
    mask,
    masked,
    listed,
    scratch,
    l1_scale,
    ssim_scale,
    gradient,
    totals,
):
    """Blocks lo to hi of the row of blocks of pixel rows [top, end): columns[b] to columns[b + 1] pixels each.

    Writes the listed tiles' gradient, and their weighted sums of L1 and SSIM in totals[b].
    """
    rows = end - top
    lines = scratch[: 5 * _LINE].reshape(5, _LINE)
    sums = scratch[BLOCK_SCRATCH - AVERAGES * COLUMNS : BLOCK_SCRATCH]
    inverse_y = INVERSE[rows]
    for b in range(lo, hi):
        left, values = 3 * columns[b], 3 * (columns[b + 1] - columns[b])
        inverse_x = INVERSE[values // 3]
        size = (AVERAGES + DERIVATIVES) * (rows + 2 * REACH) * values
        planes = scratch[5 * _LINE : 5 * _LINE + size].reshape(AVERAGES + DERIVATIVES, rows + 2 * REACH, values)
        _averages(top, left, rows, image, target, inverse_x, lines, planes)
        planes[AVERAGES:] = ZERO
        lines[:] = ZERO
        weights = lines[4]
        l1, similarity = ZERO, ZERO
        for i in range(rows):
            row = top + i
            _load_block_weights(mask, masked, row, columns[b], weights[:values])
            for k in range(AVERAGES):
                part = sums[k * COLUMNS : k * COLUMNS + values]
                window_column(planes[k], i, 0, values, part)
                for j in range(values):
                    part[j] *= inverse_y[i]
            ssim_block(sums, values)
            for j in range(values):
                if listed[row // TILE, (left + j) // (3 * TILE)]:
                    l1 += weights[j] * abs(image[row, left + j] - byte_value(target[row, left + j]))
                    similarity += weights[j] * sums[j]
            for k in range(DERIVATIVES):
                line = lines[k, : values + 2 * PAD]
                for j in range(values):
                    line[PAD + j] = weights[j] * sums[(k + 1) * COLUMNS + j]
                # A window's sum was divided by its taps' sum: so is what flows back through it.
                _scale_columns(line[PAD : PAD + values], inverse_x, inverse_y[i])
                window_row(line, planes[AVERAGES + k, i + REACH])
        totals[b, 0], totals[b, 1] = l1, similarity
        for i in range(rows):
            row = top + i
            _load_block_weights(mask, masked, row, columns[b], weights[:values])
            for k in range(DERIVATIVES):
                window_column(planes[AVERAGES + k], i, 0, values, sums[k * COLUMNS : k * COLUMNS + values])
            chained = lines[3, :values]
            at = slice(left, left + values)
            chain_block(image[row, at], target[row, at], weights[:values], sums, l1_scale, ssim_scale, chained)
            for j in range(values):
                if listed[row // TILE, (left + j) // (3 * TILE)]:
                    gradient[row, left + j] = chained[j]
