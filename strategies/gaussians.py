"""The Gaussians a place owns: parameters and optimizer state, row by row in the same order (see morton.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from cuda_src.bounds import bound_groups, empty_bounds
from cuda_src.layout import MEAN, PARAMETERS
from cuda_src.operators import KernelSet
from cuda_src.tape import off_tape
from strategies.base import GaussianSource, Shard, ShardReader
from strategies.morton import morton_order

SHARD_ROWS = 1 << 18
"""Rows of a shard: 190 MB with both moments, so that saving never doubles a rank's memory."""

BOUNDS_SERVE = 256
"""Times that bounds of groups are asked for before they are made anew: moves only widen them."""


@dataclass
class Bounds:
    """table: [groups, BOUND]. version: of the parameters, when they were made. asked: how often they were given out."""

    table: torch.Tensor
    version: int
    asked: int = 0


@dataclass
class Gaussians:
    """ids: [N] int64, stable over the whole run. parameters, moment1, moment2: [N, 59]."""

    ids: torch.Tensor
    parameters: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor
    _bounds: Bounds | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def empty(cls, count: int, device: torch.device, dtype: torch.dtype) -> Gaussians:
        """Room for so many, uninitialised."""
        tables = (torch.empty((count, PARAMETERS), dtype=dtype, device=device) for _ in range(3))
        return cls(torch.empty(count, dtype=torch.int64, device=device), *tables)

    @classmethod
    def from_source(
        cls, source: GaussianSource, ids: torch.Tensor, device: torch.device, dtype: torch.dtype
    ) -> Gaussians:
        """Those ids of the source, in that order, with zero moments; read in bounded pieces."""
        parameters = torch.empty((len(ids), PARAMETERS), dtype=dtype, device=device)
        for lo in range(0, len(ids), SHARD_ROWS):
            piece = ids[lo : lo + SHARD_ROWS]
            parameters[lo : lo + len(piece)] = source.read(piece, device)
        return cls(ids.to(device), parameters, torch.zeros_like(parameters), torch.zeros_like(parameters))

    @classmethod
    def from_reader(cls, reader: ShardReader, device: torch.device, dtype: torch.dtype) -> Gaussians:
        """All saved Gaussians, in Morton order."""
        shards = list(reader.shards())
        ids = torch.cat([s.ids for s in shards])
        means = torch.cat([s.parameters[:, MEAN] for s in shards])
        order = morton_order(means.to(device), ids.to(device)).to(ids.device)
        columns = (torch.cat([getattr(s, name) for s in shards]) for name in ("parameters", "moment1", "moment2"))
        return cls(ids[order].to(device), *(c[order].to(device, dtype) for c in columns))

    def rows(self, which: torch.Tensor) -> Gaussians:
        """A copy of those rows, by mask or row numbers."""
        return Gaussians(self.ids[which], self.parameters[which], self.moment1[which], self.moment2[which])

    @property
    def tables(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Parameters and both moments."""
        return self.parameters, self.moment1, self.moment2

    def bounds(self, kernels: KernelSet) -> torch.Tensor | None:
        """Bounds of groups of rows for `project` and `project_backward_adam`, [groups, BOUND]; None where not read.

        Moves by these kernels widen them. Whatever else writes parameters does so through PyTorch, which counts: bounds
        are then made anew, as they are once in a while.
        """
        if not kernels.reads_bounds or self.count == 0:
            return None
        known, version = self._bounds, self.parameters._version
        if known is None or known.version != version or known.asked >= BOUNDS_SERVE:
            table = (
                empty_bounds(self.count, self.parameters.dtype, self.parameters.device)
                if known is None
                else known.table
            )
            self._bound(kernels, table)
            self._bounds = known = Bounds(table, version)
        known.asked += 1
        return known.table

    def _bound(self, kernels: KernelSet, table: torch.Tensor) -> None:
        """Make the bounds of all groups anew: now, and not whenever what asked for them is asked for again."""
        with off_tape():
            bound_groups(kernels, self.parameters, table)

    @property
    def count(self) -> int:
        return int(self.ids.shape[0])

    @property
    def bytes(self) -> int:
        bounds = () if self._bounds is None else (self._bounds.table,)
        tensors = (self.ids, self.parameters, self.moment1, self.moment2, *bounds)
        return sum(t.numel() * t.element_size() for t in tensors)

    def shards(self) -> Iterator[Shard]:
        for lo in range(0, self.count, SHARD_ROWS):
            piece = slice(lo, lo + SHARD_ROWS)
            yield Shard(self.ids[piece], self.parameters[piece], self.moment1[piece], self.moment2[piece])
