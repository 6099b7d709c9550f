"""Bounds of groups of rows, and which of them a view may see: the formulas of `cuda_src.bounds` as tensor code."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cuda_src import layout
from cuda_src.bounds import SPARE_DISTANCE, SQUARE_SIGMAS, half_spaces
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet


def extents(kernels: KernelSet, parameters: torch.Tensor) -> torch.Tensor:
    """How far each Gaussian's footprint reaches from its mean, [N] world units; 0 where no view can see it."""
    longest = parameters[:, layout.LOG_SCALE].amax(dim=1).exp()
    if kernels.footprint == "square":
        sigmas = torch.full_like(longest, SQUARE_SIGMAS)
    else:
        opacity = torch.sigmoid(parameters[:, layout.OPACITY_LOGIT])
        sigmas = (2 * torch.log(opacity / kernels.convention.alpha_min)).clamp(min=0).sqrt()
    return (longest * sigmas).nan_to_num(nan=0.0)


@torch.no_grad()
def bound_groups(kernels: KernelSet, parameters: torch.Tensor, bounds: torch.Tensor) -> None:
    means = parameters[:, layout.MEAN]
    somewhere = torch.isfinite(means).all(dim=1, keepdim=True)
    missing = len(bounds) * layout.GROUP - len(parameters)

    def by_group(values: torch.Tensor, absent: float) -> torch.Tensor:
        """[groups, GROUP, n], with that value where there is no Gaussian."""
        present = torch.where(somewhere, values, absent)
        return F.pad(present, (0, 0, 0, missing), value=absent).view(-1, layout.GROUP, values.shape[1])

    bounds[:, layout.BOUND_LOWER] = by_group(means, torch.inf).amin(dim=1)
    bounds[:, layout.BOUND_UPPER] = by_group(means, -torch.inf).amax(dim=1)
    bounds[:, layout.BOUND_EXTENT] = by_group(extents(kernels, parameters)[:, None], 0.0).amax(dim=1)[:, 0]
    bounds[:, layout.BOUND - 1] = 0.0


@torch.no_grad()
def widen_groups(kernels: KernelSet, parameters: torch.Tensor, rows: torch.Tensor, bounds: torch.Tensor) -> None:
    rows = rows[torch.isfinite(parameters[rows, layout.MEAN]).all(dim=1)]
    groups, moved = torch.div(rows, layout.GROUP, rounding_mode="floor"), parameters[rows]
    for columns, values, how in (
        (layout.BOUND_LOWER, moved[:, layout.MEAN], "amin"),
        (layout.BOUND_UPPER, moved[:, layout.MEAN], "amax"),
        (slice(layout.BOUND_EXTENT, layout.BOUND_EXTENT + 1), extents(kernels, moved)[:, None], "amax"),
    ):
        bounds[:, columns] = bounds[:, columns].scatter_reduce(0, groups[:, None].expand_as(values), values, how)


@torch.no_grad()
def groups_seen(kernels: KernelSet, bounds: torch.Tensor, camera: Camera, seen: torch.Tensor) -> None:
    centre = torch.as_tensor(camera.centre, dtype=bounds.dtype, device=bounds.device)
    lower, upper = bounds[:, layout.BOUND_LOWER] - centre, bounds[:, layout.BOUND_UPPER] - centre
    distance = SPARE_DISTANCE * torch.maximum(lower.abs(), upper.abs()).sum(dim=1)
    seen[:] = (lower <= upper).all(dim=1)
    for normal, offset, share in half_spaces(kernels, camera):
        n = torch.as_tensor(normal, dtype=bounds.dtype, device=bounds.device)
        furthest = torch.maximum(n * lower, n * upper).sum(dim=1) + offset
        furthest += share * bounds[:, layout.BOUND_EXTENT] + n.abs().sum() * distance
        # Written so that an overflow decides nothing.
        seen &= ~(furthest < 0)
