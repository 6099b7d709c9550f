"""What the harness itself asks of the ranks of a cell: never part of what is measured."""

from __future__ import annotations

import torch

from strategies.distribution.communicator import Communicator


class Ranks:
    """The ranks of a cell, over the strategy's own communicator but off its record."""

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.rank, self.ranks = comm.rank, comm.ranks

    @property
    def one_process(self) -> bool:
        """Whether all ranks live in this process, one running at a time."""
        return self.comm.engine == "virtual"

    @property
    def modelled(self) -> bool:
        """Whether times are computed: from ranks that ran one after another, or of a link held to a rate."""
        return self.one_process or (self.comm.pace is not None and self.ranks > 1)

    def now(self) -> float:
        return self.comm.now()

    def by_rank(self, values: torch.Tensor) -> torch.Tensor:
        """Every rank's values, [ranks, ...] on all ranks, on the host; same shape everywhere."""
        with self.comm.off_the_record():
            return torch.cat(self.comm.gather("harness", values[None].cpu()))

    def each(self, value: float) -> list[float]:
        """Every rank's number, on all ranks."""
        return self.by_rank(torch.tensor(value, dtype=torch.float64)).tolist()

    def slowest(self, seconds: float) -> float:
        """The largest of all ranks: a step takes as long as its slowest rank."""
        return max(self.each(seconds))

    def total(self, value: float) -> float:
        return sum(self.each(value))

    def barrier(self) -> None:
        self.comm.barrier()
