"""The virtual engine: exact bytes, one rank at a time, and no rank left waiting."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.distribution.communicator import Communicator, LocalCommunicator, Terms
from strategies.distribution.virtual import VirtualWorld


def ragged(rank: int, ranks: int, seed: int) -> list[int]:
    """How many rows this rank sends to each other; the same wherever it is asked."""
    generator = torch.Generator().manual_seed(seed * 100 + rank)
    return torch.randint(0, 4, (ranks,), generator=generator).tolist()


@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(1, 6), seed=st.integers(0, 1000))
def test_exchange_delivers_every_row_to_its_destination_in_order_of_source(ranks, seed):
    def main(comm: Communicator):
        mine = ragged(comm.rank, ranks, seed)
        theirs = [ragged(s, ranks, seed)[comm.rank] for s in range(ranks)]
        rows = torch.tensor([[comm.rank, d] for d, n in enumerate(mine) for _ in range(n)]).reshape(-1, 2)
        received = comm.exchange("test", rows, mine, theirs).wait()
        expected = torch.tensor([[s, comm.rank] for s, n in enumerate(theirs) for _ in range(n)]).reshape(-1, 2)
        assert torch.equal(received, expected)
        return mine, comm.ledger

    results = VirtualWorld(ranks).run(main)
    for rank, (sent, ledger) in enumerate(results):
        assert ledger.payload["test"][rank].tolist() == [16 * n for n in sent]
        assert ledger.payload["test"].sum() == 16 * sum(sent)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("own", [True, False])
def test_rows_are_received_in_the_memory_that_is_given_for_them(ranks, own):
    def main(comm: Communicator) -> None:
        mine = ragged(comm.rank, ranks, 5)
        theirs = [ragged(s, ranks, 5)[comm.rank] for s in range(ranks)]
        into = torch.full((sum(theirs), 2), -1)
        rows = torch.tensor([[comm.rank, d] for d, n in enumerate(mine) for _ in range(n)]).reshape(-1, 2)
        received = comm.exchange("test", rows, mine, theirs, terms=Terms(own=own, into=into)).wait()
        assert received is into
        expected = torch.tensor([[s, comm.rank] for s, n in enumerate(theirs) for _ in range(n)]).reshape(-1, 2)
        if not own:
            expected[expected[:, 0] == comm.rank] = -1
        assert torch.equal(into, expected)

    VirtualWorld(ranks).run(main)
    if ranks == 1:
        main(LocalCommunicator())


def test_only_one_rank_runs_at_a_time():
    running, most = [0], [0]
    lock = threading.Lock()

    def main(comm: Communicator):
        for _ in range(5):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.001)
            with lock:
                running[0] -= 1
            comm.barrier()

    VirtualWorld(4).run(main)
    assert most[0] == 1


def test_an_exchange_can_be_overtaken_by_work_and_by_another_exchange():
    def main(comm: Communicator):
        other = 1 - comm.rank
        counts = [1, 1]
        first = comm.exchange("a", torch.tensor([10.0, 20.0]) + comm.rank, counts, counts)
        second = comm.exchange("b", torch.tensor([30.0, 40.0]) + comm.rank, counts, counts)
        late, early = second.wait(), first.wait()
        return early.tolist(), late.tolist(), other

    (a, b, _), (c, d, _) = VirtualWorld(2).run(main)
    assert (a, b) == ([10.0, 11.0], [30.0, 31.0])
    assert (c, d) == ([20.0, 21.0], [40.0, 41.0])


def test_what_was_sent_is_not_changed_by_what_the_sender_does_next():
    def main(comm: Communicator):
        rows = torch.full((2,), float(comm.rank))
        pending = comm.exchange("test", rows, [1, 1], [1, 1])
        rows.fill_(99.0)
        return pending.wait().tolist()

    assert VirtualWorld(2).run(main) == [[0.0, 1.0], [0.0, 1.0]]


def test_an_exception_on_one_rank_ends_all_and_is_the_one_reported():
    def main(comm: Communicator):
        if comm.rank == 1:
            raise KeyError("lost")
        comm.barrier()

    with pytest.raises(KeyError, match="lost"):
        VirtualWorld(3).run(main)


def test_a_rank_that_ends_early_is_reported_as_what_the_others_wait_for():
    def main(comm: Communicator):
        if comm.rank == 0:
            comm.exchange("exchange_forward", torch.zeros(2), [1, 1], [1, 1]).wait()

    with pytest.raises(RuntimeError, match="rank 0 in exchange_forward"):
        VirtualWorld(2).run(main)


def test_counts_that_do_not_match_name_stage_and_rank():
    def main(comm: Communicator):
        comm.exchange("exchange_forward", torch.zeros(2), [1, 1], [1, 2 * comm.rank]).wait()

    with pytest.raises(ValueError, match=r"exchange_forward: rank \d expected"):
        VirtualWorld(2).run(main)


def test_clocks_advance_with_own_work_and_meet_at_the_slowest_rank():
    def main(comm: Communicator):
        start = comm.now()
        time.sleep(0.02 * (1 + comm.rank))
        alone = comm.now() - start
        comm.barrier()
        return alone, comm.now() - start

    (fast, fast_after), (slow, slow_after) = VirtualWorld(2).run(main)
    assert fast < slow
    assert fast_after >= slow * 0.99
    # Had the ranks' times been added up, both would stand at more than the sum.
    assert slow_after < fast + slow


def test_copies_that_stand_in_for_the_link_take_no_time(monkeypatch):
    took = 0.02
    clone, cat = torch.Tensor.clone, torch.cat

    def slow(copy):
        def slowly(*arguments):
            time.sleep(took)
            return copy(*arguments)

        return slowly

    monkeypatch.setattr(torch.Tensor, "clone", slow(clone))
    monkeypatch.setattr(torch, "cat", slow(cat))

    def main(comm: Communicator):
        start = comm.now()
        comm.exchange("test", torch.zeros(2), [1, 1], [1, 1]).wait()
        return comm.now() - start

    assert max(VirtualWorld(2).run(main)) < took


def test_gather_and_reduce_give_every_rank_the_same():
    def main(comm: Communicator):
        parts = comm.gather("test", torch.full((comm.rank, 2), float(comm.rank)))
        total = comm.reduce("test", torch.tensor([0.1 * comm.rank, 1.0]))
        return [p.shape[0] for p in parts], total

    results = VirtualWorld(3).run(main)
    assert all(lengths == [0, 1, 2] for lengths, _ in results)
    assert all(torch.equal(total, results[0][1]) for _, total in results)
    assert results[0][1].tolist() == pytest.approx([0.3, 3.0])


def test_neighbours_exchanges_with_the_named_ranks_only():
    def main(comm: Communicator):
        rank, last = comm.rank, comm.ranks - 1
        send = {rank + 1: torch.full((2, 3), float(rank))} if rank < last else {}
        expected = {rank - 1: 2} if rank > 0 else {}
        received = comm.neighbours("halo", send, expected, like=torch.zeros(1, 3))
        return {s: rows.tolist() for s, rows in received.items()}

    assert VirtualWorld(3).run(main) == [{}, {0: [[0.0] * 3] * 2}, {1: [[1.0] * 3] * 2}]


def test_off_the_record_leaves_no_trace():
    comm = LocalCommunicator()
    with comm.off_the_record():
        comm.gather("harness", torch.zeros(3))
    assert comm.ledger.calls == {}
    assert comm.ledger.wire_bytes() == 0
    assert comm.exposed_seconds == {}


def test_send_counts_that_do_not_cover_the_rows_are_refused():
    with pytest.raises(ValueError, match="send counts"):
        LocalCommunicator().exchange("test", torch.zeros(3), [2], [3])


def test_what_another_library_exchanges_is_booked_paced_and_exposed():
    def main(comm):
        comm.pace = 100.0
        to = [10, 40] if comm.rank == 0 else [20, 10]
        start = comm.now()
        with comm.accompany("theirs", to, [10, 20] if comm.rank == 0 else [40, 10]):
            pass
        with comm.accompany("theirs", [5, 5], [5, 5], metadata=True):
            pass
        return comm.ledger, comm.now() - start, comm.exposed_seconds["theirs"], comm.hidden_seconds["theirs"]

    for rank, (ledger, took, exposed, hidden) in enumerate(VirtualWorld(2).run(main)):
        assert ledger.payload["theirs"][rank].tolist() == ([10, 40] if rank == 0 else [20, 10])
        assert ledger.metadata["theirs"][rank].tolist() == [5, 5]
        assert ledger.calls == {"theirs": 2}
        # A link of both directions: the longer way decides, and one exchange follows the other.
        assert exposed == pytest.approx(0.45, abs=0.01)
        assert took >= exposed
        assert hidden == 0
