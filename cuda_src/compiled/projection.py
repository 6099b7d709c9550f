"""project and project_backward: what the kernels of project.cu and project_backward.cu are given."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import torch

from cuda_src import layout
from cuda_src.bounds import groups_of
from cuda_src.camera import Camera
from cuda_src.compiled.bindings import Launch, ReplayedLaunch, address, call, count
from cuda_src.compiled.bounds import volume_of
from cuda_src.compiled.scratch import Scratch, scratch_for
from cuda_src.compiled.seen import ALIGNMENT, SplatGradients
from cuda_src.compiled.view import view_of
from cuda_src.exchange import ids_in, row_words
from cuda_src.operators import KernelSet, Room, Splats
from cuda_src.workspace import Workspace

_STATUS = 3
"""Numbers of `Splats.live`."""
_FIRST_ROOM = 8
"""A workspace's first view gets room for one Gaussian in so many, and grows if it sees more."""


class Visible(ctypes.Structure):
    """Which rows are visible; the same struct as in project.cu."""

    _fields_ = (
        ("words", ctypes.c_void_p),  # a bit a row: [groups]
        ("counts", ctypes.c_void_p),  # visible rows of each group: [groups]
        ("ends", ctypes.c_void_p),  # visible rows up to and with each group: [groups] int64
        ("groups", ctypes.c_void_p),  # groups with any, in no order, and -1 among them: [groups]
        ("listed", ctypes.c_void_p),  # how many in all: [1]
        ("candidates", ctypes.c_void_p),  # to work with where there are bounds: [groups + 1]
        ("scratch", Scratch),
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
        ("travels", ctypes.c_int),
    )


@dataclass(frozen=True)
class _Projection:
    """Room for a view's splats, and the launches that fill it: of all rows, and of those found visible before."""

    splats: Splats
    status: torch.Tensor
    whole: Launch
    visible: Launch


def project(
    kernels: KernelSet,
    parameters: torch.Tensor,
    ids: torch.Tensor,
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
    room: Room | None = None,
    bounds: torch.Tensor | None = None,
    ids_by_row: bool = False,
    into: torch.Tensor | None = None,
) -> Splats:
    """See `cuda_src.operators.project`. One read by the host, how many are visible; none with a room."""
    n = parameters.shape[0]
    if n == 0:
        return _nothing(workspace, room, ids_by_row, into)
    parameters = parameters if parameters.data_ptr() % ALIGNMENT == 0 else parameters.clone()

    def prepared(most: int, room: Room | None) -> _Projection:
        return _prepared(kernels, parameters, ids, camera, sh_degree, workspace, most, room, bounds, ids_by_row, into)

    if room is not None:
        key = (
            "project", view_of(kernels, camera), address(parameters), n, address(ids), sh_degree, room.splats,
            address(room.overflow), address(bounds), ids_by_row, None if into is None else into.data_ptr(),
        )  # fmt: skip
        kept = workspace.kept(key, lambda: prepared(room.splats, room))
        kept.whole()
        return kept.splats
    most = max(workspace.capacity("project.rows", torch.int64), -(-n // _FIRST_ROOM))
    found = prepared(most, None)
    found.whole()
    seen, undrawn, _ = found.status.tolist()
    if seen > most:
        del found  # Or its memory would be held beside the larger one.
        found = prepared(seen, None)
        found.visible()
        undrawn = found.status.tolist()[1]
    splats = found.splats
    splats = _those(splats, slice(seen))
    if undrawn:
        # Their colour is not finite, which only the kernel that reads harmonics could see; they are very few.
        splats = _those(splats, torch.isfinite(splats.records[:, layout.RECORD_DEPTH]))
    return splats


def _those(splats: Splats, which: slice | torch.Tensor) -> Splats:
    ids = splats.ids if splats.ids_by_row else splats.ids[which]
    return Splats(splats.rows[which], ids, splats.records[which], ids_by_row=splats.ids_by_row)


def _prepared(
    kernels: KernelSet,
    parameters: torch.Tensor,
    ids: torch.Tensor,
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
    most: int,
    room: Room | None,
    bounds: torch.Tensor | None,
    ids_by_row: bool,
    into: torch.Tensor | None,
) -> _Projection:
    """For at most so many splats; their sizes are those of the room, if there is one."""
    n, device = parameters.shape[0], parameters.device
    view = ctypes.byref(view_of(kernels, camera))
    all_groups = groups_of(n)
    words, counts, groups, listed = (
        workspace.take(f"project.{name}", (size,), torch.int32)
        for name, size in (("words", all_groups), ("counts", all_groups), ("groups", all_groups), ("listed", 1))
    )
    ends = workspace.take("project.ends", (all_groups,), torch.int64)
    volume = None if bounds is None else ctypes.byref(volume_of(kernels, camera))
    candidates = None if bounds is None else workspace.take("project.candidates", (all_groups + 1,), torch.int32)
    visible = Visible(
        *(address(tensor) for tensor in (words, counts, ends, groups, listed, candidates)),
        scratch_for(all_groups, workspace),
    )
    status = workspace.take("project.status", (_STATUS,), torch.int64)
    rows = workspace.take("project.rows", (most,), torch.int64)
    own_ids = None if ids_by_row or into is not None else workspace.take("project.ids", (most,), torch.int64)
    records = workspace.take("project.records", (most, layout.RECORD_STRIDE)) if into is None else row_words(into)
    overflow = None if room is None else room.overflow
    target = Target(most, *(address(t) for t in (rows, own_ids, records, status, overflow)), into is not None)
    given = parameters, ids, count(n), sh_degree, ctypes.byref(visible), ctypes.byref(target)
    named = ids_in(records) if into is not None else ids if own_ids is None else own_ids
    splats = Splats(rows, named, records[:, : layout.RECORD], ids_by_row=ids_by_row)
    return _Projection(
        splats if room is None else replace(splats, live=status, overflow=overflow),
        status,
        ReplayedLaunch("project_gaussians", device, view, volume, bounds, *given),
        Launch("project_visible", device, view, *given),
    )


def _nothing(workspace: Workspace, room: Room | None, ids_by_row: bool, into: torch.Tensor | None) -> Splats:
    """The splats of no Gaussians."""
    most = 0 if room is None else room.splats
    none = workspace.take("project.ids", (most,), torch.int64)
    records = into
    if records is None:
        records = workspace.take("project.records", (most, layout.RECORD_STRIDE))[:, : layout.RECORD]
    if room is None:
        return Splats(none, none, records, ids_by_row=ids_by_row)
    status = workspace.zeros("project.status", (_STATUS,), torch.int64)
    return Splats(none, none, records, status, room.overflow, ids_by_row)


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
