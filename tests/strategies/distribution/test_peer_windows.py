"""Windows that other ranks write, on a stand-in for PyTorch's symmetric memory: who waits for what, and growth."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from strategies.distribution import peer_windows
from strategies.distribution.peer_windows import PeerWindows


class Symmetric:
    """Rank 1 of three; what is done, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []

    def empty(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        self.done.append(("empty", size))
        return torch.zeros(size, dtype=dtype)

    def rendezvous(self, tensor: torch.Tensor, group: object) -> SimpleNamespace:
        return SimpleNamespace(
            get_buffer=lambda rank, sizes, dtype: torch.full(sizes, rank, dtype=dtype),
            put_signal=lambda rank, channel: self.done.append(("put", rank, channel)),
            wait_signal=lambda rank, channel: self.done.append(("wait", rank, channel)),
        )


@pytest.fixture
def symmetric(monkeypatch: pytest.MonkeyPatch) -> Symmetric:
    made = Symmetric()
    monkeypatch.setattr(peer_windows, "symmetric", made)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: made.done.append(("synchronize",)))
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=object()))
    return made


def windows_of(symmetric: Symmetric) -> PeerWindows:
    return PeerWindows(torch.device("cpu"), lambda: symmetric.done.append(("barrier",)))


def test_processes_that_may_not_map_memory_are_told_of_the_engine_that_need_not(symmetric):
    def refused(*_: object) -> None:
        raise RuntimeError("pidfd_getfd: not permitted")

    symmetric.rendezvous = refused
    with pytest.raises(RuntimeError, match=r"map each other's memory \(pidfd_getfd: not permitted\); engine: nccl"):
        windows_of(symmetric)


def test_a_window_grows_when_nobody_uses_it_and_by_more_than_is_asked_for(symmetric):
    windows = windows_of(symmetric)
    first = windows.take("a", 100_000)
    assert [int(window.float().mean()) for window in first] == [0, 0, 2]
    assert windows.take("a", 60_000) is first
    del symmetric.done[:]
    grown = windows.take("a", len(first[0]) + 1)
    assert symmetric.done[:2] == [("synchronize",), ("barrier",)]
    assert len(grown[1]) >= len(first[0]) * 33 // 32
    assert len(grown[1]) % 4096 == 0
    assert len(windows.take("b", 1)[0]) == 4096


def test_each_rank_writes_first_to_the_next_one(symmetric):
    windows = windows_of(symmetric)
    del symmetric.done[:]
    windows.exchange([torch.ones(2)] * 3, [torch.zeros(2)] * 3, [0, 0, 0])
    assert [rank for what, rank, _ in symmetric.done if what == "wait"] == [2, 0]


def test_rows_are_written_once_their_receiver_is_ready_and_only_where_there_are_any(symmetric):
    windows = windows_of(symmetric)
    del symmetric.done[:]
    gives, there = [torch.ones(2, 3), torch.ones(4, 3), torch.ones(0, 3)], [torch.zeros(n, 3) for n in (2, 4, 0)]
    windows.exchange(gives, there, [0, 4, 5])
    ready, done = 0, 1
    assert symmetric.done == [("put", 2, ready), ("wait", 0, ready), ("put", 0, done), ("wait", 2, done)]
    assert there[0].sum() == 6
    assert there[1].sum() == 0
