"""Rows of Gaussians packed for a change of place, and unpacked there: public operators as those of operators.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.operators import KernelSet

MOST_TABLES = 8
"""Tables that one buffer holds: kernels are given their addresses by value."""


def packed_width(tables: Sequence[torch.Tensor]) -> int:
    """Numbers in a row that `pack_rows` makes: the tables' columns, and an id's 64 bits."""
    return sum(table.shape[1] for table in tables) + id_words(tables[0].dtype)


def id_words(real: torch.dtype) -> int:
    """Numbers of that type that an id's 64 bits fill: 2 of float32, 1 of float64."""
    return torch.int64.itemsize // real.itemsize


def pack_rows(
    kernels: KernelSet,
    ids: torch.Tensor,  # [N] int64
    tables: Sequence[torch.Tensor],  # [N, C] real each, contiguous
    rows: torch.Tensor,  # [U] int64
    out: torch.Tensor,  # [U, packed_width(tables)] real, contiguous, written
) -> None:
    """Rows of 1 to 8 tables side by side, and the bits of their ids last, low word first: what crosses a wire.

    Everything arrives bit by bit, whatever number an id's bits would be. ValueError for another number of tables, and
    if `out` has another shape.
    """
    _check(tables, out, len(rows))
    kernels.called.pack_rows(kernels, ids, tables, rows, out)


def unpack_rows(
    kernels: KernelSet,
    packed: torch.Tensor,  # [U, packed_width(tables)] real, contiguous
    ids: torch.Tensor,  # [N] int64, written at the places
    tables: Sequence[torch.Tensor],  # [N, C] real each, contiguous, written at the places
    places: torch.Tensor,  # [U] int64, distinct
) -> None:
    """The reverse of `pack_rows`: row u of the buffer becomes row places[u] of ids and tables."""
    _check(tables, packed, len(places))
    kernels.called.unpack_rows(kernels, packed, ids, tables, places)


def packed_ids(packed: torch.Tensor) -> torch.Tensor:
    """The ids in packed rows, [U] int64."""
    words = id_words(packed.dtype)
    return packed[:, -words:].clone(memory_format=torch.contiguous_format).view(torch.int64).flatten()


def _check(tables: Sequence[torch.Tensor], packed: torch.Tensor, rows: int) -> None:
    if not 1 <= len(tables) <= MOST_TABLES:
        raise ValueError(f"expected 1 to {MOST_TABLES} tables, got {len(tables)}")
    shape = rows, packed_width(tables)
    if packed.shape != shape or not packed.is_contiguous():
        raise ValueError(f"expected contiguous packed rows {shape}, got {tuple(packed.shape)}, {packed.stride()}")
