"""raster_forward and raster_backward: what the kernels of the same names are given."""

from __future__ import annotations

import ctypes

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.compiled.bindings import call, count
from cuda_src.compiled.view import view_of
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.workspace import Workspace


def raster_forward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    workspace: Workspace,
    start_transmittance: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_range: torch.Tensor | None,
) -> Raster:
    """See `cuda_src.operators.raster_forward`."""
    size = (camera.height, camera.width)
    raster = Raster(
        colour=workspace.take("raster.colour", (*size, 3)),
        transmittance=workspace.take("raster.transmittance", size),
        depth=workspace.take("raster.depth", size),
        stopped=workspace.take("raster.stopped", size, torch.uint8),
        last=workspace.take("raster.last", size, torch.int32),
        stop_depth=workspace.take("raster.stop_depth", size),
    )
    pictures = tuple(getattr(raster, name) for name in Raster.__dataclass_fields__)
    if len(bins.tiles) < camera.tiles:
        # The kernel writes listed tiles alone.
        for picture in pictures:
            picture.zero_()
    view = ctypes.byref(view_of(kernels, camera))
    call(
        "raster_forward", splats.records.device, view, bins.tiles, count(len(bins.tiles)),
        bins.starts, bins.splat, splats.records.contiguous(), as_real(start_transmittance),
        None if subtiles is None else subtiles.contiguous(), as_real(depth_range), *pictures,
    )  # fmt: skip
    return raster


def raster_backward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    raster: Raster,
    camera: Camera,
    grad_colour: torch.Tensor,
    workspace: Workspace,
    background: torch.Tensor | None,
    grad_transmittance: torch.Tensor | None,
    grad_depth: torch.Tensor | None,
    start_transmittance: torch.Tensor | None,
    depth_range: torch.Tensor | None,
) -> torch.Tensor:
    """See `cuda_src.operators.raster_backward`. Sums over tiles are atomic: their order, and so the last bit, varies.

    The forward's start needs no second look: light is followed back from what it left.
    """
    gradients = workspace.take("raster_backward.gradients", (splats.count, layout.GRADIENT))
    view = ctypes.byref(view_of(kernels, camera))
    call(
        "raster_backward", splats.records.device, view, bins.tiles, count(len(bins.tiles)),
        bins.starts, bins.splat, splats.records.contiguous(), count(splats.count),
        raster.transmittance.contiguous(), raster.last.contiguous(), as_real(depth_range), as_real(grad_colour),
        as_real(background), 3 if background is not None and background.dim() == 3 else 0,
        as_real(grad_transmittance), as_real(grad_depth), gradients,
    )  # fmt: skip
    return gradients


def as_real(values: torch.Tensor | None) -> torch.Tensor | None:
    """As the kernels read it: float32, contiguous; a copy only where it is not."""
    return None if values is None else values.detach().to(torch.float32).contiguous()
