"""What a cell of a GPU reads beforehand has all cores; what is timed, and cells of CPUs, the threads they ask for."""

from __future__ import annotations

import pytest
import torch

from harness.runner import shared_cores
from harness.runner.shared_cores import share_of_cores


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(shared_cores, "cores", lambda: 6)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("device", "processes", "threads"), [("cuda", 1, 6), ("cuda", 2, 3), ("cuda", 8, 1), ("cpu", 1, 1)]
)
def test_a_process_has_its_share_where_a_gpu_computes(device, processes, threads):
    with share_of_cores(torch.device(device), processes):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 1


def test_an_error_leaves_the_threads_as_they_were():
    with pytest.raises(ValueError, match="unreadable"), share_of_cores(torch.device("cuda"), 1):
        raise ValueError("unreadable")
    assert torch.get_num_threads() == 1
