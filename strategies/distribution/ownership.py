"""Who owns which Gaussian. Every rank computes the same answer from positions alone."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from cuda_src.layout import MEAN
from strategies.base import GaussianSource
from strategies.distribution.communicator import Communicator
from strategies.gaussians import Gaussians
from strategies.morton import morton_codes, source_order
from strategies.randomness import uniform

Ownership = Literal["morton_blocks", "contiguous", "random", "kdtree"]
MORTON_BLOCK = 1024
"""Gaussians of a block: small enough to spread a view's splats over all ranks, large enough to stay local in memory."""
_STREAM_OWNER = 2
_POSITION_ROWS = 1 << 20


def owned_ids(
    ownership: Ownership,
    source: GaussianSource,
    rank: int,
    ranks: int,
    seed: int,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Ids that this rank owns, int64 on the CPU, in the order in which it stores them: Morton order.

    `morton_blocks`: Morton order in blocks of 1024 dealt round robin. `contiguous`: equal slices of the ids.
    `random`: by a counter-based draw. `kdtree`: boxes cut at the median on the longest axis. Holds a few int64 a
    Gaussian of the whole model, on the host and, to sort them, on the device.
    """
    count = source.count
    if ownership == "morton_blocks":
        return source_order(source, device)[_dealt(count, ranks) == rank]
    if ownership == "contiguous":
        ids = torch.arange(count * rank // ranks, count * (rank + 1) // ranks)
    elif ownership == "random":
        ids = torch.arange(count)
        ids = ids[random_owners(ids, ranks, seed, 0) == rank]
    else:
        ids = kdtree_ids(_positions(source), ranks)[rank]
    return source_order(source, device, ids)


def _dealt(count: int, ranks: int) -> torch.Tensor:
    """Rank of each place in Morton order: blocks dealt round robin; no more than a share a rank in small models."""
    block = max(1, min(MORTON_BLOCK, count // ranks))
    return torch.arange(count) // block % ranks


def dealt_owners(comm: Communicator, gaussians: Gaussians, bounds: np.ndarray) -> torch.Tensor:
    """New owners of this rank's rows when all Gaussians are dealt by `morton_blocks` again, [N] int64. Collective."""
    codes = morton_codes(gaussians.parameters[:, MEAN], bounds).cpu()
    parts = comm.gather("migrate", torch.stack([gaussians.ids.cpu(), codes], dim=1))
    ids, every = torch.cat(parts).unbind(dim=1)
    order = torch.argsort(ids)
    order = order[torch.argsort(every[order], stable=True)]  # By code, equal codes by id: the same on every rank.
    owner = torch.empty_like(order)
    owner[order] = _dealt(len(order), comm.ranks)
    first = sum(len(p) for p in parts[: comm.rank])
    return owner[first : first + gaussians.count]


def random_owners(ids: torch.Tensor, ranks: int, seed: int, images_seen: int) -> torch.Tensor:
    """Rank of each id by a counter-based draw, [n] int64: the same wherever it is computed."""
    return (uniform(seed + images_seen, _STREAM_OWNER, ids) * ranks).to(torch.int64).clamp(max=ranks - 1)


def kdtree_ids(positions: torch.Tensor, leaves: int) -> list[torch.Tensor]:
    """Row numbers of each leaf of a kd-tree: cut on the longest axis where counts stand as leaves do."""
    return _cut(torch.arange(len(positions)), positions, leaves)


def _cut(rows: torch.Tensor, positions: torch.Tensor, leaves: int) -> list[torch.Tensor]:
    if leaves == 1:
        return [rows.sort().values]
    left = leaves // 2
    mine = positions[rows]
    axis = int((mine.amax(0) - mine.amin(0)).argmax()) if len(rows) else 0
    order = rows[torch.argsort(mine[:, axis], stable=True)]
    cut = len(rows) * left // leaves
    return _cut(order[:cut], positions, left) + _cut(order[cut:], positions, leaves - left)


def _positions(source: GaussianSource) -> torch.Tensor:
    pieces = [
        source.positions(lo, min(lo + _POSITION_ROWS, source.count)) for lo in range(0, source.count, _POSITION_ROWS)
    ]
    return torch.cat(pieces) if pieces else torch.empty((0, 3))
