"""Compile every kernel before it is timed: run one tiny step, which meets the signatures in use."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, LossWindow
from cuda_src.portable.adam import adam_rows
from cuda_src.portable.binning import bin_splats
from cuda_src.portable.compositing import raster_forward
from cuda_src.portable.compositing_gradient import raster_backward
from cuda_src.portable.fused import raster_fused
from cuda_src.portable.loss import l1_ssim
from cuda_src.portable.projection import project, project_backward
from cuda_src.portable.statistics import densification_statistics
from cuda_src.workspace import Workspace


def compile_all(progress: Callable[[str], None] | None = None, device: str = "cpu") -> None:
    """Compile every kernel for that device, or load it from the disk cache where another process left it.

    progress is told the operator about to be compiled.
    """

    def begin(operator: str) -> None:
        if progress is not None:
            progress(operator)

    place = torch.device(device)
    kernels, workspace = KernelSet(device=place), Workspace(place)
    camera = Camera(16, 16, 16.0, 16.0, 8.0, 8.0, np.eye(4))
    gaussian = torch.zeros(1, layout.PARAMETERS, device=place)
    gaussian[0, 2] = 2.0
    gaussian[0, layout.LOG_SCALE] = math.log(0.1)

    begin("project")
    splats = project(kernels, gaussian, torch.zeros(1, dtype=torch.int64, device=place), camera, 3, workspace)
    begin("bin_splats")
    bins = bin_splats(kernels, splats, camera, workspace, None, None, None)
    begin("raster_forward")
    raster = raster_forward(kernels, splats, bins, camera, workspace, None, None, None)
    begin("l1_ssim")
    target = torch.zeros(16, 16, 3, dtype=torch.uint8, device=place)
    windows = (LossWindow("exact"), LossWindow("tile"), LossWindow("l1"))
    for window in windows:
        loss = l1_ssim(kernels, raster.colour, target, workspace, None, None, "exact", 0.2, window)
    begin("raster_backward")
    gradients = raster_backward(
        kernels, splats, bins, raster, camera, loss.gradient, workspace, None, None, None, None, None
    )
    if device == "cpu":
        begin("raster_fused")
        for window in windows:
            raster_fused(kernels, splats, bins, camera, target, workspace, None, None, 0.2, window, None)
    begin("project_backward")
    rows = project_backward(kernels, gaussian, splats, camera, 3, gradients, workspace)
    begin("adam_rows")
    views = torch.ones(1, dtype=torch.int32, device=place)
    moments, rates = torch.zeros_like(gaussian), torch.zeros(layout.PARAMETERS, device=place)
    adam_rows(kernels, gaussian, moments, moments.clone(), splats.rows, rows, views, rates, 1, 0.9, 0.999, 1e-15)
    begin("densification_statistics")
    densification_statistics(kernels, splats, camera, gradients, torch.zeros(1, layout.STATISTICS, device=place))
