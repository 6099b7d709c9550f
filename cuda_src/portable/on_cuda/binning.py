"""Tile lists: a thread a splat finds its tiles; PyTorch's prefix sums and stable sorts bring them front to back."""

from __future__ import annotations

import math

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import Bins, KernelSet, Splats
from cuda_src.portable.arrays import flat_map
from cuda_src.portable.binning import all_tiles, count_tiles, tile_index, visit_tiles
from cuda_src.portable.on_cuda.runtime import blocks_for, cuda, kernel
from cuda_src.portable.scalar import f32
from cuda_src.workspace import Workspace

_THREADS = 128


@kernel
def count_instances(records, alpha_min, ellipse, index, limits, size, counts):
    v = cuda.grid(1)
    if v < counts.size:
        counts[v] = count_tiles(records[v], alpha_min, ellipse, index, limits, size, -1)


@kernel
def list_instances(records, alpha_min, ellipse, index, limits, size, rank, splat_starts, keys, splat):
    """By slot: the instance's splat, and its tile and the splat's rank front to back as one number."""
    v = cuda.grid(1)
    if v < rank.size:
        first, end = splat_starts[v], splat_starts[v + 1]
        visit_tiles(records[v], alpha_min, ellipse, index, limits, size, -1, keys[first:end])
        for slot in range(first, end):
            keys[slot] = keys[slot] * rank.size + rank[v]
            splat[slot] = v


def tile_limits(
    workspace: Workspace, subtiles: torch.Tensor | None = None, depth_limit: torch.Tensor | None = None
) -> tuple[torch.Tensor, int, torch.Tensor, int]:
    """What `count_tiles` takes as limits: [tiles] uint8 and [tiles] float32, or nothing."""
    return (
        *flat_map(subtiles, 255, "tiles.no_subtiles", workspace, torch.uint8),
        *flat_map(depth_limit, math.inf, "tiles.no_limit", workspace),
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
    count, device = splats.count, splats.records.device
    if tiles is None:
        tiles = index = all_tiles(camera, workspace)
    else:
        tiles = tiles.to(device)
        index = tile_index(camera, tiles, workspace)
    visits = (
        splats.records, f32(kernels.convention.alpha_min), kernels.footprint == "ellipse", index,
        tile_limits(workspace, subtiles, depth_limit), (camera.width, camera.height),
    )  # fmt: skip
    blocks = blocks_for(count, _THREADS)
    counts = workspace.take("bin.counts", (count,), torch.int64)
    count_instances.launch(device, blocks, _THREADS, *visits, counts)
    splat_starts = workspace.zeros("bin.splat_starts", (count + 1,), torch.int64)
    torch.cumsum(counts, 0, out=splat_starts[1:])
    instances = int(splat_starts[-1])

    keys = workspace.take("bin.keys", (instances,), torch.int64)
    by_slot = workspace.take("bin.by_slot", (instances,), torch.int32)
    rank = _ranks(splats, workspace)
    list_instances.launch(device, blocks, _THREADS, *visits, rank, splat_starts, keys, by_slot)
    # No two keys are equal: a splat is once in a tile.
    ordered = workspace.take("bin.ordered", (instances,), torch.int64)
    slot = workspace.take("bin.slot", (instances,), torch.int64)
    torch.sort(keys, out=(ordered, slot))
    splat = torch.index_select(by_slot, 0, slot, out=workspace.take("bin.splat", (instances,), torch.int32))
    first_keys = torch.arange(len(tiles) + 1, device=device) * count
    starts = workspace.take("bin.starts", (len(tiles) + 1,), torch.int64)
    torch.searchsorted(ordered, first_keys, out=starts)
    return Bins(tiles, starts, splat, slot, splat_starts)


def _ranks(splats: Splats, workspace: Workspace) -> torch.Tensor:
    """Place of each splat by depth, then id, [V] int64."""
    order = torch.sort(splats.ids, stable=True).indices
    depth = splats.records[:, layout.RECORD_DEPTH]
    order = order[torch.sort(depth[order], stable=True).indices]
    rank = workspace.take("bin.rank", (splats.count,), torch.int64)
    rank[order] = torch.arange(splats.count, device=rank.device)
    return rank
