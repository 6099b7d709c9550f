"""The lists of a rank's own tiles, with sizes that the exchange has told, so that the host waits for no device."""

from __future__ import annotations

from dataclasses import replace

import torch

from cuda_src.camera import Camera
from cuda_src.operators import Bins, KernelSet, Room, Splats, bin_splats
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
) -> Bins:
    """Lists of these tiles, of splats that came from all ranks. instances: of all of them, or more.

    overflow: set if they are more after all; as of a `Room`.
    """
    count = splats.count
    if not kernels.takes_rooms or count == 0:
        return bin_splats(kernels, splats, camera, work, tiles, depth_limit=depth_limit)

    def counted() -> torch.Tensor:
        live = torch.zeros(2, dtype=torch.int64, device=splats.records.device)
        live[0].fill_(count)
        return live

    splats = replace(splats, live=work.kept(("listed.live", count), counted), overflow=overflow)
    room = Room(count, instances, overflow)
    return bin_splats(kernels, splats, camera, work, tiles, depth_limit=depth_limit, room=room)
