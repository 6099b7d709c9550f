"""How NCCL is called; what it then moves is for tests on GPUs."""

from __future__ import annotations

import ctypes

import pytest
import torch

from strategies.distribution import nccl_peers
from strategies.distribution.nccl_peers import NcclPeers

IDENTITY = torch.arange(128, dtype=torch.uint8)


class Nccl:
    """Stands in for the library, and remembers its calls. fails: the function that returns an error."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[object, ...]] = []
        self._fails = fails

    def __getattr__(self, name: str):
        def called(*arguments: object) -> int:
            self.calls.append((name.removeprefix("nccl"), *arguments))
            return 3 if name == self._fails else 0

        return called

    def ncclCommInitRank(self, communicator, ranks, name, rank) -> int:
        communicator._obj.value = 99
        self.calls.append(("CommInitRank", ranks, bytes(name), rank))
        return 0

    def ncclGetErrorString(self, code: int) -> bytes:
        return f"internal error {code}".encode()


@pytest.fixture
def peers(monkeypatch):
    def make(fails: str = "") -> tuple[NcclPeers, Nccl]:
        nccl = Nccl(fails)
        monkeypatch.setattr(nccl_peers, "_library", lambda: nccl)
        return NcclPeers(1, 3, IDENTITY), nccl

    return make


def plain(call: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(a.value if isinstance(a, ctypes.c_void_p) else a for a in call)


def test_all_that_crosses_is_one_group_of_calls(peers):
    own, nccl = peers()
    own.exchange(5, [(0, 1000, 24), (2, 1024, 8)], [(2, 2000, 16)])
    own.close()
    assert [plain(call) for call in nccl.calls] == [
        ("CommInitRank", 3, bytes(range(128)), 1),
        ("GroupStart",),
        ("Send", 1000, 24, 1, 0, 99, 5),
        ("Send", 1024, 8, 1, 2, 99, 5),
        ("Recv", 2000, 16, 1, 2, 99, 5),
        ("GroupEnd",),
        ("CommDestroy", 99),
    ]


@pytest.mark.parametrize("fails", ["ncclSend", "ncclRecv", "ncclGroupEnd"])
def test_an_error_is_told_in_its_own_words_and_the_group_is_ended(peers, fails):
    own, nccl = peers(fails)
    with pytest.raises(RuntimeError, match="NCCL: internal error 3"):
        own.exchange(5, [(0, 1000, 24)], [(0, 2000, 16)])
    assert nccl.calls[-1] == ("GroupEnd",)


def test_a_pytorch_without_the_library_is_told_so(monkeypatch):
    def missing(name: str) -> ctypes.CDLL:
        raise OSError("cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    nccl_peers._library.cache_clear()
    with pytest.raises(RuntimeError, match="NCCL as a library of its own"):
        NcclPeers(0, 1, IDENTITY)
