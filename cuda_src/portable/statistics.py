"""Densification statistics: a loop over the splats of a view."""

from __future__ import annotations

import math

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats
from cuda_src.portable.arrays import array
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import f32, finite_or_zero, loop
from cuda_src.portable.threads import even_ranges, run_ranges


@loop
def _add_view(lo, hi, rows, records, gradients, half_width, half_height, share, statistics):
    for v in range(lo, hi):
        entry, g = statistics[rows[v]], gradients[v]
        entry[layout.GRADIENT_SUM] += finite_or_zero(math.hypot(g[0] * half_width, g[1] * half_height))
        entry[layout.VIEWS_SEEN] += f32(1)
        entry[layout.LARGEST_RADIUS] = max(entry[layout.LARGEST_RADIUS], records[v, layout.RECORD_RADIUS] * share)


@by_device
def densification_statistics(
    kernels: KernelSet, splats: Splats, camera: Camera, gradients: torch.Tensor, statistics: torch.Tensor
) -> None:
    """See `cuda_src.operators.densification_statistics`."""
    arrays = (
        array(splats.rows),
        array(splats.records),
        array(gradients),
        f32(0.5 * camera.width),
        f32(0.5 * camera.height),
        f32(1 / max(camera.width, camera.height)),
        statistics.numpy(),
    )
    run_ranges(
        kernels.threads,
        even_ranges(splats.count, kernels.threads),
        lambda _, lo, hi: _add_view(lo, hi, *arrays),
    )
