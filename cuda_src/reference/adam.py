"""Adam on rows (Kingma & Ba 2015), with Grendel's batch rule (section 4) applied row by row."""

from __future__ import annotations

import torch

from cuda_src.operators import KernelSet


@torch.no_grad()
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
    real = parameters.dtype
    # Powers and their complements in float64: 1 - 0.999 has few digits left in float32.
    v = views.to(torch.float64)[:, None]
    decay1, decay2 = beta1**v, beta2**v
    root = v.sqrt()
    gradient = gradients.to(torch.float64)
    # An entry that is not finite, or whose square is not, would stay in the moments for ever: it counts as zero.
    usable = torch.isfinite(gradients.to(real) ** 2)
    gradient = torch.where(usable, gradient, torch.zeros_like(gradient)) / v
    first = decay1 * moment1[rows] + (1 - decay1) * gradient
    second = decay2 * moment2[rows] + (1 - decay2) * gradient**2
    unbiased1 = first / (1 - beta1**images_seen)
    unbiased2 = second / (1 - beta2**images_seen)
    step = rates.to(torch.float64) * root * unbiased1 / (unbiased2.sqrt() + epsilon / root)
    parameters[rows] = (parameters[rows] - step).to(real)
    moment1[rows] = first.to(real)
    moment2[rows] = second.to(real)
