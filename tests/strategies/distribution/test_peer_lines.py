"""Rows over sockets of the machine: in order, whoever is ahead, and an end in words where a rank is silent or gone."""

from __future__ import annotations

import socket
import threading
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from strategies.distribution.communicator import PeerFailedError, PeerSilentError
from strategies.distribution.host_group import HostGroup
from strategies.distribution.peer_lines import MOST_BYTES, PeerLines


def connected(ranks: int, timeout: float = 5.0) -> list[PeerLines]:
    """The ends of all ranks, in one process."""
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one, other in combinations(range(ranks), 2):
        sockets[one][other], sockets[other][one] = socket.socketpair()
    return [PeerLines(rank, lines, timeout) for rank, lines in enumerate(sockets)]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_each_rank_is_told_the_rows_of_all_others_by_number_in_any_order(ranks):
    ends, numbers = connected(ranks), range(7)
    for number in numbers:
        for rank, end in enumerate(ends):
            assert end.tell("a", bytes([rank]) * (number * 100)) == number
    for rank, end in enumerate(ends):
        others = [other for other in range(ranks) if other != rank]
        for number in reversed(numbers):
            assert end.told("a", number) == {other: bytes([other]) * (number * 100) for other in others}
        end.close()


def test_a_rank_that_is_far_ahead_waits_until_the_other_reads(monkeypatch):
    ahead, behind = connected(2)
    rows = [bytes([n % 251]) * MOST_BYTES for n in range(600)]  # More than the sockets hold.

    def tell() -> None:
        for row in rows:
            ahead.tell("a", row)

    teller = threading.Thread(target=tell)
    teller.start()
    assert [behind.told("a", number)[0] for number in range(len(rows))] == rows
    teller.join()


def test_a_rank_that_reads_nothing_is_silent_to_who_tells_it_ever_more():
    ahead, _behind = connected(2, timeout=0.05)

    def tell_ever_more() -> None:
        for _ in range(600):
            ahead.tell("counts", bytes(MOST_BYTES))

    with pytest.raises(PeerSilentError, match="counts: rank 0 waited in vain for the other ranks"):
        tell_ever_more()


def test_a_rank_that_tells_nothing_is_silent_and_one_that_has_ended_is_lost_once_its_rows_are_read():
    one, other = connected(2, timeout=0.05)
    with pytest.raises(PeerSilentError, match="counts: rank 0 waited in vain for the other ranks"):
        one.told("counts", 0)
    other.tell("counts", b"last")
    other.close()
    assert one.told("counts", 0) == {1: b"last"}
    with pytest.raises(PeerFailedError, match="counts: rank 0 lost another rank"):
        one.told("counts", 1)
    with pytest.raises(PeerFailedError, match="counts: rank 0 lost another rank"):
        one.tell("counts", b"row")


def told_by_lines(ranks: int) -> list[HostGroup]:
    """Groups of all ranks, in one process, whose gloo does not exist."""
    return [HostGroup(object(), rank, torch.device("cpu"), end) for rank, end in enumerate(connected(ranks))]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_small_rows_that_are_all_the_same_go_over_the_lines(dtype):
    groups, rows = told_by_lines(3), [torch.tensor([[10 * rank + 1, rank]], dtype=dtype) for rank in range(3)]
    asked = [group.exchange("a", row.expand(3, -1), [1] * 3, [1] * 3) for group, row in zip(groups, rows, strict=True)]
    for one in asked:
        assert torch.equal(one.result(), torch.cat(rows))


@pytest.mark.parametrize("rows", [torch.zeros(1, MOST_BYTES // 8 + 1).double().expand(3, -1), torch.zeros(3, 2)])
def test_large_rows_and_rows_of_each_rank_s_own_go_over_gloo(monkeypatch, rows):
    begun = []

    def exchange(received, sent, *given, **named):
        begun.append(sent.shape)
        return SimpleNamespace(get_future=lambda: SimpleNamespace(add_done_callback=lambda call: None))

    monkeypatch.setattr(dist, "all_to_all_single", exchange)
    told_by_lines(3)[0].exchange("a", rows, [1] * 3, [1] * 3)
    assert begun == [rows.shape]
