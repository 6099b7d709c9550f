"""What densification decides by (Kerbl et al. 2023, section 5.2), summed over the views of many steps."""

from __future__ import annotations

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats


@torch.no_grad()
def densification_statistics(
    kernels: KernelSet, splats: Splats, camera: Camera, gradients: torch.Tensor, statistics: torch.Tensor
) -> None:
    rows = splats.rows
    device_units = gradients[:, layout.RECORD_MEAN2D] * gradients.new_tensor([0.5 * camera.width, 0.5 * camera.height])
    norm = torch.hypot(device_units[:, 0], device_units[:, 1])
    statistics[rows, layout.GRADIENT_SUM] += norm.nan_to_num(nan=0.0, posinf=0.0).to(statistics.dtype)
    statistics[rows, layout.VIEWS_SEEN] += 1
    radius = splats.records[:, layout.RECORD_RADIUS] / max(camera.width, camera.height)
    largest = torch.maximum(statistics[rows, layout.LARGEST_RADIUS], radius.to(statistics.dtype))
    statistics[rows, layout.LARGEST_RADIUS] = largest
