"""Gaussians to splats, and the gradient back: a thread a row around the scalar projection."""

from __future__ import annotations

from functools import lru_cache

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats
from cuda_src.portable.binning import all_tiles, count_tiles
from cuda_src.portable.on_cuda.binning import tile_limits
from cuda_src.portable.on_cuda.runtime import blocks_for, cuda, kernel
from cuda_src.portable.projection import differentiate_row, project_row, view_constants
from cuda_src.portable.scalar import f32
from cuda_src.workspace import Workspace

_THREADS = 128
_RECORD = layout.RECORD
_VIEWS_KEPT = 4096


@kernel
def find_visible(parameters, view, sh_degree, alpha_min, ellipse, tile_index, limits, size, visible):
    """visible: [N] uint8, 1 where a Gaussian has a splat: what `project_rows` then writes."""
    row = cuda.grid(1)
    if row < visible.size:
        record = cuda.local.array(_RECORD, f32)
        seen = project_row(parameters[row], view, sh_degree, alpha_min, record)
        if seen:
            seen = count_tiles(record, alpha_min, ellipse, tile_index, limits, size, 1) > 0
        visible[row] = 1 if seen else 0


@kernel
def project_rows(parameters, rows, view, sh_degree, alpha_min, records):
    v = cuda.grid(1)
    if v < rows.size:
        project_row(parameters[rows[v]], view, sh_degree, alpha_min, records[v])


@kernel
def differentiate_rows(parameters, rows, records, view, sh_degree, gradients, out):
    v = cuda.grid(1)
    if v < rows.size:
        differentiate_row(parameters[rows[v]], records[v], view, sh_degree, gradients[v], out[v])


@lru_cache(maxsize=_VIEWS_KEPT)
def _view(kernels: KernelSet, camera: Camera, device: torch.device) -> torch.Tensor:
    """`view_constants` on the device; kept, since a step asks several times for that of its camera."""
    return torch.from_numpy(view_constants(kernels, camera)).to(device)


def project(
    kernels: KernelSet,
    parameters: torch.Tensor,
    ids: torch.Tensor,
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
) -> Splats:
    """See `cuda_src.operators.project`. One read by the host: how many are visible."""
    count, device = len(parameters), parameters.device
    visible = workspace.take("project.visible", (count,), torch.uint8)
    view, alpha_min = _view(kernels, camera, device), f32(kernels.convention.alpha_min)
    find_visible.launch(
        device, blocks_for(count, _THREADS), _THREADS, parameters, view, sh_degree, alpha_min,
        kernels.footprint == "ellipse", all_tiles(camera, workspace), tile_limits(workspace),
        (camera.width, camera.height), visible,
    )  # fmt: skip
    found = visible.nonzero()[:, 0]
    shape = (len(found),)
    rows = workspace.take("project.rows", shape, torch.int64).copy_(found)
    own_ids = torch.index_select(ids, 0, rows, out=workspace.take("project.ids", shape, torch.int64))
    records = workspace.take("project.records", (len(found), layout.RECORD))
    project_rows.launch(
        device, blocks_for(len(rows), _THREADS), _THREADS, parameters, rows, view, sh_degree, alpha_min, records
    )
    return Splats(rows, own_ids, records)


def project_backward(
    kernels: KernelSet,
    parameters: torch.Tensor,
    splats: Splats,
    camera: Camera,
    sh_degree: int,
    gradients: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    """See `cuda_src.operators.project_backward`."""
    device = parameters.device
    out = workspace.take("project_backward.gradients", (splats.count, layout.PARAMETERS))
    differentiate_rows.launch(
        device, blocks_for(splats.count, _THREADS), _THREADS, parameters, splats.rows, splats.records,
        _view(kernels, camera, device), sh_degree, gradients, out,
    )  # fmt: skip
    return out
