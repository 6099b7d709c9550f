"""The lists of a rank's own tiles, with sizes that the exchange has told, so that the host waits for no device."""

from __future__ import annotations

from dataclasses import replace

import torch

from cuda_src.camera import Camera
from cuda_src.operators import Bins, KernelSet, Room, Splats, begin_bins, bin_splats
from cuda_src.workspace import Workspace


def list_tiles(
    kernels: KernelSet,
    splats: Splats,
    instances: int,
    overflow: torch.Tensor,
    camera: Camera,
    tiles: torch.Tensor,
    work: Workspace,
    depth_limit: torch.Tensor | None = None,
    begun: range = range(0),
) -> Bins:
    """Lists of these tiles, of splats that came from all ranks. instances: of all of them, or more.

    overflow: set if they are more after all; as of a `Room`. begun: splats that lists were begun with.
    """
    if not kernels.takes_rooms or splats.count == 0:
        return bin_splats(kernels, splats, camera, work, tiles, depth_limit=depth_limit)
    splats, room = _in_room(splats, instances, overflow, work)
    return bin_splats(kernels, splats, camera, work, tiles, depth_limit=depth_limit, room=room, begun=begun)


def begin_lists(
    kernels: KernelSet,
    splats: Splats,
    instances: int,
    overflow: torch.Tensor,
    camera: Camera,
    tiles: torch.Tensor,
    work: Workspace,
    depth_limit: torch.Tensor | None,
    there: range,
) -> None:
    """Begin the lists of `list_tiles` with the splats that are there: this rank's own. Kernels take rooms."""
    splats, room = _in_room(splats, instances, overflow, work)
    begin_bins(kernels, splats, camera, work, tiles, depth_limit, room, there)


def _in_room(splats: Splats, instances: int, overflow: torch.Tensor, work: Workspace) -> tuple[Splats, Room]:
    """All of them in use."""
    count = splats.count

    def counted() -> torch.Tensor:
        live = torch.zeros(2, dtype=torch.int64, device=splats.records.device)
        live[0].fill_(count)
        return live

    live = work.kept(("listed.live", count), counted)
    return replace(splats, live=live, overflow=overflow), Room(count, instances, overflow)
