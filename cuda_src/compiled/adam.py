"""adam_rows, and the gradient of a view's splats that goes to Adam at once: what their kernels are given."""

from __future__ import annotations

import ctypes
import math

import torch

from cuda_src.camera import Camera
from cuda_src.compiled.bindings import call, count
from cuda_src.compiled.raster import as_real
from cuda_src.compiled.view import view_of
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace


class Rule(ctypes.Structure):
    """What is the same for all rows of a step; the same struct as in adam.cuh."""

    _fields_ = (
        ("log_beta1", ctypes.c_float),
        ("log_beta2", ctypes.c_float),
        ("one_minus_beta1", ctypes.c_float),
        ("one_minus_beta2", ctypes.c_float),
        ("correction1", ctypes.c_float),
        ("correction2", ctypes.c_float),
        ("epsilon", ctypes.c_float),
    )

    @classmethod
    def of(cls, images_seen: int, beta1: float, beta2: float, epsilon: float) -> Rule:
        """In float64 up to here: 1 - 0.999 has few digits left in float32."""
        return cls(
            _log(beta1),
            _log(beta2),
            1 - beta1,
            1 - beta2,
            1 / (1 - beta1**images_seen),
            1 / math.sqrt(1 - beta2**images_seen),
            epsilon,
        )


def _log(beta: float) -> float:
    """Without a moment, beta 0, everything is new: beta^v = exp(-inf)."""
    return math.log(beta) if beta > 0 else -math.inf


def adam_rows(
    kernels: KernelSet,
    parameters: torch.Tensor,
    moment1: torch.Tensor,
    moment2: torch.Tensor,
    rows: torch.Tensor,
    gradients: torch.Tensor,
    views: torch.Tensor,
    rates: torch.Tensor,
    images_seen: int,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """See `cuda_src.operators.adam_rows`."""
    rule = Rule.of(images_seen, beta1, beta2, epsilon)
    call(
        "adam_rows", parameters.device, parameters, moment1, moment2, rows.contiguous(), gradients.contiguous(),
        views.contiguous(), count(len(rows)), as_real(rates), ctypes.byref(rule),
    )  # fmt: skip


def project_backward_adam(
    kernels: KernelSet,
    parameters: torch.Tensor,
    moment1: torch.Tensor,
    moment2: torch.Tensor,
    splats: Splats,
    camera: Camera,
    sh_degree: int,
    gradients: torch.Tensor,
    workspace: Workspace,
    rates: torch.Tensor,
    images_seen: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    touched_only: bool,
) -> None:
    """See `cuda_src.operators.project_backward_adam`: one kernel, no [V, 59] gradient in memory."""
    rule = Rule.of(images_seen, beta1, beta2, epsilon)
    call(
        "project_backward_adam", parameters.device, ctypes.byref(view_of(kernels, camera)), parameters, moment1,
        moment2, splats.rows.contiguous(), splats.records.contiguous(), count(splats.count), sh_degree,
        gradients.contiguous(), as_real(rates), ctypes.byref(rule), int(touched_only),
    )  # fmt: skip
