"""Views that one rank renders whole, on a GPU: records are projected where they travel or stay, as if packed there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src import exchange as ex
from cuda_src import operators as op
from cuda_src.exchange import Hole, RankRooms
from cuda_src.layout import GRADIENT, GRADIENT_STRIDE, RECORD, RECORD_DEPTH, SH_DC
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
    """Splats of a pixel and of many tiles."""
    return parity.view(31, gaussians=4000, width=640, height=480, sizes=(0.5, 60.0))


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


@pytest.mark.parametrize("whole", [0, 1])
def test_gradients_are_those_that_came_back_or_were_kept(kernels, view, device, whole):
    crossing = Crossing(kernels, view, device, 0, whole)
    count, generator = crossing.exact.count, torch.Generator().manual_seed(1)
    returned = torch.randn(sum(crossing.rows), ex.SENT_GRADIENTS, generator=generator).to(device)
    own = torch.randn(crossing.arrived.count, GRADIENT_STRIDE, generator=generator).to(device)[:, :GRADIENT]
    own[::3] = 0
    zeros = torch.zeros(1, dtype=torch.int64, device=device)
    memory = torch.full((crossing.splats.count, GRADIENT_STRIDE), 0.5, device=device)
    given = kernels, crossing.routing, returned, 0, own, crossing.hole, memory[:, :GRADIENT], zeros
    ex.sum_gradients(*given, shared=True)
    first = sum(crossing.rows[:whole])
    if whole == 0:  # All of them are used where they lie.
        assert (memory == 0.5).all()
        ex.sum_gradients(*given)
        expected = own[BEFORE : BEFORE + count, : ex.SENT_GRADIENTS]
        assert int(zeros) == (~expected.any(dim=1)).sum() > 0
        # And where a codec has brought all rows.
        codec = torch.full((crossing.splats.count, GRADIENT_STRIDE), 0.5, device=device)[:, :GRADIENT]
        ex.sum_gradients(*given[:4], None, ex.NO_HOLE, codec, zeros)
        assert torch.equal(codec[:count, : ex.SENT_GRADIENTS], returned[:count])
    else:
        expected = returned[first : first + count]
        assert int(zeros) == 0
    assert torch.equal(memory[:count, : ex.SENT_GRADIENTS], expected)
    assert not memory[:count, ex.SENT_GRADIENTS :].any()
    assert (memory[count:] == 0.5).all()


def test_splats_have_to_have_the_size_of_the_room_that_they_lie_in(kernels, view, device):
    splats, work = Crossing(kernels, view, device, 0, 1).splats, Workspace(device)
    with pytest.raises(ValueError, match=f"room of {splats.count + 3}"):
        ex.route_whole(kernels, splats, 1, work, RankRooms((8, splats.count + 4), (9, 9)))
    with pytest.raises(ValueError, match="with a room"):
        ex.route_whole(kernels, replace(splats, overflow=None), 1, work, RankRooms((8, splats.count + 1), (9, 9)))
