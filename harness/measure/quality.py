"""Image quality of renders against photographs."""

from __future__ import annotations

import math

import torch

from cuda_src.operators import KernelSet, l1_ssim
from cuda_src.workspace import Workspace

PSNR_CAP = 100.0
"""dB reported for identical images, whose PSNR is infinite."""


def psnr(image: torch.Tensor, target: torch.Tensor) -> float:
    """Peak signal-to-noise ratio, dB, of [H, W, 3] images: `image` in [0, 1], `target` uint8; at most PSNR_CAP."""
    error = float(torch.mean((image.double() - target.double() / 255.0) ** 2))
    return PSNR_CAP if error == 0 else min(PSNR_CAP, -10.0 * math.log10(error))


def ssim(kernels: KernelSet, image: torch.Tensor, target: torch.Tensor, workspace: Workspace) -> float:
    """Mean structural similarity (Wang et al. 2004) with the training loss's window."""
    return float(l1_ssim(kernels, image, target, workspace, ssim_weight=1.0).ssim)
