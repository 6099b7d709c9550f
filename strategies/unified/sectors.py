"""Bytes of remote loads and stores: the link moves whole sectors of 32 B."""

from __future__ import annotations

import torch

SECTOR = 32


def run_bytes(begin: int, end: int) -> int:
    """Bytes moved for the addresses begin <= a < end, begin counted from a sector's border."""
    return (-(-end // SECTOR) - begin // SECTOR) * SECTOR if end > begin else 0


def item_bytes(size: int) -> int:
    """Bytes moved for one item of that size which begins at a sector's border."""
    return run_bytes(0, size)


def scattered_bytes(items: torch.Tensor, size: int) -> int:
    """Bytes moved for some items of an array, each sector once.

    items: [n] int64 distinct positions in the array; size: bytes of an item, at most a sector.
    """
    begin = items * size
    return int(torch.unique(torch.cat([begin, begin + size - 1]) // SECTOR).numel()) * SECTOR
