"""Tile lists: which splats meet which tiles, ordered by tile, depth and id.

Two passes over the splats count and then list their tiles, splat-major; one sort of the splats by depth and id, and
one counting sort of the instances by tile in that order, bring them front to back.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from cuda_src.camera import Camera
from cuda_src.operators import Bins, KernelSet, Splats
from cuda_src.portable.arrays import array, optional_map
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import f32, loop, piece
from cuda_src.portable.scalar_footprint import (
    ellipse_meets,
    footprint_reach,
    half_extent,
    square_meets,
    subtile_within,
    tile_edges,
    tile_span,
)
from cuda_src.portable.threads import even_ranges, run_ranges
from cuda_src.workspace import Workspace

_DIGIT = 11
_BUCKETS = 1 << _DIGIT


@piece
def _meets_subtile(mask, x, y, conic, radius, reach, ellipse, left, top, right, bottom):
    """The footprint meets a sub-tile in the mask, of the tile whose pixel centres span a rectangle."""
    for subtile in range(8):
        # Of the image and exact, not of the mean and rounded: a sub-tile may have but one row of pixels.
        x0, y0, x1, y1 = subtile_within(subtile, left, top, right, bottom)
        if (mask >> subtile) & 1 == 0 or x0 > x1 or y0 > y1:
            continue
        x0, y0, x1, y1 = x0 - x, y0 - y, x1 - x, y1 - y
        if ellipse:
            if ellipse_meets(conic, reach, x0, y0, x1, y1):
                return True
        elif square_meets(radius, x0, y0, x1, y1):
            return True
    return False


@piece
def visit_tiles(record, alpha_min, ellipse, tile_index, limits, size, most, found):
    """Listed tiles that the footprint meets, ascending, at most `most`; written to `found` as far as it reaches.

    tile_index: [tiles] int32, position of each tile of the image among the listed ones, -1 for the others.
    limits: by tile, which sub-tiles are rendered and the greatest depth, each with the distance of its entries.
    size: width and height of the image, pixels.
    """
    width, height = size
    subtiles, subtile_stride, depth_limit, limit_stride = limits
    tiles_x, tiles_y = (width + 15) // 16, (height + 15) // 16
    x, y, radius = record[0], record[1], record[10]
    conic = (record[2], record[3], record[4])
    reach = footprint_reach(record[5], alpha_min)
    extent_x, extent_y = radius, radius
    if ellipse:
        extent_x = half_extent(conic[2], conic, radius, reach)
        extent_y = half_extent(conic[0], conic, radius, reach)
    first_x, end_x = tile_span(x, extent_x, tiles_x)
    first_y, end_y = tile_span(y, extent_y, tiles_y)
    count = 0
    for tile_y in range(first_y, end_y):
        top, bottom = tile_edges(tile_y, height)
        for tile_x in range(first_x, end_x):
            tile = tile_y * tiles_x + tile_x
            k = tile_index[tile]
            if k < 0 or record[9] > depth_limit[tile * limit_stride]:
                continue
            left, right = tile_edges(tile_x, width)
            if ellipse:
                meets = ellipse_meets(conic, reach, left - x, top - y, right - x, bottom - y)
            else:
                meets = square_meets(radius, left - x, top - y, right - x, bottom - y)
            mask = subtiles[tile * subtile_stride]
            if meets and mask != 255:
                meets = _meets_subtile(mask, x, y, conic, radius, reach, ellipse, left, top, right, bottom)
            if meets:
                if count < found.size:
                    found[count] = k
                count += 1
                if count == most:
                    return count
    return count


@piece
def count_tiles(record, alpha_min, ellipse, tile_index, limits, size, most):
    """How many listed tiles the footprint meets, counting no further than `most`."""
    return visit_tiles(record, alpha_min, ellipse, tile_index, limits, size, most, tile_index[:0])


@loop
def _count_instances(lo, hi, records, alpha_min, ellipse, tile_index, limits, size, splat_starts):
    """splat_starts[v + 1] becomes the number of instances of splat v."""
    for v in range(lo, hi):
        splat_starts[v + 1] = count_tiles(records[v], alpha_min, ellipse, tile_index, limits, size, -1)


@loop
def _list_instances(lo, hi, records, alpha_min, ellipse, tile_index, limits, size, splat_starts, slot_tile):
    for v in range(lo, hi):
        found = slot_tile[splat_starts[v] : splat_starts[v + 1]]
        visit_tiles(records[v], alpha_min, ellipse, tile_index, limits, size, -1, found)


@piece
def _stable_pass(keys, shift, order, spare, buckets):
    """One pass of a radix sort: reorder `order` by one digit of its keys into `spare`; False if they all agree."""
    buckets[:] = 0
    mask = _BUCKETS - 1
    for v in range(keys.size):
        buckets[(keys[v] >> shift) & mask] += 1
    if keys.size == 0 or buckets[(keys[0] >> shift) & mask] == keys.size:
        return False
    total = 0
    for digit in range(_BUCKETS):
        count = buckets[digit]
        buckets[digit] = total
        total += count
    for i in range(order.size):
        digit = (keys[order[i]] >> shift) & mask
        spare[buckets[digit]] = order[i]
        buckets[digit] += 1
    return True


@loop
def _sort_splats(records, ids, keys, order, spare, buckets):
    """Order splats by depth, then id, into `order`: least significant digits first, and ids only if they need it."""
    ascending = True
    for v in range(order.size):
        order[v] = v
        keys[v] = ids[v]
        ascending = ascending and (v == 0 or ids[v - 1] < ids[v])
    if not ascending:
        for shift in range(0, 64, _DIGIT):
            if _stable_pass(keys, shift, order, spare, buckets):
                order[:] = spare
    for v in range(order.size):
        # Depths are positive: their bits order as they do.
        keys[v] = np.float32(records[v, 9]).view(np.int32)
    for shift in range(0, 32, _DIGIT):
        if _stable_pass(keys, shift, order, spare, buckets):
            order[:] = spare


@loop
def _place_instances(order, splat_starts, slot_tile, starts, cursor, splat, slot):
    """Counting sort of the instances by tile, taken in the splats' depth order."""
    starts[:] = 0
    for s in range(slot_tile.size):
        starts[slot_tile[s] + 1] += 1
    for k in range(cursor.size):
        cursor[k] = starts[k]
        starts[k + 1] += starts[k]
    for i in range(order.size):
        v = order[i]
        for s in range(splat_starts[v], splat_starts[v + 1]):
            at = cursor[slot_tile[s]]
            cursor[slot_tile[s]] += 1
            splat[at] = v
            slot[at] = s


def all_tiles(camera: Camera, workspace: Workspace) -> torch.Tensor:
    """Every tile of the image in order, [tiles] int32: as a list, and as the index of that list."""
    return torch.arange(camera.tiles, out=workspace.take("tiles.all", (camera.tiles,), torch.int32))


def tile_index(camera: Camera, tiles: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """Position of each tile of the image among the listed ones, -1 for the others: [tiles] int32."""
    index = workspace.take("bin.tile_index", (camera.tiles,), torch.int32).fill_(-1)
    index[tiles.long()] = torch.arange(len(tiles), dtype=torch.int32, device=index.device)
    return index


def tile_limits(
    workspace: Workspace, subtiles: torch.Tensor | None = None, depth_limit: torch.Tensor | None = None
) -> tuple[np.ndarray, int, np.ndarray, int]:
    """What `count_tiles` takes as limits: [tiles] uint8 and [tiles] float32, or nothing."""
    return (
        *optional_map(subtiles, 255, "tiles.no_subtiles", workspace, torch.uint8),
        *optional_map(depth_limit, math.inf, "tiles.no_limit", workspace),
    )


@by_device
def bin_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
) -> Bins:
    """See `cuda_src.operators.bin_splats`."""
    if tiles is None:
        tiles = index = all_tiles(camera, workspace)
    else:
        index = tile_index(camera, tiles, workspace)
    records, ids = array(splats.records), array(splats.ids)
    limits = tile_limits(workspace, subtiles, depth_limit)
    footprint = (f32(kernels.convention.alpha_min), kernels.footprint == "ellipse", index.numpy(), limits)
    size = (camera.width, camera.height)
    ranges = even_ranges(splats.count, kernels.threads)

    splat_starts = workspace.take("bin.splat_starts", (splats.count + 1,), torch.int64)
    at_splat = splat_starts.numpy()
    at_splat[0] = 0
    run_ranges(kernels.threads, ranges, lambda _, lo, hi: _count_instances(lo, hi, records, *footprint, size, at_splat))
    np.cumsum(at_splat, out=at_splat)
    instances = int(at_splat[-1])

    slot_tile = workspace.take("bin.slot_tile", (instances,), torch.int32).numpy()
    run_ranges(
        kernels.threads,
        ranges,
        lambda _, lo, hi: _list_instances(lo, hi, records, *footprint, size, at_splat, slot_tile),
    )

    def scratch(name: str, count: int) -> np.ndarray:
        return workspace.take(f"bin.{name}", (count,), torch.int64).numpy()

    order = scratch("order", splats.count)
    _sort_splats(
        records, ids, scratch("keys", splats.count), order, scratch("spare", splats.count), scratch("buckets", _BUCKETS)
    )
    starts = workspace.take("bin.starts", (len(tiles) + 1,), torch.int64)
    splat = workspace.take("bin.splat", (instances,), torch.int32)
    slot = workspace.take("bin.slot", (instances,), torch.int64)
    _place_instances(
        order, at_splat, slot_tile, starts.numpy(), scratch("cursor", len(tiles)), splat.numpy(), slot.numpy()
    )
    return Bins(tiles, starts, splat, slot, splat_starts)
