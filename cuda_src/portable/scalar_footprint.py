"""Does a splat's footprint meet a tile? The level set alpha = alpha_min against the tile's pixel centres."""

from __future__ import annotations

import math

from cuda_src.portable.scalar import HALF, LARGEST, ONE, THREE, TWO, ZERO, f32, scalar
from cuda_src.portable.scalar_compositing import sigma_at

_TILE = f32(16)
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

    Sigma is convex, so outside the mean the minimum lies on one of the four edges, each a parabola.
    """
    a, b, c = conic
    if x0 <= ZERO and x1 >= ZERO and y0 <= ZERO and y1 >= ZERO:
        return ZERO
    along_y, along_x = -b / c, -b / a
    left = sigma_at(conic, x0, min(max(along_y * x0, y0), y1))
    right = sigma_at(conic, x1, min(max(along_y * x1, y0), y1))
    top = sigma_at(conic, min(max(along_x * y0, x0), x1), y0)
    bottom = sigma_at(conic, min(max(along_x * y1, x0), x1), y1)
    return min(min(left, right), min(top, bottom))


@scalar
def ellipse_meets(conic, reach, x0, y0, x1, y1):
    """The level set sigma <= reach meets the rectangle given relative to the mean."""
    return least_sigma(conic, x0, y0, x1, y1) <= reach


@scalar
def square_meets(radius, x0, y0, x1, y1):
    """The square mean +- radius meets the rectangle given relative to the mean."""
    return x0 <= radius and x1 >= -radius and y0 <= radius and y1 >= -radius


@scalar
def tile_span(centre, extent, tiles):
    """Tiles [lo, hi) along one axis, of `tiles`, that centre +- extent (pixels) can meet."""
    last = f32(tiles)
    lo = min(max((centre - extent) / _TILE, ZERO), last)
    hi = min(max((centre + extent) / _TILE + ONE, ZERO), last)
    return math.floor(lo), math.floor(hi)


@scalar
def tile_edges(tile, size):
    """First and last pixel centre of a tile along one axis of an image of `size` pixels."""
    first = f32(tile) * _TILE
    return first + HALF, min(first + _TILE, f32(size)) - HALF
