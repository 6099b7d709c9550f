"""Gaussians as gsplat's users hold them: a tensor a group, each a leaf of autograd, with Adam's moments beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from cuda_src.layout import PARAMETER_GROUPS, PARAMETERS, SH, SH_COEFFICIENTS
from strategies.base import GaussianSource, Shard, ShardReader
from strategies.gaussians import SHARD_ROWS

JOINED: dict[str, tuple[int, ...]] = {
    "mean": (3,),
    "log_scale": (3,),
    "quaternion": (4,),
    "opacity": (),
    "sh": (SH_COEFFICIENTS, 3),
}
"""What one Gaussian has of each group."""

SPLIT: dict[str, tuple[int, ...]] = {
    **{name: shape for name, shape in JOINED.items() if name != "sh"},
    "sh_dc": (1, 3),
    "sh_rest": (SH_COEFFICIENTS - 1, 3),
}
"""The same with harmonics in two tensors, which have a rate each."""

COLUMNS = {**PARAMETER_GROUPS, "sh": SH}
"""Of a table of 59 columns, by group."""

Groups = dict[str, torch.Tensor]


def empty_groups(shapes: dict[str, tuple[int, ...]], count: int, device: torch.device, dtype: torch.dtype) -> Groups:
    """Uninitialised tensors of that many Gaussians, each contiguous: [N, *shapes[group]]."""
    return {name: torch.empty((count, *shape), dtype=dtype, device=device) for name, shape in shapes.items()}


def put_rows(groups: Groups, lo: int, table: torch.Tensor) -> None:
    """Write Gaussians lo, lo + 1, ... from a table [n, 59]."""
    for name, tensor in groups.items():
        tensor[lo : lo + len(table)] = table[:, COLUMNS[name]].reshape(len(table), *tensor.shape[1:])


def table_of(groups: Groups, rows: slice) -> torch.Tensor:
    """Those Gaussians as a table [n, 59], a copy."""
    pieces = {name: tensor.detach()[rows] for name, tensor in groups.items()}
    first = pieces["mean"]
    table = torch.empty((len(first), PARAMETERS), dtype=first.dtype, device=first.device)
    for name, piece in pieces.items():
        table[:, COLUMNS[name]] = piece.reshape(len(piece), math.prod(piece.shape[1:]))
    return table


@dataclass
class SplitGaussians:
    """ids: [N] int64. parameters (leaves that require a gradient), moment1, moment2: by group."""

    ids: torch.Tensor
    parameters: Groups
    moment1: Groups
    moment2: Groups

    @classmethod
    def from_source(
        cls,
        source: GaussianSource,
        ids: torch.Tensor,
        shapes: dict[str, tuple[int, ...]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> SplitGaussians:
        """Those ids of the source, in their order, with zero moments; read in bounded pieces.

        shapes: JOINED or SPLIT.
        """
        parameters = empty_groups(shapes, len(ids), device, dtype)
        for lo in range(0, len(ids), SHARD_ROWS):
            put_rows(parameters, lo, source.read(ids[lo : lo + SHARD_ROWS], device))
        moments = ({name: torch.zeros_like(t) for name, t in parameters.items()} for _ in range(2))
        return cls(ids.to(device), parameters, *moments)._with_gradients()

    @classmethod
    def from_reader(
        cls,
        reader: ShardReader,
        dealt: slice,
        shapes: dict[str, tuple[int, ...]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> SplitGaussians:
        """Those of the saved Gaussians, in the order in which the reader has them."""
        own = range(reader.count)[dealt]
        ids = torch.empty(len(own), dtype=torch.int64, device=device)
        groups = [empty_groups(shapes, len(own), device, dtype) for _ in range(3)]
        passed = lo = 0
        for shard in reader.shards():
            rows = slice((own.start - passed) % own.step, None, own.step)
            passed += len(shard.ids)
            held_ids = shard.ids[rows]
            ids[lo : lo + len(held_ids)] = held_ids
            for held, table in zip(groups, (shard.parameters, shard.moment1, shard.moment2), strict=True):
                put_rows(held, lo, table[rows])
            lo += len(held_ids)
        return cls(ids, *groups)._with_gradients()

    def _with_gradients(self) -> SplitGaussians:
        for tensor in self.parameters.values():
            tensor.requires_grad_()
        return self

    def shards(self) -> Iterator[Shard]:
        """All of them as tables of 59 columns."""
        for lo in range(0, len(self.ids), SHARD_ROWS):
            rows = slice(lo, lo + SHARD_ROWS)
            tables = (table_of(groups, rows) for groups in (self.parameters, self.moment1, self.moment2))
            yield Shard(self.ids[rows], *tables)

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters["mean"].dtype

    @property
    def bytes(self) -> int:
        """Of ids, parameters, both moments and the gradients that every backward leaves."""
        one = sum(t.numel() * t.element_size() for t in self.parameters.values())
        return self.ids.numel() * self.ids.element_size() + 4 * one
