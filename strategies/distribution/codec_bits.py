"""Bits of a bitmap: groups of flags packed to bytes, each group beginning a byte of its own."""

from __future__ import annotations

import torch

_WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
"""Of a byte's bits; the lowest stands for the first flag."""


def bitmap_bytes(counts: torch.Tensor) -> torch.Tensor:
    """Bytes of each group's bitmap, for the number of its flags; any shape, int64."""
    return (counts + 7) // 8


def pack_bits(flags: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[n] bool in groups of `counts` -> [bytes] uint8; bits beyond a group's end are 0."""
    table = torch.zeros(8 * int(bitmap_bytes(counts).sum()), dtype=torch.bool, device=flags.device)
    table[_places(counts).to(flags.device)] = flags
    return (table.view(-1, 8) * _WEIGHTS.to(flags.device)).sum(dim=1, dtype=torch.uint8)


def unpack_bits(packed: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack_bits`: [bytes] uint8 -> [n] bool."""
    table = (packed[:, None] & _WEIGHTS.to(packed.device)) != 0
    return table.view(-1)[_places(counts).to(packed.device)]


def _places(counts: torch.Tensor) -> torch.Tensor:
    """Bit of each flag in the whole bitmap, [n] int64."""
    skipped = 8 * bitmap_bytes(counts) - counts
    before = skipped.cumsum(0) - skipped
    return torch.arange(int(counts.sum())) + before.repeat_interleave(counts)
