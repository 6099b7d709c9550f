"""bin_splats: what the kernels of bin.cu are given."""

from __future__ import annotations

import ctypes

import torch

from cuda_src.camera import Camera
from cuda_src.compiled.bindings import address, call, count
from cuda_src.compiled.raster import as_real
from cuda_src.compiled.scratch import scratch_for
from cuda_src.compiled.view import view_of
from cuda_src.operators import Bins, KernelSet, Splats
from cuda_src.workspace import Workspace

_MOST_INSTANCES = 1 << 32
"""Slots are 32 bits while they are sorted."""


class Given(ctypes.Structure):
    """The view's splats and what limits their instances; the same struct as in bin.cu."""

    _fields_ = (
        ("records", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("splats", ctypes.c_int64),
        ("places", ctypes.c_void_p),
        ("subtiles", ctypes.c_void_p),
        ("depth_limit", ctypes.c_void_p),
    )


def bin_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
) -> Bins:
    """See `cuda_src.operators.bin_splats`. One read by the host: how many instances there are."""
    device, n, view = splats.records.device, splats.count, ctypes.byref(view_of(kernels, camera))
    records, ids = splats.records.contiguous(), splats.ids.contiguous()
    places = None
    if tiles is not None:
        tiles = tiles.to(device)
        places = workspace.take("bin.places", (camera.tiles,), torch.int32)
        call("list_tiles", device, tiles, count(len(tiles)), places, count(camera.tiles))
    listed = camera.tiles if tiles is None else len(tiles)
    starts = workspace.take("bin.starts", (listed + 1,), torch.int64)
    splat_starts = workspace.take("bin.splat_starts", (n + 1,), torch.int64)
    if n == 0 or listed == 0:
        none = torch.zeros(0, dtype=torch.int32, device=device)
        tiles = _every_tile(camera, workspace) if tiles is None else tiles
        return Bins(tiles, starts.zero_(), none, none.to(torch.int64), splat_starts.zero_())

    subtiles = None if subtiles is None else subtiles.contiguous()
    depth_limit = as_real(depth_limit)
    given = Given(address(records), address(ids), n, address(places), address(subtiles), address(depth_limit))
    counts = workspace.take("bin.counts", (n,), torch.int32)
    work = [workspace.take(f"bin.splats{i}", (n,), torch.int32) for i in range(4)]
    order = workspace.take("bin.order", (n,), torch.int32)
    status = workspace.take("bin.status", (2,), torch.int64)
    call(
        "order_splats", device, view, ctypes.byref(given), scratch_for(n, workspace), counts, splat_starts, *work,
        order, status,
    )  # fmt: skip
    instances, unordered = status.tolist()
    if unordered:
        call("order_by_id_first", device, ctypes.byref(given), scratch_for(n, workspace), *work, order)
    if instances >= _MOST_INSTANCES:
        raise RuntimeError(f"{instances} tile instances in one view; expected fewer than {_MOST_INSTANCES}")

    ends = workspace.take("bin.ordered_ends", (n,), torch.int64)
    pairs = [workspace.take(f"bin.instances{i}", (instances,), torch.int32) for i in range(5)]
    splat = workspace.take("bin.splat", (instances,), torch.int32)
    slot = workspace.take("bin.slot", (instances,), torch.int64)
    call(
        "list_bins", device, view, ctypes.byref(given), scratch_for(max(n, instances), workspace), counts,
        splat_starts, order,
        count(instances), count(listed), max(1, (listed - 1).bit_length()), work[0], ends, *pairs, splat, slot, starts,
    )  # fmt: skip
    return Bins(_every_tile(camera, workspace) if tiles is None else tiles, starts, splat, slot, splat_starts)


def _every_tile(camera: Camera, workspace: Workspace) -> torch.Tensor:
    tiles = workspace.take("bin.tiles", (camera.tiles,), torch.int32)
    return torch.arange(camera.tiles, dtype=torch.int32, device=tiles.device, out=tiles)
