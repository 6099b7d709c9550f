"""Who owns which Gaussian. Every rank computes the same answer from positions alone."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from cuda_src.layout import MEAN
from strategies.base import GaussianSource
from strategies.distribution.communicator import Communicator
from strategies.gaussians import Gaussians
from strategies.randomness import uniform

Ownership = Literal["morton_blocks", "contiguous", "random", "kdtree"]
MORTON_BLOCK = 1024
"""Gaussians of a block: small enough to spread a view's splats over all ranks, large enough to stay local in memory."""
MORTON_BITS = 21
_STREAM_OWNER = 2
_POSITION_ROWS = 1 << 20


def morton_codes(positions: torch.Tensor, bounds: np.ndarray) -> torch.Tensor:
    """Position on a Z-order curve through the bounds (Morton 1966), [n] int64; positions [n, 3]."""
    lower = torch.as_tensor(bounds[0], dtype=torch.float64)
    size = torch.as_tensor(bounds[1], dtype=torch.float64) - lower
    unit = (positions.double().cpu() - lower) / torch.where(size > 0, size, 1.0)
    cells = (unit * (1 << MORTON_BITS)).nan_to_num(0.0).clamp(0, (1 << MORTON_BITS) - 1).to(torch.int64)
    return _spread(cells[:, 0]) | (_spread(cells[:, 1]) << 1) | (_spread(cells[:, 2]) << 2)


def _spread(x: torch.Tensor) -> torch.Tensor:
    """Two zero bits between any two of the low 21 bits."""
    x = (x | (x << 32)) & 0x1F00000000FFFF
    x = (x | (x << 16)) & 0x1F0000FF0000FF
    x = (x | (x << 8)) & 0x100F00F00F00F00F
    x = (x | (x << 4)) & 0x10C30C30C30C30C3
    return (x | (x << 2)) & 0x1249249249249249


def owned_ids(ownership: Ownership, source: GaussianSource, rank: int, ranks: int, seed: int) -> torch.Tensor:
    """Ids that this rank owns, int64 on the CPU, in the order in which it stores them.

    `morton_blocks`: Morton order in blocks of 1024 dealt round robin. `contiguous`: equal slices of the ids.
    `random`: by a counter-based draw. `kdtree`: boxes cut at the median on the longest axis. Holds one int64 a
    Gaussian of the whole model on the host, two for Morton and kd-tree.
    """
    count = source.count
    if ownership == "contiguous":
        return torch.arange(count * rank // ranks, count * (rank + 1) // ranks)
    if ownership == "random":
        ids = torch.arange(count)
        return ids[random_owners(ids, ranks, seed, 0) == rank]
    if ownership == "kdtree":
        return kdtree_ids(_positions(source), ranks)[rank]
    codes = torch.cat([morton_codes(p, source.bounds) for p in _pieces(source)] or [torch.empty(0, dtype=torch.int64)])
    order = torch.argsort(codes, stable=True)
    return order[_dealt(count, ranks) == rank]


def _dealt(count: int, ranks: int) -> torch.Tensor:
    """Rank of each place in Morton order: blocks dealt round robin; no more than a share a rank in small models."""
    block = max(1, min(MORTON_BLOCK, count // ranks))
    return torch.arange(count) // block % ranks


def dealt_owners(comm: Communicator, gaussians: Gaussians, bounds: np.ndarray) -> torch.Tensor:
    """New owners of this rank's rows when all Gaussians are dealt by `morton_blocks` again, [N] int64. Collective."""
    codes = morton_codes(gaussians.parameters[:, MEAN], bounds)
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


def _pieces(source: GaussianSource) -> list[torch.Tensor]:
    return [
        source.positions(lo, min(lo + _POSITION_ROWS, source.count)) for lo in range(0, source.count, _POSITION_ROWS)
    ]


def _positions(source: GaussianSource) -> torch.Tensor:
    return torch.cat(_pieces(source)) if source.count else torch.empty((0, 3))
