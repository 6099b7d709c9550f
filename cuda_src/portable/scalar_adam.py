"""Adam of one number (Kingma & Ba 2015)."""

from __future__ import annotations

import math

from cuda_src.portable.scalar import ZERO, finite, scalar


@scalar
def usable_gradient(g):
    """The gradient, or 0 where it or its square is not finite: it would stay in the moments for ever."""
    return g if finite(g * g) else ZERO


@scalar
def adam(parameter, moment1, moment2, g, rate, keep1, take1, keep2, take2, correction, epsilon):
    """(parameter, moment1, moment2) after one step with gradient g.

    keep and take are beta and 1 - beta of each moment; rate holds the first moment's bias correction, correction is
    the inverse root of the second's.
    """
    first = keep1 * moment1 + take1 * g
    second = keep2 * moment2 + take2 * (g * g)
    return parameter - rate * (first / (math.sqrt(second) * correction + epsilon)), first, second
