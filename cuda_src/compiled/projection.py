"""project and project_backward: what the kernels of project.cu and project_backward.cu are given."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.compiled.bindings import address, call, count
from cuda_src.compiled.bounds import volume_of
from cuda_src.compiled.scratch import scratch_for
from cuda_src.compiled.seen import ALIGNMENT, SplatGradients
from cuda_src.compiled.view import view_of
from cuda_src.operators import KernelSet, Room, Splats
from cuda_src.workspace import Workspace

_FIRST_ROOM = 8
"""A workspace's first view gets room for one Gaussian in so many, and grows if it sees more."""


class Visible(ctypes.Structure):
    """Which rows `cull_gaussians` found visible; the same struct as in project.cu."""

    _fields_ = (
        ("words", ctypes.c_void_p),  # a bit a row: [groups]
        ("ends", ctypes.c_void_p),  # visible rows up to and with each group: [groups] int64
        ("groups", ctypes.c_void_p),  # groups with any, in no order, and -1 among them: [groups]
        ("listed", ctypes.c_void_p),  # how many in all: [1]
    )


class Target(ctypes.Structure):
    """Where splats go; the same struct as in project.cu."""

    _fields_ = (
        ("room", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("records", ctypes.c_void_p),
        ("status", ctypes.c_void_p),
        ("overflow", ctypes.c_void_p),
    )


def project(
    kernels: KernelSet,
    parameters: torch.Tensor,
    ids: torch.Tensor,
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
    room: Room | None = None,
    bounds: torch.Tensor | None = None,
) -> Splats:
    """See `cuda_src.operators.project`. One read by the host, how many are visible; none with a room."""
    n, device = parameters.shape[0], parameters.device
    if n == 0:
        return _nothing(workspace, room)
    parameters = parameters if parameters.data_ptr() % ALIGNMENT == 0 else parameters.clone()
    view = ctypes.byref(view_of(kernels, camera))
    groups = max(1, -(-n // layout.GROUP))
    words, counts, listed, number = (
        workspace.take(f"project.{name}", (size,), torch.int32)
        for name, size in (("words", groups), ("counts", groups), ("groups", groups), ("listed", 1))
    )
    ends = workspace.take("project.ends", (groups,), torch.int64)
    volume = None if bounds is None else ctypes.byref(volume_of(kernels, camera))
    candidates = None if bounds is None else workspace.take("project.candidates", (groups + 1,), torch.int32)
    call(
        "cull_gaussians", device, view, volume, parameters, bounds, count(n), scratch_for(groups, workspace),
        candidates, words, counts, ends, listed, number,
    )  # fmt: skip
    visible = Visible(address(words), address(ends), address(listed), address(number))

    def make_splats(most: int, overflow: torch.Tensor | None) -> tuple[Splats, torch.Tensor]:
        status = workspace.take("project.status", (2,), torch.int64)
        rows = workspace.take("project.rows", (most,), torch.int64)
        own_ids = workspace.take("project.ids", (most,), torch.int64)
        records = workspace.take("project.records", (most, layout.RECORD_STRIDE))
        target = Target(most, address(rows), address(own_ids), address(records), address(status), address(overflow))
        call(
            "project_visible", device, view, parameters, ids, count(n), sh_degree, ctypes.byref(visible),
            ctypes.byref(target),
        )  # fmt: skip
        return Splats(rows, own_ids, records[:, : layout.RECORD]), status

    if room is not None:
        splats, status = make_splats(room.splats, room.overflow)
        return replace(splats, live=status, overflow=room.overflow)
    most = max(workspace.capacity("project.rows", torch.int64), -(-n // _FIRST_ROOM))
    splats, status = make_splats(most, None)
    seen, undrawn = status.tolist()
    if seen > most:
        splats, status = make_splats(seen, None)
        undrawn = status.tolist()[1]
    splats = Splats(splats.rows[:seen], splats.ids[:seen], splats.records[:seen])
    if undrawn:
        # Their colour is not finite, which only the kernel that reads harmonics could see; they are very few.
        drawn = torch.isfinite(splats.records[:, layout.RECORD_DEPTH])
        splats = Splats(splats.rows[drawn], splats.ids[drawn], splats.records[drawn])
    return splats


def _nothing(workspace: Workspace, room: Room | None) -> Splats:
    """The splats of no Gaussians."""
    most = 0 if room is None else room.splats
    none = workspace.take("project.ids", (most,), torch.int64)
    records = workspace.take("project.records", (most, layout.RECORD_STRIDE))[:, : layout.RECORD]
    if room is None:
        return Splats(none, none, records)
    return Splats(none, none, records, workspace.zeros("project.status", (2,), torch.int64), room.overflow)


def project_backward(
    kernels: KernelSet,
    parameters: torch.Tensor,
    splats: Splats,
    camera: Camera,
    sh_degree: int,
    gradients: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    """See `cuda_src.operators.project_backward`. Rows of splats that are not in use are not written."""
    out = workspace.take("project_backward.gradients", (splats.count, layout.PARAMETERS))
    seen = SplatGradients.of(splats, gradients, "project_backward", workspace)
    view = ctypes.byref(view_of(kernels, camera))
    call("project_backward", parameters.device, view, parameters, ctypes.byref(seen.struct), sh_degree, out)
    return out
