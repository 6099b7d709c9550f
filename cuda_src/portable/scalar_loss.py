"""SSIM at one pixel and colour (Wang et al. 2004) and its derivatives by the windowed averages.

Averages are taken of values shifted by -1/2, so that variances do not cancel as badly in float32; a shift leaves
them unchanged as long as what lies beyond the image is shifted too.
"""

from __future__ import annotations

import math

from cuda_src.portable.scalar import HALF, ONE, TWO, ZERO, f32, finite_or_zero, scalar

REACH = 5
"""Pixels that the window reaches on either side."""

_C1, _C2 = f32(0.01**2), f32(0.03**2)
_BELL = [math.exp(-(k**2) / (2 * 1.5**2)) for k in range(-REACH, REACH + 1)]
TAPS = tuple(_BELL[REACH + k] / sum(_BELL) for k in range(REACH + 1))
"""Weight of the window's taps at distance 0 ... 5 from its centre."""
W0, W1, W2, W3, W4, W5 = (f32(tap) for tap in TAPS)
SHIFT = HALF
_BYTE = f32(1 / 255)


@scalar
def byte_value(b):
    """An 8-bit value as a share of 255."""
    return f32(b) * _BYTE


@scalar
def window(pair5, pair4, pair3, pair2, pair1, centre):
    """The window's weighted sum, from the sums of its symmetric pairs of taps, outermost first."""
    return W5 * pair5 + W4 * pair4 + W3 * pair3 + W2 * pair2 + W1 * pair1 + W0 * centre


@scalar
def ssim(mean_x, mean_y, squares, product):
    """(SSIM, derivative by mean_x, by squares, by product).

    Windowed averages of shifted values: of x, of y, of x^2 + y^2 and of x y.
    """
    level_x, level_y = mean_x + SHIFT, mean_y + SHIFT
    energy = level_x * level_x + level_y * level_y + _C1
    luminance = (TWO * level_x * level_y + _C1) / energy
    spread = squares - mean_x * mean_x - mean_y * mean_y + _C2
    structure = (TWO * (product - mean_x * mean_y) + _C2) / spread
    value = luminance * structure
    by_squares = -value / spread
    by_product = TWO * luminance / spread
    by_mean = structure * (TWO * (level_y - luminance * level_x) / energy)
    return value, by_mean - TWO * mean_x * by_squares - mean_y * by_product, by_squares, by_product


@scalar
def sign(x):
    """-1, 0 or 1."""
    return (ONE if x > ZERO else ZERO) - (ONE if x < ZERO else ZERO)


@scalar
def loss_gradient(x, y, weight, mean, squares, product, l1_scale, ssim_scale):
    """Derivative of a pixel's share of the loss by its value x, y being the target's.

    mean, squares, product: windowed averages of SSIM's derivatives, each weighted where it was taken.
    """
    by_ssim = mean + TWO * (x - SHIFT) * squares + (y - SHIFT) * product
    by_l1 = weight * sign(x - y)
    return finite_or_zero(weight * (l1_scale * by_l1 + ssim_scale * by_ssim))
