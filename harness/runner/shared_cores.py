"""The CPU's cores while a cell is prepared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.measure.environment import cores


@contextmanager
def share_of_cores(device: torch.device, processes: int) -> Iterator[None]:
    """Inside, PyTorch's work on the CPU has a process's share of the cores, if the cell is a GPU's.

    Nothing is timed there yet, and millions of Gaussians are read. A cell of a CPU keeps the threads that it asks for.
    processes: of the cell on this machine.
    """
    own = torch.get_num_threads()
    if device.type == "cuda":
        torch.set_num_threads(max(own, cores() // processes))
    try:
        yield
    finally:
        torch.set_num_threads(own)
