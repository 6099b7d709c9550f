"""What tiles cost is the same on all ranks, known at the next visit, and never waited for before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_src.camera import Camera
from strategies.distribution.balance import Balance
from strategies.distribution.communicator import Communicator
from strategies.distribution.regions import Regions
from strategies.distribution.segment_time import SegmentTime
from strategies.distribution.virtual import VirtualWorld

CAMERAS = [Camera(160, 96, 50.0, 50.0, 80.0, 48.0, np.eye(4)), Camera(64, 80, 50.0, 50.0, 32.0, 40.0, np.eye(4))]
WORK = [torch.randint(1, 10_000, (c.tiles,), generator=torch.Generator().manual_seed(c.tiles)) for c in CAMERAS]


def own_work(regions: Regions, rank: int):
    return [lambda v=v: WORK[v][regions.of(rank, v).long()] for v in range(len(regions.cameras))]


def shares(regions: Regions) -> list[int]:
    """Work of each rank."""
    every = torch.cat(WORK[: len(regions.cameras)])
    return [int(part.sum()) for part in every.split(regions.lengths)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_next_visit_is_cut_by_the_work_of_the_last_on_every_rank(ranks, batch):
    views, cameras = list(range(batch)), CAMERAS[:batch]

    def main(comm: Communicator):
        balance = Balance(comm, "block", "work")
        first = balance.cut(views, cameras)
        balance.learn(views, first, lambda: 0.0, own_work(first, comm.rank))
        return first, balance.cut(views, cameras)

    results = VirtualWorld(ranks).run(main)
    first, then = results[0]
    assert all(own.cuts == then.cuts for _, own in results)
    largest = max(int(w.max()) for w in WORK)
    assert max(shares(then)) <= sum(shares(then)) / ranks + largest
    if ranks == 3:
        assert max(shares(first)) > max(shares(then))


def test_a_forward_alone_teaches_work_but_no_seconds():
    def main(comm: Communicator):
        cuts = []
        for cost in ("work", "measured", "off"):
            balance = Balance(comm, "block", cost)
            first = balance.cut([0], CAMERAS[:1])
            balance.learn_work([0], first, own_work(first, comm.rank)[:1])
            cuts.append((first.cuts, balance.cut([0], CAMERAS[:1]).cuts))
        return cuts

    work, measured, off = VirtualWorld(2).run(main)[0]
    assert work[0] != work[1]
    assert measured[0] == measured[1]
    assert off[0] == off[1]


def test_measured_seconds_are_asked_for_at_the_step_after_and_move_the_cut_to_the_faster():
    asked = []

    def main(comm: Communicator):
        balance = Balance(comm, "block", "measured")

        def seconds() -> float:
            asked.append(comm.rank)
            return 3e-3 if comm.rank == 0 else 1e-3

        first = balance.cut([0], CAMERAS[:1])
        balance.learn([0], first, seconds, [])
        assert comm.rank not in asked
        second = balance.cut([0], CAMERAS[:1])
        balance.learn([0], second, seconds, [])
        assert comm.rank in asked
        return first, second, balance.cut([0], CAMERAS[:1])

    first, second, third = VirtualWorld(2).run(main)[0]
    assert first.cuts == second.cuts
    # Half the seconds: 3 a tile on the left half, 1 on the right.
    tiles = CAMERAS[0].tiles
    assert third.cuts == (0, tiles // 3, tiles)


def test_a_batch_of_as_many_views_as_ranks_teaches_nothing_where_the_release_does_not_learn():
    def main(comm: Communicator):
        balance = Balance(comm, "block", "work", batches=False)
        first = balance.cut([0, 1], CAMERAS)
        balance.learn([0, 1], first, lambda: 0.0, own_work(first, comm.rank))
        return first.cuts == balance.cut([0, 1], CAMERAS).cuts, "balance" in comm.ledger.metadata

    assert VirtualWorld(2).run(main) == [(True, False)] * 2


def test_time_is_weighted_and_begins_anew():
    def main(comm: Communicator):
        time, moments = SegmentTime(comm), iter([0.0, 1.0, 5.0, 7.0, 7.0, 8.0])
        comm.now = lambda: next(moments)
        with time.stage():
            pass
        with time.stage(weight=2.0):
            pass
        first = time.take()
        with time.stage():
            pass
        return first(), time.take()()

    assert VirtualWorld(1).run(main) == [(5.0, 1.0)]


def test_time_that_nobody_wants_is_not_measured():
    def main(comm: Communicator):
        time = SegmentTime(comm, wanted=False)
        comm.now = lambda: 1 / 0
        with time.stage():
            pass
        return time.take()()

    assert VirtualWorld(1).run(main) == [0.0]
