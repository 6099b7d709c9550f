"""Views that one rank renders whole, on a GPU: records are projected where they travel or stay, as if packed there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src import exchange as ex
from cuda_src import operators as op
from cuda_src.exchange import Hole, RankRooms
from cuda_src.layout import GRADIENT, RECORD, RECORD_DEPTH, SH_DC
from cuda_src.operators import Room
from cuda_src.workspace import Workspace

pytestmark = pytest.mark.gpu

RANKS, OF_OTHERS, BEFORE, BEHIND = 3, 8, 5, 2
"""Rows of rooms that hold no record; rows of arrivals before and behind the hole."""


class Crossing:
    """A rank's share of a view that one of three ranks renders whole; spare: rows, and instances, that rooms have."""

    def __init__(self, kernels, view, device, rank: int, whole: int, spare: int = 9, spare_instances: int = 3) -> None:
        self.rank, self.whole, self.device = rank, whole, device
        given = kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3
        self.exact = op.project(*given, Workspace(device))
        owners = torch.full((view.camera.tiles,), whole, dtype=torch.int32, device=device)
        self.packed = ex.route_splats(kernels, self.exact, view.camera, owners, RANKS, Workspace(device))
        records, instances = self.packed.counts[whole, [ex.SENT_RECORDS, ex.SENT_INSTANCES]].tolist()
        self.rows = [OF_OTHERS] * RANKS
        self.rows[whole] = max(1, records + 1 + spare)
        rooms = RankRooms(tuple(self.rows), tuple([instances + spare_instances] * RANKS))
        work, self.overflow = Workspace(device), torch.zeros(1, dtype=torch.int32, device=device)
        self.wire = torch.full((sum(self.rows), ex.wire_width(kernels)), 0.5, device=device)
        self.hole = Hole(BEFORE, self.rows[rank])
        self.arrived = ex.take_arrivals(kernels, work, "arrived", BEFORE + self.hole.count + BEHIND)
        self.arrived.records.fill_(0.5)
        memory = self.arrived.records if rank == whole else self.wire
        first = BEFORE if rank == whole else sum(self.rows[:whole])
        room = Room(self.rows[whole] - 1, 0, self.overflow)
        into = memory[first : first + room.splats, :RECORD]
        self.splats = op.project(*given, work, room, into=into)
        self.routing = ex.route_whole(kernels, self.splats, whole, work, rooms)
        ex.pack_records(kernels, self.splats, self.routing, rank, self.wire)
        ex.keep_records(kernels, self.splats, self.routing, rank, self.hole, self.arrived)

    @property
    def sent(self) -> list[torch.Tensor]:
        """What travels, by destination."""
        return list(self.wire.split(self.rows))

    @property
    def kept(self) -> torch.Tensor:
        """The hole."""
        return ex.row_words(self.arrived.records)[BEFORE : BEFORE + self.hole.count]


@pytest.fixture
def view(parity):
    """Splats of a pixel and of many tiles, with ids that records take along."""
    made = parity.view(31, gaussians=4000, width=640, height=480, sizes=(0.5, 60.0))
    return replace(made, ids=torch.arange(len(made.ids)).flip(0))


@pytest.mark.parametrize("whole", range(RANKS))
@pytest.mark.parametrize("rank", range(RANKS))
def test_records_lie_as_if_packed_and_all_counts_are_those_of_routes(kernels, view, device, rank, whole):
    crossing = Crossing(kernels, view, device, rank, whole)
    exact, count = crossing.exact, crossing.exact.count
    assert count > 1000
    assert torch.equal(crossing.routing.counts, crossing.packed.counts)
    assert crossing.splats.live[:2].tolist() == [count, 0]
    assert int(crossing.overflow) == 0
    for destination, rows in enumerate([*crossing.sent, crossing.kept]):
        if destination == rank:
            assert (rows == 0.5).all()  # What a rank has for itself does not travel.
            continue
        records = count if whole == (rank if destination == RANKS else destination) else 0
        assert torch.equal(rows[:records, :RECORD], exact.records[:records])
        assert torch.equal(ex.ids_in(rows[:records]).long(), exact.ids[:records])
        assert rows[records:, RECORD_DEPTH].isnan().all()
        assert destination == RANKS or rows[-1, 0] == 0
    assert (crossing.arrived.records[:BEFORE] == 0.5).all()
    assert (crossing.arrived.records[-BEHIND:] == 0.5).all()


@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize(("spare", "spare_instances"), [(-1, 3), (-700, 3), (9, -1)])
def test_a_room_that_is_too_small_sets_the_flag_that_travels(kernels, view, device, whole, spare, spare_instances):
    crossing = Crossing(kernels, view, device, 0, whole, spare, spare_instances)
    assert int(crossing.overflow) == 1
    assert [float(rows[-1, 0]) for rows in crossing.sent[1:]] == [1.0] * (RANKS - 1)
    counts = crossing.routing.counts[whole].tolist()
    assert counts[ex.SENT_RECORDS] == counts[ex.OWN_SPLATS] == crossing.exact.count
    assert counts[ex.OVERFLOWED] == (spare < 0)


def test_splats_that_are_not_drawn_have_no_instance_and_are_told_apart(kernels, view, device):
    clean = Crossing(kernels, view, device, 0, 1).routing.counts[1].tolist()
    spoiled = replace(view, parameters=view.parameters.clone())
    spoiled.parameters[::9, SH_DC] = torch.inf
    counts = Crossing(kernels, spoiled, device, 0, 1).routing.counts[1].tolist()
    assert counts[ex.OWN_SPLATS] == counts[ex.SENT_RECORDS] == clean[ex.OWN_SPLATS]
    assert 0 < counts[ex.OWN_UNDRAWN] < counts[ex.OWN_SPLATS]
    assert 0 < counts[ex.SENT_INSTANCES] < clean[ex.SENT_INSTANCES]


def test_splats_have_to_have_the_size_of_the_room_that_they_lie_in(kernels, view, device):
    splats, work = Crossing(kernels, view, device, 0, 1).splats, Workspace(device)
    with pytest.raises(ValueError, match=f"room of {splats.count + 3}"):
        ex.route_whole(kernels, splats, 1, work, RankRooms((8, splats.count + 4), (9, 9)))
    with pytest.raises(ValueError, match="with a room"):
        ex.route_whole(kernels, replace(splats, overflow=None), 1, work, RankRooms((8, splats.count + 1), (9, 9)))


def test_nothing_is_summed_of_a_view_that_one_rank_renders(kernels, view, device):
    crossing, zeros = Crossing(kernels, view, device, 0, 1), torch.zeros(1, dtype=torch.int64, device=device)
    returned = torch.zeros(sum(crossing.rows), ex.SENT_GRADIENTS, device=device)
    total = torch.zeros(crossing.splats.count, GRADIENT, device=device)
    with pytest.raises(ValueError, match="rank 1 renders all of the view"):
        ex.sum_gradients(kernels, crossing.routing, returned, 0, None, ex.NO_HOLE, total, zeros)
