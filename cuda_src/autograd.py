"""The operators as PyTorch functions with gradients, for a model of one's own; training itself keeps no tape."""

from __future__ import annotations

from typing import Any

import torch

from cuda_src.camera import Camera
from cuda_src.operators import (
    KernelSet,
    bin_splats,
    l1_ssim,
    project,
    project_backward,
    raster_backward,
    raster_forward,
)
from cuda_src.workspace import Workspace


class _Render(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: KernelSet,
        parameters: torch.Tensor,
        camera: Camera,
        sh_degree: int,
        background: torch.Tensor | None,
    ) -> torch.Tensor:
        # A workspace of its own: what is saved for the backward must outlive the next call.
        workspace = Workspace(parameters.device)
        ids = torch.arange(len(parameters), device=parameters.device)
        splats = project(kernels, parameters, ids, camera, sh_degree, workspace)
        bins = bin_splats(kernels, splats, camera, workspace)
        raster = raster_forward(kernels, splats, bins, camera, workspace, background=background)
        ctx.save_for_backward(parameters)
        ctx.background = background
        ctx.view = (kernels, splats, bins, raster, camera, sh_degree, workspace)
        return raster.colour.clone()

    @staticmethod
    def backward(ctx: Any, grad_image: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (parameters,) = ctx.saved_tensors
        kernels, splats, bins, raster, camera, sh_degree, workspace = ctx.view
        by_splat = raster_backward(
            kernels, splats, bins, raster, camera, grad_image.contiguous(), workspace, background=ctx.background
        )
        by_row = project_backward(kernels, parameters, splats, camera, sh_degree, by_splat, workspace)
        gradient = torch.zeros_like(parameters)
        gradient[splats.rows] = by_row.to(gradient.dtype)
        return None, gradient, None, None, None


class _L1SSIM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: KernelSet,
        image: torch.Tensor,
        target: torch.Tensor,
        mask: torch.Tensor | None,
        ssim_weight: float,
    ) -> torch.Tensor:
        loss = l1_ssim(kernels, image, target, Workspace(image.device), mask=mask, ssim_weight=ssim_weight)
        ctx.save_for_backward(loss.gradient)
        return loss.value.clone()

    @staticmethod
    def backward(ctx: Any, grad_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return None, grad_value * gradient, None, None, None


def render(
    kernels: KernelSet,
    parameters: torch.Tensor,  # [N, 59] real
    camera: Camera,
    sh_degree: int = 3,
    background: torch.Tensor | None = None,  # [3] or [H, W, 3] real; None: black
) -> torch.Tensor:
    """The image of these Gaussians, [H, W, 3], differentiable by `parameters` (not by the background)."""
    return _Render.apply(kernels, parameters, camera, sh_degree, background)


def l1_ssim_loss(
    kernels: KernelSet,
    image: torch.Tensor,  # [H, W, 3] real
    target: torch.Tensor,  # [H, W, 3] uint8
    mask: torch.Tensor | None = None,  # [H, W] uint8
    ssim_weight: float = 0.2,
) -> torch.Tensor:
    """(1 - w) L1 + w (1 - SSIM), 0-d, differentiable by `image`.

    With a mask the gradient is that of `operators.l1_ssim`, which leaves masked pixels alone.
    """
    return _L1SSIM.apply(kernels, image, target, mask, ssim_weight)
