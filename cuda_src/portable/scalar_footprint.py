"""Does a splat's footprint meet a tile? The level set alpha = alpha_min against the tile's pixel centres."""

from __future__ import annotations

import math

from cuda_src.portable.scalar import HALF, LARGEST, ONE, THREE, TWO, ZERO, f32, scalar
from cuda_src.portable.scalar_compositing import sigma_at

_TILE, _SUBTILE_WIDTH, _SUBTILE_HEIGHT = f32(16), f32(8), f32(4)
_ROUNDING = f32(1e-6)
_GENEROUS = f32(1.001)


@scalar
def footprint_reach(opacity, alpha_min):
    """Largest sigma at which alpha >= alpha_min."""
    return math.log(opacity / alpha_min)


@scalar
def half_extent(across, conic, radius, reach):
    """Half the extent of sigma <= reach along one axis, pixels, not less: a bound for what is then tested exactly.

    across: the conic's diagonal entry of the other axis. The determinant of a needle's conic cancels, so it counts
    at the lower end of its rounding error; radius (3 sigma of the longer axis) bounds what is left.
    """
    a, b, c = conic
    bound = radius * math.sqrt(TWO * max(reach, ZERO)) / THREE
    determinant = a * c * (ONE - _ROUNDING) - b * b
    exact = math.sqrt(TWO * max(reach, ZERO) * across / determinant) if determinant > ZERO else LARGEST
    return min(bound, exact) * _GENEROUS


@scalar
def least_sigma(conic, x0, y0, x1, y1):
    """Minimum of sigma over a rectangle given relative to the mean; zero if the mean lies inside.

    Sigma is convex and smallest at the mean, so from outside the minimum lies on an edge that faces the mean: one
    edge or two, along each of which sigma is a parabola.
    """
    a, b, c = conic
    dx = x0 if x0 > ZERO else (x1 if x1 < ZERO else ZERO)
    dy = y0 if y0 > ZERO else (y1 if y1 < ZERO else ZERO)
    if dx == ZERO and dy == ZERO:
        return ZERO
    least = LARGEST
    if dx != ZERO:
        least = sigma_at(conic, dx, min(max(-b * dx / c, y0), y1))
    if dy != ZERO:
        least = min(least, sigma_at(conic, min(max(-b * dy / a, x0), x1), dy))
    return least


@scalar
def ellipse_meets(conic, reach, x0, y0, x1, y1):
    """The level set sigma <= reach meets the rectangle given relative to the mean."""
    return least_sigma(conic, x0, y0, x1, y1) <= reach


@scalar
def square_meets(radius, x0, y0, x1, y1):
    """The square mean +- radius meets the rectangle given relative to the mean."""
    return x0 <= radius and x1 >= -radius and y0 <= radius and y1 >= -radius


@scalar
def subtile_within(subtile, x0, y0, x1, y1):
    """Pixel centres of a sub-tile (8 x 4 px, two a row) of the tile whose pixel centres span a rectangle.

    Beyond the image, which ends at x1 and y1, nothing is left: x1 < x0 or y1 < y0.
    """
    left, top = x0 + f32(subtile & 1) * _SUBTILE_WIDTH, y0 + f32(subtile >> 1) * _SUBTILE_HEIGHT
    return left, top, min(left + _SUBTILE_WIDTH - ONE, x1), min(top + _SUBTILE_HEIGHT - ONE, y1)


@scalar
def tile_span(centre, extent, tiles):
    """Tiles [lo, hi) along one axis, of `tiles`, that centre +- extent (pixels) can meet."""
    last = f32(tiles)
    lo = min(max((centre - extent) / _TILE, ZERO), last)
    hi = min(max((centre + extent) / _TILE + ONE, ZERO), last)
    # Neither is negative. Not floor(): that is an integer on a CPU and a float on a GPU.
    return int(lo), int(hi)


@scalar
def tile_edges(tile, size):
    """First and last pixel centre of a tile along one axis of an image of `size` pixels."""
    first = f32(tile) * _TILE
    return first + HALF, min(first + _TILE, f32(size)) - HALF
