"""What the processes of a job spend on passes or steps: CPU seconds, and calls on kernels."""

from __future__ import annotations

from time import process_time

import torch

from cuda_src import launches
from harness.runner.ranks import Ranks


class Spending:
    """Of all ranks together, window by window; every rank makes one and calls its methods in the same order.

    A window is `begin` ... `end`. Ranks that share a process are counted by that process, for which rank 0 speaks.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._began = 0.0, 0
        self._windows: list[tuple[float, int]] = []

    def begin(self) -> None:
        self._began = self._so_far()

    def end(self) -> None:
        cpu, called = self._so_far()
        self._windows.append((cpu - self._began[0], called - self._began[1]))

    def _so_far(self) -> tuple[float, int]:
        """Of this process, at a moment when none of its ranks is at work."""
        if not self._ranks.one_process:
            return process_time(), launches.counted()
        # Some ranks run ahead after a barrier, but none past a second one to which rank 0 has not come.
        self._ranks.barrier()
        found = process_time(), launches.counted()
        self._ranks.barrier()
        return found

    def take(self) -> tuple[list[float], list[float]]:
        """CPU seconds and kernel launches of each window since the last call, of the whole job. Collective."""
        if not self._windows:
            return [], []
        mine = torch.tensor(self._windows, dtype=torch.float64).reshape(-1, 2)
        self._windows = []
        by_rank = self._ranks.by_rank(mine).reshape(-1, *mine.shape)
        whole = by_rank[0] if self._ranks.one_process else by_rank.sum(dim=0)
        return whole[:, 0].tolist(), whole[:, 1].tolist()
