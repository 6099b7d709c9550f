"""project and project_backward: what the kernels of project.cu and project_backward.cu are given."""

from __future__ import annotations

import ctypes

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.compiled.bindings import call, count
from cuda_src.compiled.scratch import scratch_for
from cuda_src.compiled.view import view_of
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace

_WORD = 32
"""Rows whose visibility is one word."""
_FIRST_ROOM = 8
"""A workspace's first view gets room for one Gaussian in so many, and grows if it sees more."""


def project(
    kernels: KernelSet,
    parameters: torch.Tensor,
    ids: torch.Tensor,
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
) -> Splats:
    """See `cuda_src.operators.project`. One read by the host: how many are visible."""
    n, device = parameters.shape[0], parameters.device
    if n == 0:
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return Splats(none, none, torch.zeros((0, layout.RECORD), device=device))
    view = ctypes.byref(view_of(kernels, camera))
    words = -(-n // _WORD)
    seen = workspace.take("project.words", (words,), torch.int32)
    counts = workspace.take("project.counts", (words,), torch.int32)
    ends = workspace.take("project.ends", (words,), torch.int64)
    status = workspace.take("project.status", (2,), torch.int64)
    call("cull_gaussians", device, view, parameters, count(n), scratch_for(words, workspace), seen, counts, ends)

    room = max(workspace.capacity("project.rows", torch.int64), -(-n // _FIRST_ROOM))
    while True:
        rows = workspace.take("project.rows", (room,), torch.int64)
        own_ids = workspace.take("project.ids", (room,), torch.int64)
        records = workspace.take("project.records", (room, layout.RECORD))
        call(
            "project_visible", device, view, parameters, ids, count(n), sh_degree, seen, ends, count(room),
            rows, own_ids, records, status,
        )  # fmt: skip
        visible, undrawn = status.tolist()
        if visible <= room:
            break
        room = visible
    splats = Splats(rows[:visible], own_ids[:visible], records[:visible])
    if undrawn:
        # Their colour is not finite, which only the kernel that reads harmonics could see; they are very few.
        drawn = torch.isfinite(splats.records[:, layout.RECORD_DEPTH])
        splats = Splats(splats.rows[drawn], splats.ids[drawn], splats.records[drawn])
    return splats


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
    out = workspace.take("project_backward.gradients", (splats.count, layout.PARAMETERS))
    view = ctypes.byref(view_of(kernels, camera))
    call(
        "project_backward", parameters.device, view, parameters, splats.rows.contiguous(),
        splats.records.contiguous(), count(splats.count), sh_degree, gradients.contiguous(), out,
    )  # fmt: skip
    return out
