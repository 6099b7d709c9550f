"""Bounds of groups of 32 consecutive rows, so that culling looks at the rows of those groups alone that may be seen.

In Morton order 32 neighbours in storage are neighbours in space, and most groups lie outside most views: culling then
costs 1 B a Gaussian and what is near the view, not 44 B of every Gaussian. A bound is a box around the means and the
largest extent: how far from its mean, in world units, a Gaussian's footprint can reach before dilation. That is 3 sigma
of its longest axis for `footprint: square`, and for `ellipse` the distance sqrt(2 ln(opacity / alpha_min)) sigma at
which alpha falls to alpha_min (opacity-aware extents, as StopThePop and Speedy-Splat use them).

A view sees a Gaussian at view position (x, y, z) only if its footprint meets the image. The extent e, projected, is at
most e k / z pixels with k = max(fx, fy) sqrt(1 + u^2 + v^2), where u and v bound x / z and y / z as the Jacobian of EWA
splatting takes them; dilation and rounding up add at most d pixels. So, times z > 0, the footprint reaches the left
border only if

    fx x + (cx + d) z + k e >= 0,

which is linear in position and extent, as the other three borders and the near and far plane are: of a group, the
corner of the box that lies furthest ahead and the largest extent decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from cuda_src.camera import Camera
from cuda_src.layout import BOUND, GROUP
from cuda_src.operators import KernelSet

SPARE_EXTENT = 1.01
"""Extents count a little more, and footprints `SPARE_PIXELS` more, than they are: back ends project in float32."""
SPARE_PIXELS = 1.0
SPARE_DISTANCE = 1e-5
"""Share of the distance from the camera (in the sum of coordinates) by which a float32 position may be wrong."""
SPARE_CENTRE = 2.0**-21
"""Share of the camera's distance from the world's origin by which float32 may be wrong about what is near it."""
SQUARE_SIGMAS = 3.0


def groups_of(rows: int) -> int:
    """Groups of a table of so many rows; the last may be short."""
    return -(-rows // GROUP)


def empty_bounds(rows: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised bounds of a table of so many rows, [groups, BOUND]."""
    return torch.empty((groups_of(rows), BOUND), dtype=dtype, device=device)


def bound_groups(
    kernels: KernelSet,
    parameters: torch.Tensor,  # [N, 59]
    bounds: torch.Tensor,  # [groups, BOUND] real, written
) -> None:
    """Bounds of all groups, for the kernel set's footprint and alpha_min.

    Means that are not finite, which no view sees, have no part in the box; a group of such alone has an empty box.
    """
    _check(bounds, groups_of(len(parameters)))
    kernels.called.bound_groups(kernels, parameters, bounds)


def widen_groups(
    kernels: KernelSet,
    parameters: torch.Tensor,  # [N, 59]
    rows: torch.Tensor,  # [U] int64
    bounds: torch.Tensor,  # [groups, BOUND] real, updated in place
) -> None:
    """Let the bounds hold these rows as they are now. They only grow: `bound_groups` makes them tight again.

    A back end may widen a bound by 1/32 of the row's extent more than it must, so that it need not again so soon.
    """
    _check(bounds, groups_of(len(parameters)))
    kernels.called.widen_groups(kernels, parameters, rows, bounds)


def groups_seen(
    kernels: KernelSet,
    bounds: torch.Tensor,  # [groups, BOUND] real
    camera: Camera,
    seen: torch.Tensor,  # [groups] bool, written
) -> None:
    """Which groups may hold a Gaussian that the view sees: all that do, and some that do not."""
    _check(bounds, len(seen))
    kernels.called.groups_seen(kernels, bounds, camera, seen)


def half_spaces(kernels: KernelSet, camera: Camera) -> Iterator[tuple[np.ndarray, float, float]]:
    """Where a Gaussian must lie to be seen, as normal [3] (world axes), offset and share k of its extent.

    normal . (mean - camera centre) + offset + k extent >= 0. Two for the near and far plane and one for each border.
    """
    for normal, offset, share in _exact_half_spaces(kernels, camera):
        yield normal, offset + SPARE_CENTRE * float(np.abs(normal) @ np.abs(camera.centre)), share


def _exact_half_spaces(kernels: KernelSet, camera: Camera) -> Iterator[tuple[np.ndarray, float, float]]:
    convention = kernels.convention
    right, down, ahead = camera.world_to_camera[:3, :3]
    yield ahead, -convention.near, 0.0
    yield -ahead, camera.far, 0.0
    beyond = dilation_reach(kernels)
    axes = ((right, camera.fx, camera.cx, camera.width), (down, camera.fy, camera.cy, camera.height))
    slopes = [
        max(principal, size - principal) / focal + convention.jacobian_margin * 0.5 * size / focal
        for _, focal, principal, size in axes
    ]
    share = SPARE_EXTENT * max(camera.fx, camera.fy) * math.sqrt(1 + slopes[0] ** 2 + slopes[1] ** 2)
    for axis, focal, principal, size in axes:
        yield focal * axis + (principal + beyond) * ahead, 0.0, share
        yield -focal * axis + (size - principal + beyond) * ahead, 0.0, share


def dilation_reach(kernels: KernelSet) -> float:
    """Pixels by which a footprint can reach beyond its projected extent: dilation, a radius rounded up, and some spare.

    Of the ellipse, whose tiles are at most radius sqrt(2 ln(opacity / alpha_min)) / 3 away: of an opacity of 1.
    """
    sigma = math.sqrt(kernels.convention.dilation)
    if kernels.footprint == "square":
        return SQUARE_SIGMAS * sigma + 1.0 + SPARE_PIXELS
    return (sigma + 1.0 / SQUARE_SIGMAS) * math.sqrt(-2.0 * math.log(kernels.convention.alpha_min)) + SPARE_PIXELS


def _check(bounds: torch.Tensor, groups: int) -> None:
    if bounds.shape != (groups, BOUND) or not bounds.is_contiguous():
        raise ValueError(f"expected contiguous bounds {(groups, BOUND)}, got {tuple(bounds.shape)}, {bounds.stride()}")
