"""Densification statistics: a thread a splat of a view."""

from __future__ import annotations

import torch

from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats
from cuda_src.portable.on_cuda.runtime import blocks_for, cuda, kernel
from cuda_src.portable.statistics import add_splat, scales

_THREADS = 256


@kernel
def add_view(rows, records, gradients, half_width, half_height, share, statistics):
    v = cuda.grid(1)
    if v < rows.size:
        add_splat(v, rows, records, gradients, half_width, half_height, share, statistics)


def densification_statistics(
    kernels: KernelSet, splats: Splats, camera: Camera, gradients: torch.Tensor, statistics: torch.Tensor
) -> None:
    """See `cuda_src.operators.densification_statistics`."""
    add_view.launch(
        statistics.device, blocks_for(splats.count, _THREADS), _THREADS, splats.rows, splats.records, gradients,
        *scales(camera), statistics,
    )  # fmt: skip
