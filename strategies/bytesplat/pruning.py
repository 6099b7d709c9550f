"""Hardware-aware pruning: remove the Gaussians that keep tile lists from fitting shared memory at least cost.

A tile whose list is over the budget gives each of its Gaussians the benefit 1 / excess: the fewer have to go, the more
each is worth. What a Gaussian costs is its importance, the sum of alpha T over views and pixels. Gaussians go in order
of benefit / importance until the target share of tiles fits (ByteSplat). The control removes as
many by importance alone. Every rank decides alike, from statistics gathered by id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.layout import RECORD_COLOUR
from cuda_src.operators import Bins, KernelSet, Splats
from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator
from strategies.distribution.gaussian_exchange import Passage

STAGE = "prune"


@dataclass(frozen=True)
class Sight:
    """One view as this rank takes part in it: its own splats sent by `passage`, and those of its tiles, binned."""

    camera: Camera
    passage: Passage
    received: Splats
    bins: Bins


@dataclass(frozen=True)
class Survey:
    """What all views said of this rank's rows. benefit, importance: [N] float64. fitting, tiles: of the whole job."""

    benefit: torch.Tensor
    importance: torch.Tensor
    fitting: int
    tiles: int


def capacity(budget: int, record_bytes: int) -> int:
    """Gaussians of a list that a budget of shared memory holds."""
    return budget // record_bytes


def list_lengths(bins: Bins) -> torch.Tensor:
    """Instances of each listed tile, [K] int64."""
    return bins.starts[1:] - bins.starts[:-1]


def blend_weights(kernels: KernelSet, splats: Splats, bins: Bins, camera: Camera, workspace: Workspace) -> torch.Tensor:
    """Sum of alpha T over the pixels of the listed tiles, by splat, [V].

    A pixel's red is the sum of alpha T times the splats' red, so its derivative by a splat's red is that splat's
    alpha T: a backward pass from 1 in red at every pixel sums it up.
    """
    raster = op.raster_forward(kernels, splats, bins, camera, workspace)
    upstream = workspace.zeros("prune.upstream", (camera.height, camera.width, 3), kernels.dtype)
    upstream[..., 0] = 1
    return op.raster_backward(kernels, splats, bins, raster, camera, upstream, workspace)[:, RECORD_COLOUR.start]


def tile_benefits(bins: Bins, capacity: int, splats: int) -> torch.Tensor:
    """Sum over the tiles over capacity that hold a splat of 1 / excess, by splat, [V] float64."""
    lengths = list_lengths(bins)
    excess = (lengths - capacity).clamp(min=0).double()
    worth = torch.where(excess > 0, 1 / excess, 0.0).repeat_interleave(lengths, output_size=bins.instances)
    return worth.new_zeros(splats).index_add_(0, bins.splat.long(), worth)


class Pruner:
    """Looks at views one at a time, so that no rank holds more than one view's lists."""

    def __init__(self, comm: Communicator, kernels: KernelSet, workspace: Workspace):
        self._comm, self._kernels, self._workspace = comm, kernels, workspace

    def survey(self, views: Sequence[int], look: Callable[[int], Sight], rows: int, capacity: int) -> Survey:
        """Benefit and importance of this rank's rows over all views. Collective."""
        found = torch.zeros((rows, 2), dtype=torch.float64, device=self._workspace.device)
        counts = torch.zeros(2, dtype=torch.int64)
        for view in views:
            sight = look(view)
            lengths = list_lengths(sight.bins)
            weights = blend_weights(self._kernels, sight.received, sight.bins, sight.camera, self._workspace)
            benefits = tile_benefits(sight.bins, capacity, sight.received.count)
            columns = torch.stack([benefits, weights.double()], dim=1)
            found[sight.passage.splats.rows] += sight.passage.sums(columns)
            counts += torch.tensor([int((lengths <= capacity).sum()), len(lengths)])
        fitting, tiles = self._comm.reduce(STAGE, counts).tolist()
        return Survey(found[:, 0], found[:, 1], fitting, tiles)

    def removable(self, ids: torch.Tensor, survey: Survey) -> torch.Tensor:
        """Ids of all Gaussians with a benefit, those to remove first in front. Collective; alike on all ranks.

        A Gaussian of no importance costs nothing, so it goes before all others; equal ratios go by id.
        """
        some = survey.benefit > 0
        return self._ordered(ids[some], -survey.benefit[some] / survey.importance[some])

    def least_important(self, ids: torch.Tensor, survey: Survey, count: int) -> torch.Tensor:
        """Ids of the `count` Gaussians of least importance, equal ones by id. Collective; alike on all ranks."""
        own = survey.importance
        # No rank's share of the answer is larger than the answer; equal ones all go along, so that ids decide.
        limit = own.sort().values[min(count, len(own)) - 1] if count and len(own) else -1.0
        some = own <= limit
        return self._ordered(ids[some], own[some])[:count]

    def needed(
        self,
        views: Sequence[int],
        look: Callable[[int], Sight],
        order: torch.Tensor,
        survey: Survey,
        capacity: int,
        target_share: float,
    ) -> int:
        """How many of `order` must go before the target share of tiles fits. Collective; alike on all ranks."""
        # A share such as 0.1 times 30 tiles is 3 tiles, whatever its last bit says.
        missing = math.ceil(target_share * survey.tiles - 1e-6) - survey.fitting
        if missing <= 0:
            return 0
        sorted_ids, place = torch.sort(order)
        mine = []
        for view in views:
            sight = look(view)
            mine.append(_removals(sight.bins, sight.received.ids, sorted_ids, place, capacity))
        every = torch.cat(self._comm.gather(STAGE, torch.cat(mine)))
        return int(every.sort().values[missing - 1])

    def _ordered(self, ids: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """All ranks' ids by ascending key, then id, on the device; keys travel as their bits. Collective."""
        parts = self._comm.gather(STAGE, torch.stack([ids.cpu(), keys.double().cpu().view(torch.int64)], dim=1))
        every, bits = torch.cat(parts).to(self._workspace.device).unbind(dim=1)
        by_id = torch.argsort(every)
        values = bits[by_id].contiguous().view(torch.float64)
        return every[by_id][torch.argsort(values, stable=True)]


def _removals(
    bins: Bins, ids: torch.Tensor, sorted_ids: torch.Tensor, place: torch.Tensor, capacity: int
) -> torch.Tensor:
    """How many Gaussians must have gone before each tile over capacity fits, [over] int64 on the host.

    sorted_ids, place: ids in ascending order and when each of them goes.
    """
    lengths, splat, ids = list_lengths(bins), bins.splat.long(), ids.long()
    tile = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=bins.instances)
    member = lengths[tile] > capacity
    tile = tile[member]
    goes = place[torch.searchsorted(sorted_ids, ids[splat[member]])]
    goes = goes[torch.argsort(tile * (len(place) + 1) + goes)]
    over = lengths[lengths > capacity]
    first = over.cumsum(0) - over
    # Its list is short enough once the last of its excess has gone.
    return (goes[first + (over - capacity) - 1] + 1).cpu()
