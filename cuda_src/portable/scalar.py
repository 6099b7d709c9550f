"""What every scalar function is built from: the decorators, float32 constants, exp and the finiteness test.

Scalar functions hold the mathematics once, for CPU loops and CUDA kernels: they take and return float32
scalars and tuples, allocate nothing, and meet no float64 (an untyped literal would make one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

f32 = np.float32

ZERO, HALF, ONE, TWO, THREE, FOUR = f32(0), f32(0.5), f32(1), f32(2), f32(3), f32(4)
LARGEST, INFINITE = np.finfo(np.float32).max, f32(np.inf)

# Fused multiply-add and the sign of zero are free to change. Not `nnan`, `ninf` (tests for non-finite values would
# go), `reassoc` (sums keep their order; exp's rounding constant would fold away), `arcp`, `afn` (accuracy).
_FAST_MATH = {"contract", "nsz"}

_EXP_LEAST = f32(-87.0)
_LOG2_E = f32(1.4426950408889634)
_ROUND = f32(12582912.0)
"""1.5 x 2^23: adding it rounds a float32 of moderate size to an integer, which then stands in the low bits."""
_LN2_HIGH = f32(0.693359375)
_LN2_LOW = f32(-2.12194440e-4)
_EXP2, _EXP3, _EXP4, _EXP5, _EXP6 = f32(1 / 2), f32(1 / 6), f32(1 / 24), f32(1 / 120), f32(1 / 720)


# For callers in compiled code only: the wrappers for Python callers cost compile time. Inlined by force: LLVM judges by
# size, and one call too many in the loop over pixels makes it twenty times as slow.
_INNER: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "forceinline": True,
}


def scalar(function: Callable[..., Any]) -> Any:
    """Decorator of a scalar function: compiled for its callers, which inline it."""
    return njit(**_INNER, fastmath=_FAST_MATH)(function)


def exact_sum(function: Callable[..., Any]) -> Any:
    """Decorator of a part of a loop whose sums are exact in any order, so that they may be reordered."""
    return njit(**_INNER, fastmath={*_FAST_MATH, "reassoc"})(function)


piece = scalar
"""The same for a part of a loop over arrays. CUDA kernels take those that one thread can do, and write others anew."""


def loop(function: Callable[..., Any]) -> Any:
    """Decorator of a loop that Python calls: without the interpreter lock, kept on disk."""
    return njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST_MATH)(function)


@scalar
def exp_nonpositive(x):
    """exp(x) for x <= 0, to 2 units in the last place; exp(-87) below that. Without branches, so that loops vectorise.

    Cody & Waite's reduction x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r, and n added to the exponent bits.
    """
    x = max(x, _EXP_LEAST)
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = ONE + r * (ONE + r * (_EXP2 + r * (_EXP3 + r * (_EXP4 + r * (_EXP5 + r * _EXP6)))))
    bits = np.float32(p).view(np.int32) + (np.float32(shifted).view(np.int32) << 23)
    return np.int32(bits).view(np.float32)


@scalar
def finite(x):
    """True unless x is infinite or not a number."""
    return abs(x) <= LARGEST


@scalar
def finite_or_zero(x):
    """x, or 0 if it is not finite."""
    return x if abs(x) <= LARGEST else ZERO
