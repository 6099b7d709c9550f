"""Three ways for a splat's gradient to come back to its owner, each a value of `exchange`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from cuda_src.camera import TILE
from cuda_src.exchange import SENT_GRADIENTS
from cuda_src.layout import GRADIENT
from cuda_src.operators import Bins, Raster
from strategies.distribution.gaussian_exchange import BACKWARD_BYTES
from strategies.distribution.ledger import Ledger
from strategies.unified.arenas import Arena
from strategies.unified.frames import Frames
from strategies.unified.push import Route
from strategies.unified.sectors import item_bytes


class GradientReturn(ABC):
    """One batch's way back. `leave` runs on the streams of those who rendered, `collect`, after a join, on the owners'.

    A sum over places is taken in the order of places, so that two runs have the same bits.
    """

    def __init__(self, route: Route, arenas: Sequence[Arena]):
        self.route, self.arenas = route, arenas
        self.places = len(arenas)

    @abstractmethod
    def leave(self, view: int, place: int, gradients: torch.Tensor) -> None:
        """Gradients [slots, GRADIENT] of the place's inbox, where their owners find them."""

    @abstractmethod
    def collect(self, view: int, owner: int) -> torch.Tensor:
        """Gradients of the owner's splats, [V, GRADIENT], summed over the places that rendered them."""

    @abstractmethod
    def moved_bytes(self, frames: Frames) -> torch.Tensor:
        """[places, places] int64 from who rendered to who owns."""

    def enter(self, ledger: Ledger, stage: str, frames: Frames) -> None:
        """What went back, in the ledger."""
        for place, bytes_to in enumerate(self.moved_bytes(frames).tolist()):
            ledger.add(stage, place, bytes_to)

    def _totals(self, view: int, owner: int) -> torch.Tensor:
        splats = self.route.owners[owner].splats[view]
        return splats.records.new_zeros((splats.count, GRADIENT))

    def _add(self, totals: torch.Tensor, view: int, owner: int, place: int, rows: torch.Tensor) -> None:
        """Add one place's rows, which lie in the order of the owner's slots there."""
        totals[:, :SENT_GRADIENTS].index_add_(0, self.route.owners[owner].sent[view][place], rows[:, :SENT_GRADIENTS])


class Push(GradientReturn):
    """Gradients take the place of the records in the inbox; owners read their slots, remotely and in order."""

    def leave(self, view: int, place: int, gradients: torch.Tensor) -> None:
        self.route.inboxes[view][place][:, :SENT_GRADIENTS] = gradients[:, :SENT_GRADIENTS]

    def collect(self, view: int, owner: int) -> torch.Tensor:
        totals = self._totals(view, owner)
        for place in range(self.places):
            slots = self.route.inboxes[view][place][self.route.slots(view, owner, place)]
            # Whole slots of another GPU, so that the link moves whole sectors.
            self._add(totals, view, owner, place, slots.to(totals.device, non_blocking=True))
        return totals

    def moved_bytes(self, frames: Frames) -> torch.Tensor:
        return self.route.stored_bytes().T


class RemoteAtomic(GradientReturn):
    """The raster backward adds to the owner's accumulators, one vector reduction a (tile, splat).

    On a GPU the order of additions is the hardware's; here every place's reductions wait for the join and are
    applied in the order of places.
    """

    def __init__(self, route: Route, arenas: Sequence[Arena]):
        super().__init__(route, arenas)
        self._waiting: list[dict[int, torch.Tensor]] = [{} for _ in range(self.places)]

    def leave(self, view: int, place: int, gradients: torch.Tensor) -> None:
        self._waiting[place][view] = gradients

    def collect(self, view: int, owner: int) -> torch.Tensor:
        totals = self._totals(view, owner)
        for place, waiting in enumerate(self._waiting):
            if view in waiting:
                slots = waiting[view][self.route.slots(view, owner, place)]
                self._add(totals, view, owner, place, slots.to(totals.device, non_blocking=True))
        return totals

    def moved_bytes(self, frames: Frames) -> torch.Tensor:
        """Whole sectors of an accumulator for each instance that the backward walks over."""
        table = torch.zeros((self.places, self.places), dtype=torch.int64)
        for place, of_place in enumerate(frames):
            for view, frame in of_place.items():
                slots = frame.bins.splat[walked(frame.bins, frame.raster)].long()
                ends = torch.tensor(self.route.first[view][place][1:], device=slots.device)
                owners = torch.searchsorted(ends, slots, right=True)
                table[place] += torch.bincount(owners, minlength=self.places).cpu()
        return table * item_bytes(BACKWARD_BYTES)


class LocalReduce(GradientReturn):
    """A dense buffer of all rows at every place and view, then a reduce-scatter: a control for the other two."""

    def __init__(self, route: Route, arenas: Sequence[Arena]):
        super().__init__(route, arenas)
        dtype = route.inboxes[0][0].dtype
        shape = (sum(arena.count for arena in arenas), SENT_GRADIENTS)
        self._buffers = [[a.works[v].zeros("dense", shape, dtype) for a in arenas] for v in range(route.views)]

    def leave(self, view: int, place: int, gradients: torch.Tensor) -> None:
        self._buffers[view][place][self.route.rows(view, place)] = gradients[:, :SENT_GRADIENTS]

    def collect(self, view: int, owner: int) -> torch.Tensor:
        arena, totals = self.arenas[owner], self._totals(view, owner)
        reduced = totals.new_zeros((arena.count, SENT_GRADIENTS))
        for buffer in self._buffers[view]:
            reduced += buffer[arena.rows_on(buffer.device)].to(totals.device, non_blocking=True)
        totals[:, :SENT_GRADIENTS] = reduced[arena.positions(self.route.owners[owner].splats[view])]
        return totals

    def moved_bytes(self, frames: Frames) -> torch.Tensor:
        owned = torch.tensor([arena.count for arena in self.arenas])
        return (owned * BACKWARD_BYTES * self.route.views).expand(self.places, self.places)


def walked(bins: Bins, raster: Raster) -> torch.Tensor:
    """Instances that the raster backward walks over, [M] bool: up to the last that a pixel of their tile blended."""
    deepest = F.max_pool2d(raster.last[None].double(), TILE, ceil_mode=True)[0].flatten()[bins.tiles.long()]
    lengths = bins.starts[1:] - bins.starts[:-1]
    number = torch.arange(bins.instances, device=lengths.device) - bins.starts[:-1].repeat_interleave(lengths)
    return number < deepest.repeat_interleave(lengths)


GRADIENT_RETURNS: dict[str, type[GradientReturn]] = {
    "push": Push,
    "remote_atomic": RemoteAtomic,
    "local_reduce": LocalReduce,
}
