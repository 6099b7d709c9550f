"""Forward, loss and backward of a view as one operator: here simply one after another, which is its definition."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, Fused, KernelSet, LossWindow, Splats
from cuda_src.reference.loss import l1_ssim
from cuda_src.reference.raster import raster_backward, raster_forward
from cuda_src.workspace import Workspace


def raster_fused(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    target: torch.Tensor,
    workspace: Workspace,
    background: torch.Tensor | None,
    mask: torch.Tensor | None,
    ssim_weight: float,
    window: LossWindow,
    image: torch.Tensor | None,
) -> Fused:
    raster = raster_forward(kernels, splats, bins, camera, workspace, None, None, None, background)
    if image is not None:
        image.copy_(raster.colour)
    loss = l1_ssim(kernels, raster.colour, target, workspace, mask, bins.tiles, "exact", ssim_weight, window)
    gradients = raster_backward(
        kernels, splats, bins, raster, camera, loss.gradient, workspace, background, None, None, None, None
    )
    right, bottom = camera.tiles_x * TILE - camera.width, camera.tiles_y * TILE - camera.height
    counts = F.pad(raster.last.to(torch.int64), (0, right, 0, bottom))
    by_tile = counts.view(camera.tiles_y, TILE, camera.tiles_x, TILE).sum(dim=(1, 3)).flatten()
    return Fused(loss.value, loss.l1, loss.ssim, gradients, by_tile[bins.tiles.long()])
