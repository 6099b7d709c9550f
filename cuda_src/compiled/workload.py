"""Counting a view's work: what the kernel of workload.cu is given."""

from __future__ import annotations

import ctypes

import torch

from cuda_src.camera import Camera
from cuda_src.compiled.bindings import call, count
from cuda_src.compiled.view import view_of
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.workload import COUNTED


def count_lists(kernels: KernelSet, splats: Splats, bins: Bins, raster: Raster, camera: Camera) -> list[int]:
    """The counts of `cuda_src.workload.COUNTED`, in that order. Waits for the device."""
    records = splats.records
    if records.stride(1) != 1:
        raise ValueError(f"expected records whose columns are neighbours, got strides {records.stride()}")
    counts = torch.empty(len(COUNTED), dtype=torch.int64, device=records.device)
    call(
        "count_workload", records.device, ctypes.byref(view_of(kernels, camera)), bins.tiles, count(len(bins.tiles)),
        bins.starts, bins.splat, ctypes.c_void_p(records.data_ptr()), count(records.stride(0)),
        raster.last.contiguous(), raster.stopped.contiguous(), counts,
    )  # fmt: skip
    return counts.tolist()
