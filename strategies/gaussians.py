"""The Gaussians a place owns: parameters and optimizer state, row by row in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from cuda_src.layout import PARAMETERS
from strategies.base import GaussianSource, Shard, ShardReader

SHARD_ROWS = 1 << 18
"""Rows of a shard: 190 MB with both moments, so that saving never doubles a rank's memory."""


@dataclass
class Gaussians:
    """ids: [N] int64, stable over the whole run. parameters, moment1, moment2: [N, 59]."""

    ids: torch.Tensor
    parameters: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor

    @classmethod
    def from_source(
        cls, source: GaussianSource, ids: torch.Tensor, device: torch.device, dtype: torch.dtype
    ) -> Gaussians:
        """Those ids of the source with zero moments, read in bounded pieces."""
        parameters = torch.empty((len(ids), PARAMETERS), dtype=dtype, device=device)
        for lo in range(0, len(ids), SHARD_ROWS):
            piece = ids[lo : lo + SHARD_ROWS]
            parameters[lo : lo + len(piece)] = source.read(piece, device)
        return cls(ids.to(device), parameters, torch.zeros_like(parameters), torch.zeros_like(parameters))

    @classmethod
    def from_reader(cls, reader: ShardReader, device: torch.device, dtype: torch.dtype) -> Gaussians:
        """All saved Gaussians, sorted by id."""
        shards = list(reader.shards())
        ids = torch.cat([s.ids for s in shards])
        order = torch.argsort(ids)
        columns = (torch.cat([getattr(s, name) for s in shards]) for name in ("parameters", "moment1", "moment2"))
        return cls(ids[order].to(device), *(c[order].to(device, dtype) for c in columns))

    def rows(self, which: torch.Tensor) -> Gaussians:
        """A copy of those rows, by mask or row numbers."""
        return Gaussians(self.ids[which], self.parameters[which], self.moment1[which], self.moment2[which])

    @property
    def count(self) -> int:
        return int(self.ids.shape[0])

    @property
    def bytes(self) -> int:
        tensors = (self.ids, self.parameters, self.moment1, self.moment2)
        return sum(t.numel() * t.element_size() for t in tensors)

    def shards(self) -> Iterator[Shard]:
        for lo in range(0, self.count, SHARD_ROWS):
            piece = slice(lo, lo + SHARD_ROWS)
            yield Shard(self.ids[piece], self.parameters[piece], self.moment1[piece], self.moment2[piece])
