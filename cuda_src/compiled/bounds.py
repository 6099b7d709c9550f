"""bound_groups and groups_seen: what the kernels of bounds.cu are given, and what a view's volume is to any kernel."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np
import torch

from cuda_src.bounds import SPARE_DISTANCE, half_spaces
from cuda_src.camera import Camera
from cuda_src.compiled.bindings import call, count
from cuda_src.operators import KernelSet

_KEPT = 4096
"""Volumes kept ready, as views are: each is made by Python once."""


class HalfSpace(ctypes.Structure):
    """The same struct as in bounds.cuh."""

    _fields_ = (
        ("normal", ctypes.c_float * 3),
        ("offset", ctypes.c_float),
        ("share", ctypes.c_float),
        ("spare", ctypes.c_float),
    )


class ViewVolume(ctypes.Structure):
    """Passed by value; the same struct as in bounds.cuh."""

    _fields_ = (("centre", ctypes.c_float * 3), ("spaces", HalfSpace * 6))


@lru_cache(maxsize=_KEPT)
def volume_of(kernels: KernelSet, camera: Camera) -> ViewVolume:
    """What that camera may see under the kernel set's convention and footprint; kernels only read it."""
    volume = ViewVolume()
    volume.centre[:] = camera.centre.tolist()
    for space, (normal, offset, share) in zip(volume.spaces, half_spaces(kernels, camera), strict=True):
        space.normal[:] = normal.tolist()
        space.offset, space.share = offset, share
        space.spare = SPARE_DISTANCE * float(np.abs(normal).sum())
    return volume


def bound_groups(kernels: KernelSet, parameters: torch.Tensor, bounds: torch.Tensor) -> None:
    """See `cuda_src.bounds.bound_groups`."""
    alpha_min, square = kernels.convention.alpha_min, kernels.footprint == "square"
    call(
        "bound_groups", parameters.device, parameters, count(len(parameters)), alpha_min, int(square), bounds,
    )  # fmt: skip


def widen_groups(kernels: KernelSet, parameters: torch.Tensor, rows: torch.Tensor, bounds: torch.Tensor) -> None:
    """See `cuda_src.bounds.widen_groups`."""
    alpha_min, square = kernels.convention.alpha_min, kernels.footprint == "square"
    call(
        "widen_groups", parameters.device, parameters, rows.contiguous(), count(len(rows)), alpha_min, int(square),
        bounds,
    )  # fmt: skip


def groups_seen(kernels: KernelSet, bounds: torch.Tensor, camera: Camera, seen: torch.Tensor) -> None:
    """See `cuda_src.bounds.groups_seen`."""
    volume = ctypes.byref(volume_of(kernels, camera))
    call("groups_seen", bounds.device, volume, bounds, count(len(seen)), seen)
