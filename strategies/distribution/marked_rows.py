"""Rows of which some are marked, where the device knows which and the host does not yet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from strategies.distribution.regions import queued_copy


class MarkedRows:
    """Rows in consecutive parts. Nobody waits: the host reads `counts` when it has to, and then asks for positions.

    flags: [n] bool, which rows are marked. lengths: rows of each part.
    """

    def __init__(self, flags: torch.Tensor, lengths: Sequence[int]):
        before = torch.zeros(len(flags) + 1, dtype=torch.int64, device=flags.device)
        self._up_to = torch.cumsum(flags, dim=0, out=before[1:])
        self.counts = before.index_select(0, _borders(tuple(lengths), flags.device)).diff()
        """Marked rows of each part, [parts] int64, where the flags lie."""

    def positions(self, count: int) -> torch.Tensor:
        """Of all marked rows, ascending, [count] int64. count: how many they are."""
        return marked(self._up_to, count)


@lru_cache(maxsize=4096)
def _borders(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Where parts of those lengths begin, and where the last one ends, on the device: views that come again have rooms
    of one size."""
    return queued_copy(torch.tensor(list(accumulate(lengths, initial=0))), device)


def marked(up_to: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of marked rows, ascending, [count] int64; up_to: [n] int, how many there are up to and with each.

    The k-th of them is the first row with k up to it: `nonzero` would make the host wait to count them again.
    """
    return torch.searchsorted(up_to, torch.arange(1, count + 1, dtype=up_to.dtype, device=up_to.device))
