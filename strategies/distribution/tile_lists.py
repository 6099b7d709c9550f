"""The lists of a rank's own tiles, with sizes that the exchange has told, so that the host waits for no device."""

from __future__ import annotations

from dataclasses import replace

import torch

from cuda_src.camera import Camera
from cuda_src.operators import Bins, KernelSet, Room, Splats, bin_splats
from cuda_src.workspace import Workspace


class TileLists:
    """Lists views in a room that is exactly what they need, and tells later which of them have to be listed again.

    The one thing nobody knows beforehand is whether runs of equal depths are too long for the quick way. Then the flag
    is up, which is copied behind the listing and looked at once the images are queued as well; such a view is listed
    with sizes that the host reads, now and ever after.
    """

    def __init__(self, kernels: KernelSet, device: torch.device) -> None:
        self._kernels = kernels
        self._rooms = kernels.takes_rooms
        self._unordered = torch.zeros(1, dtype=torch.int32, device=device)
        self._exact: set[int] = set()
        self._asked: list[tuple[int, torch.Tensor]] = []
        self._idle: list[torch.Tensor] = []
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def list(
        self,
        view: int | None,
        splats: Splats,
        instances: int,
        camera: Camera,
        tiles: torch.Tensor,
        work: Workspace,
        depth_limit: torch.Tensor | None,
    ) -> Bins:
        """Lists of these tiles. view: its number; None for one that is not visited again. instances: of all of them."""
        kernels = self._kernels
        if not self._rooms or view is None or view in self._exact or splats.count == 0:
            return bin_splats(kernels, splats, camera, work, tiles, depth_limit=depth_limit)
        room = Room(splats.count, instances, self._unordered)
        bins = self.list_in(room, splats, camera, tiles, work, depth_limit)
        flag = (
            self._idle.pop() if self._idle else torch.empty(1, dtype=torch.int32, pin_memory=self._copied is not None)
        )
        flag.copy_(self._unordered, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._asked.append((view, flag))
        return bins

    def list_in(
        self,
        room: Room,
        splats: Splats,
        camera: Camera,
        tiles: torch.Tensor,
        work: Workspace,
        depth_limit: torch.Tensor | None = None,
    ) -> Bins:
        """Lists in a room that may turn out too small: its flag is the caller's to look at. It has all the splats."""
        count = splats.count
        live = work.kept(("listed.live", count), lambda: torch.tensor([count, 0], device=splats.records.device))
        splats = replace(splats, live=live, overflow=room.overflow)
        return bin_splats(self._kernels, splats, camera, work, tiles, depth_limit=depth_limit, room=room)

    def unordered(self) -> set[int]:
        """Views listed since the last call whose lists are not in order; waits until all of them are there."""
        if not self._asked:
            return set()
        if self._copied is not None:
            self._copied.synchronize()
        found = {view for view, flag in self._asked if int(flag)}
        self._idle += [flag for _, flag in self._asked]
        self._asked.clear()
        if found:
            self._unordered.zero_()
            self._exact |= found
        return found

    def clear(self) -> None:
        """Forget which views need exact lists: the Gaussians are others now."""
        self._exact.clear()
