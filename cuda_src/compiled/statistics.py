"""densification_statistics: what the kernel of statistics.cu is given."""

from __future__ import annotations

import ctypes

import torch

from cuda_src.camera import Camera
from cuda_src.compiled.bindings import call, count
from cuda_src.operators import KernelSet, Splats


def densification_statistics(
    kernels: KernelSet, splats: Splats, camera: Camera, gradients: torch.Tensor, statistics: torch.Tensor
) -> None:
    """See `cuda_src.operators.densification_statistics`."""
    call(
        "densification_statistics", statistics.device, splats.rows.contiguous(), *_strided(splats.records),
        *_strided(gradients), count(splats.count), splats.live, splats.overflow, camera.width, camera.height,
        statistics,
    )  # fmt: skip


def _strided(values: torch.Tensor) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
    """Address, and floats from one row to the next: columns are neighbours, rows may lie further apart."""
    if values.dtype != torch.float32 or values.stride(1) != 1:
        raise ValueError(f"expected float32 rows, got {values.dtype}, strides {values.stride()}")
    return ctypes.c_void_p(values.data_ptr()), count(values.stride(0))
