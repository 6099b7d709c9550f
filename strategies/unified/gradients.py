"""Three ways for a splat's gradient to come back to its owner, each a value of `exchange`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from cuda_src.camera import TILE
from cuda_src.exchange import SENT_GRADIENTS, add_to_owners
from cuda_src.layout import ACCUMULATOR_STRIDE, GRADIENT
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from strategies.distribution.gaussian_exchange import BACKWARD_BYTES
from strategies.distribution.host_copies import HostCopies
from strategies.unified.arenas import Arena
from strategies.unified.frames import Frame, Frames
from strategies.unified.push import Route
from strategies.unified.sectors import item_bytes


class GradientReturn(ABC):
    """One batch's way back. `leave` runs on the streams of those who rendered, `collect`, after a join, on the owners'.

    Between making one and the first `leave` places meet. A sum over places is taken in the order of places, so that two
    runs have the same bits where each place's do.
    """

    def __init__(self, route: Route, arenas: Sequence[Arena], kernels: KernelSet):
        self.route, self.arenas, self.kernels = route, arenas, kernels
        self.places = len(arenas)

    def summed_by(self, frame: Frame) -> tuple[Splats, Bins]:
        """What the raster backward is given: the splats that it sums gradients by, and their instances."""
        return frame.splats, frame.bins

    @abstractmethod
    def leave(self, view: int, place: int, frame: Frame, gradients: torch.Tensor) -> None:
        """Gradients [V, GRADIENT] of what the place's frame was summed by, where their owners find them."""

    @abstractmethod
    def collect(self, view: int, owner: int) -> torch.Tensor:
        """Gradients of the owner's splats, [V, GRADIENT], summed over the places that rendered them."""

    @abstractmethod
    def count_bytes(self, frames: Frames, copies: Sequence[HostCopies]) -> Callable[[], list[list[int]]]:
        """Start to count what went back; what is returned waits for it: by who rendered, then who owns. copies: by
        place, memory that counts come to the host in."""

    def _totals(self, view: int, owner: int) -> torch.Tensor:
        splats = self.route.owners[owner].splats[view]
        return splats.records.new_zeros((splats.count, GRADIENT))

    def _add(self, totals: torch.Tensor, view: int, owner: int, place: int, rows: torch.Tensor) -> None:
        """Add one place's rows, which lie in the order of the owner's slots there."""
        totals[:, :SENT_GRADIENTS].index_add_(0, self.route.owners[owner].sent[view][place], rows[:, :SENT_GRADIENTS])


class Push(GradientReturn):
    """Gradients take the place of the records in the inbox; owners read their slots, remotely and in order."""

    def leave(self, view: int, place: int, frame: Frame, gradients: torch.Tensor) -> None:
        self.route.inboxes[view][place][:, :SENT_GRADIENTS] = gradients[:, :SENT_GRADIENTS]

    def collect(self, view: int, owner: int) -> torch.Tensor:
        totals = self._totals(view, owner)
        for place in range(self.places):
            slots = self.route.inboxes[view][place][self.route.slots(view, owner, place)]
            # Whole slots of another GPU, so that the link moves whole sectors.
            self._add(totals, view, owner, place, slots.to(totals.device, non_blocking=True))
        return totals

    def count_bytes(self, frames: Frames, copies: Sequence[HostCopies]) -> Callable[[], list[list[int]]]:
        return lambda: list(map(list, zip(*self.route.stored_bytes, strict=True)))


class RemoteAtomic(GradientReturn):
    """Owners' accumulators, to which who rendered adds a vector reduction a (tile, splat), remotely.

    An owner has an accumulator for each splat and place that rendered it, so that its sum over places has an order. At
    one place the order of additions is the hardware's on a GPU.
    """

    def __init__(self, route: Route, arenas: Sequence[Arena], kernels: KernelSet):
        super().__init__(route, arenas, kernels)
        places = range(self.places)
        self._accumulators: list[list[tuple[torch.Tensor, ...]]] = []
        """By view, owner and place that adds."""
        self._walked: dict[tuple[int, int], torch.Tensor] = {}
        """By view and place, which instances its backward walked over, [M] bool."""
        for view in range(route.views):
            slots = [[route.slots(view, owner, place) for place in places] for owner in places]
            lengths = [[one.stop - one.start for one in of_owner] for of_owner in slots]
            works = [arena.works[view] for arena in arenas]
            self._accumulators.append(
                [
                    work.zeros("accumulators", (sum(own), ACCUMULATOR_STRIDE), kernels.dtype).split(own)
                    for work, own in zip(works, lengths, strict=True)
                ]
            )

    def summed_by(self, frame: Frame) -> tuple[Splats, Bins]:
        """Each instance as a splat of its own."""
        splats, bins = frame.splats, frame.bins
        which = bins.splat.long()
        every = torch.arange(bins.instances + 1, device=which.device)
        ordered = bins.slot is not None
        alone = Bins(
            bins.tiles, bins.starts, every[:-1].int(), every[:-1] if ordered else None, every if ordered else None
        )
        return Splats(splats.rows[which], splats.ids[which], splats.records[which]), alone

    def leave(self, view: int, place: int, frame: Frame, gradients: torch.Tensor) -> None:
        accumulators = [of_owner[place] for of_owner in self._accumulators[view]]
        counted = self._walked[view, place] = walked(frame.bins, frame.raster)
        add_to_owners(self.kernels, gradients, frame.bins.splat, counted, accumulators)

    def collect(self, view: int, owner: int) -> torch.Tensor:
        totals = self._totals(view, owner)
        for place, accumulated in enumerate(self._accumulators[view][owner]):
            self._add(totals, view, owner, place, accumulated)
        return totals

    def count_bytes(self, frames: Frames, copies: Sequence[HostCopies]) -> Callable[[], list[list[int]]]:
        """Whole sectors of an accumulator for each instance that the backward walked over."""
        coming = []
        for place, of_place in enumerate(frames):
            counted = [self._walked_by_owner(view, place, frame) for view, frame in of_place.items()]
            none = torch.zeros(self.places, dtype=torch.int64)
            coming.append(copies[place].start(torch.stack(counted).sum(0) if counted else none))
        return lambda: (torch.stack([one.read(torch.clone) for one in coming]) * item_bytes(BACKWARD_BYTES)).tolist()

    def _walked_by_owner(self, view: int, place: int, frame: Frame) -> torch.Tensor:
        """Instances that the place's backward walked over, [places] int64 by owner of their splat, on its device."""
        counted, slots = self._walked[view, place], frame.bins.splat
        return torch.stack([(counted & (slots < end)).sum() for end in self.route.first[view][place]]).diff()


class LocalReduce(GradientReturn):
    """A dense buffer of all rows at every place and view, then a reduce-scatter: a control for the other two."""

    def __init__(self, route: Route, arenas: Sequence[Arena], kernels: KernelSet):
        super().__init__(route, arenas, kernels)
        shape = (sum(arena.count for arena in arenas), SENT_GRADIENTS)
        self._buffers = [[a.works[v].zeros("dense", shape, kernels.dtype) for a in arenas] for v in range(route.views)]

    def leave(self, view: int, place: int, frame: Frame, gradients: torch.Tensor) -> None:
        self._buffers[view][place][self.route.rows(view, place)] = gradients[:, :SENT_GRADIENTS]

    def collect(self, view: int, owner: int) -> torch.Tensor:
        arena, totals = self.arenas[owner], self._totals(view, owner)
        reduced = totals.new_zeros((arena.count, SENT_GRADIENTS))
        for buffer in self._buffers[view]:
            reduced += buffer[arena.rows_on(buffer.device)].to(totals.device, non_blocking=True)
        totals[:, :SENT_GRADIENTS] = reduced[arena.positions(self.route.owners[owner].splats[view])]
        return totals

    def count_bytes(self, frames: Frames, copies: Sequence[HostCopies]) -> Callable[[], list[list[int]]]:
        owned = [arena.count * BACKWARD_BYTES * self.route.views for arena in self.arenas]
        return lambda: [owned] * self.places


def walked(bins: Bins, raster: Raster) -> torch.Tensor:
    """Instances that the raster backward walks over, [M] bool: up to the last that a pixel of their tile blended."""
    deepest = F.max_pool2d(raster.last[None].double(), TILE, ceil_mode=True)[0].flatten()[bins.tiles.long()]
    lengths = bins.starts[1:] - bins.starts[:-1]
    # Said beforehand how many they are, nobody waits.
    first, last = (
        of_tile.repeat_interleave(lengths, output_size=bins.instances) for of_tile in (bins.starts[:-1], deepest)
    )
    return torch.arange(bins.instances, device=lengths.device) - first < last


GRADIENT_RETURNS: dict[str, type[GradientReturn]] = {
    "push": Push,
    "remote_atomic": RemoteAtomic,
    "local_reduce": LocalReduce,
}
