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

    items: [n] int64 ascending positions in the array, on the host; size: bytes of an item, at most a sector.
    """
    begin = items * size
    # From each item's first byte to its last, and on to the next item's: sectors ascend as well.
    sectors = torch.stack([begin, begin + size - 1], dim=1).flatten() // SECTOR
    return int(torch.unique_consecutive(sectors).numel()) * SECTOR
