"""Bits of a bitmap: groups of flags packed to bytes, each group beginning a byte of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch


def bitmap_bytes(flags: int) -> int:
    """Bytes of a group's bitmap, for the number of its flags."""
    return (flags + 7) // 8


def pack_bits(flags: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """[n] bool in groups of `counts` -> [bytes] uint8; bits beyond a group's end are 0."""
    lengths, table = _padded(counts), flags
    if lengths != list(counts):
        table = flags.new_zeros(sum(lengths))
        for group, room in zip(flags.split(list(counts)), table.split(lengths), strict=True):
            room[: len(group)] = group
    return (table.view(torch.uint8).view(-1, 8) * _weights(flags.device)).sum(dim=1, dtype=torch.uint8)


def unpack_bits(packed: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """The inverse of `pack_bits`: [bytes] uint8 -> [n] bool."""
    lengths, table = _padded(counts), ((packed[:, None] & _weights(packed.device)) != 0).view(-1)
    if lengths == list(counts):
        return table
    return torch.cat([room[:n] for room, n in zip(table.split(lengths), counts, strict=True)])


def _padded(counts: Sequence[int]) -> list[int]:
    """Flags of each group with those that fill its last byte."""
    return [8 * bitmap_bytes(n) for n in counts]


@lru_cache(maxsize=16)
def _weights(device: torch.device) -> torch.Tensor:
    """Of a byte's bits, [8] uint8; the lowest stands for the first flag. Made there: nobody waits for a copy."""
    return 1 << torch.arange(8, dtype=torch.uint8, device=device)
