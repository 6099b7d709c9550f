"""Rows of several tables side by side in one buffer, and back, for Gaussians that change places."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.operators import KernelSet
from cuda_src.packing import packed_ids


def pack_rows(
    kernels: KernelSet, ids: torch.Tensor, tables: Sequence[torch.Tensor], rows: torch.Tensor, out: torch.Tensor
) -> None:
    first = 0
    for table in tables:
        out[:, first : first + table.shape[1]] = table[rows]
        first += table.shape[1]
    # Between numbers of one type a copy keeps every bit.
    out[:, first:] = ids[rows].unsqueeze(1).view(out.dtype)


def unpack_rows(
    kernels: KernelSet, packed: torch.Tensor, ids: torch.Tensor, tables: Sequence[torch.Tensor], places: torch.Tensor
) -> None:
    first = 0
    for table in tables:
        table[places] = packed[:, first : first + table.shape[1]]
        first += table.shape[1]
    ids[places] = packed_ids(packed)
