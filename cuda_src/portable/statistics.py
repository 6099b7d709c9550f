"""Densification statistics: a loop over the splats of a view."""

from __future__ import annotations

import math

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats
from cuda_src.portable.arrays import array
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import f32, finite_or_zero, loop, piece
from cuda_src.portable.threads import even_ranges, run_ranges


@piece
def add_splat(v, rows, records, gradients, half_width, half_height, share, statistics):
    """Add splat v of a view to its row, which no other splat of the view has."""
    row = rows[v]
    norm = math.hypot(gradients[v, 0] * half_width, gradients[v, 1] * half_height)
    statistics[row, layout.GRADIENT_SUM] += finite_or_zero(norm)
    statistics[row, layout.VIEWS_SEEN] += f32(1)
    statistics[row, layout.LARGEST_RADIUS] = max(
        statistics[row, layout.LARGEST_RADIUS], records[v, layout.RECORD_RADIUS] * share
    )


@loop
def _add_view(lo, hi, rows, records, gradients, half_width, half_height, share, statistics):
    for v in range(lo, hi):
        add_splat(v, rows, records, gradients, half_width, half_height, share, statistics)


def scales(camera: Camera) -> tuple[f32, f32, f32]:
    """From pixels to the units of the gradient's norm along x and y, and to shares of the image's longer side."""
    return f32(0.5 * camera.width), f32(0.5 * camera.height), f32(1 / max(camera.width, camera.height))


@by_device
def densification_statistics(
    kernels: KernelSet, splats: Splats, camera: Camera, gradients: torch.Tensor, statistics: torch.Tensor
) -> None:
    """See `cuda_src.operators.densification_statistics`."""
    arrays = (
        array(splats.rows),
        array(splats.records),
        array(gradients),
        *scales(camera),
        statistics.numpy(),
    )
    run_ranges(
        kernels.threads,
        even_ranges(splats.count, kernels.threads),
        lambda _, lo, hi: _add_view(lo, hi, *arrays),
    )
