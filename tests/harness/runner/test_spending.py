"""CPU seconds and kernel launches of windows, for ranks in one process and in several."""

from __future__ import annotations

import torch

from cuda_src import launches
from cuda_src.operators import KernelSet
from harness.runner.ranks import Ranks
from harness.runner.spending import Spending
from strategies.distribution.communicator import LocalCommunicator
from strategies.distribution.virtual import VirtualWorld


def test_calls_of_operators_count_and_looking_at_a_back_end_does_not():
    kernels = KernelSet("reference")
    before = launches.counted()
    assert not kernels.moves_at_once
    assert launches.counted() == before
    assert kernels.called is kernels.module
    assert launches.counted() == before + 1


def test_windows_hold_what_was_spent_between_begin_and_end():
    spending = Spending(Ranks(LocalCommunicator(torch.device("cpu"))))
    for calls in (2, 5):
        launches.count()  # Between windows: nobody's.
        spending.begin()
        for _ in range(calls):
            launches.count()
        spending.end()
    seconds, counted = spending.take()
    assert counted == [2, 5]
    assert all(value >= 0 for value in seconds)
    assert spending.take() == ([], [])


def test_ranks_of_one_process_are_counted_once_and_none_runs_ahead_of_a_window():
    """Ranks of unlike work, which meet in the middle of it."""

    def rank(comm):
        spending = Spending(Ranks(comm))
        for _ in range(3):
            spending.begin()
            for _ in range(comm.rank + 1):
                launches.count()
            comm.barrier()
            launches.count()
            spending.end()
            for _ in range(10):  # Such as an evaluation: in no window.
                launches.count()
        return spending.take()[1]

    for counted in VirtualWorld(3).run(rank):
        assert counted == [1 + 2 + 3 + 3] * 3
