"""The lists of a rank's own tiles, with sizes that the exchange has told, so that the host waits for no device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cuda_src.camera import Camera
from cuda_src.operators import Bins, KernelSet, Room, Splats, begin_bins, bin_splats
from cuda_src.workspace import Workspace


@dataclass(frozen=True)
class TileLists:
    """Lists of these tiles, of splats that come from all ranks. instances: of all of them, or more.

    overflow: set if they are more after all; as of a `Room`.
    """

    kernels: KernelSet
    splats: Splats
    instances: int
    overflow: torch.Tensor
    camera: Camera
    tiles: torch.Tensor
    work: Workspace
    depth_limit: torch.Tensor | None = None

    def begin(self, there: range) -> None:
        """Begin them with the splats that are there. Kernels take rooms."""
        splats, room = self._in_room()
        begin_bins(self.kernels, splats, self.camera, self.work, self.tiles, self.depth_limit, room, there)

    def made(self, begun: range = range(0)) -> Bins:
        """begun: splats that they were begun with."""
        kernels, limit = self.kernels, self.depth_limit
        if not kernels.takes_rooms or self.splats.count == 0:
            return bin_splats(kernels, self.splats, self.camera, self.work, self.tiles, depth_limit=limit)
        splats, room = self._in_room()
        return bin_splats(
            kernels, splats, self.camera, self.work, self.tiles, depth_limit=limit, room=room, begun=begun
        )

    def _in_room(self) -> tuple[Splats, Room]:
        """All of them in use."""
        count = self.splats.count

        def counted() -> torch.Tensor:
            live = torch.zeros(2, dtype=torch.int64, device=self.splats.records.device)
            live[0].fill_(count)
            return live

        live = self.work.kept(("listed.live", count), counted)
        return replace(self.splats, live=live, overflow=self.overflow), Room(count, self.instances, self.overflow)
