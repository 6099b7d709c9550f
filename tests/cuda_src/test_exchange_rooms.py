"""Exchange with rooms: as many rows as were agreed upon, whatever the records; a flag goes along with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import exchange as ex
from cuda_src import operators as op
from cuda_src.exchange import Hole, RankRooms, Routing
from cuda_src.layout import GRADIENT, GRADIENT_STRIDE, RECORD, RECORD_DEPTH
from cuda_src.operators import KernelSet, Room, Splats
from cuda_src.workspace import Workspace

REFERENCE = KernelSet("reference")


def bound_for(count: int, ranks: int, spare: int, seed: int) -> tuple[Splats, Routing]:
    """Splats that each go to some ranks, and rooms that have `spare` rows besides the flag's; fewer where negative."""
    generator = torch.Generator().manual_seed(seed)
    records = torch.randn(count, RECORD, generator=generator)
    sent = torch.rand(count, ranks, generator=generator) < torch.rand(ranks, generator=generator)
    counts = torch.zeros(ranks, ex.ROUTE_COUNTS, dtype=torch.int64)
    counts[:, ex.SENT_RECORDS] = sent.sum(0)
    masks = (sent.long() << torch.arange(ranks)).sum(1)
    rooms = tuple(max(1, n + 1 + spare) for n in sent.sum(0).tolist())
    overflow = torch.zeros(1, dtype=torch.int32)
    ids = torch.randint(0, 2**62, (count,), generator=generator)
    live = torch.tensor([count, 0])
    return Splats(ids, ids, records, live, overflow), Routing(masks, counts, None, rooms, overflow)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 40), ranks=st.integers(1, 5), spare=st.integers(-3, 6), seed=st.integers(0, 999))
def test_every_room_holds_its_records_and_beyond_them_no_splat(count, ranks, spare, seed):
    splats, routing = bound_for(count, ranks, spare, seed)
    rank = seed % ranks
    wire = torch.full((sum(routing.rooms), 13), 0.5)
    flag = routing.overflow.fill_(seed % 2)
    ex.pack_records(REFERENCE, splats, routing, rank, wire)
    for destination, part in enumerate(wire.split(routing.rooms)):
        rows = routing.splats_to(destination)[: len(part) - 1]
        if destination == rank:
            assert (part == 0.5).all()
            continue
        assert torch.equal(part[: len(rows), :RECORD], splats.records[rows])
        assert part[len(rows) :, RECORD_DEPTH].isnan().all()
        assert part[-1, 0] == flag
    hole = Hole(2, routing.rooms[rank])
    arrived = ex.take_arrivals(REFERENCE, Workspace(), "arrived", hole.count + 4)
    records = arrived.records.fill_(0.5)
    places = torch.empty(count, dtype=torch.int32)
    ex.keep_records(REFERENCE, splats, routing, rank, hole, arrived, places)
    own = routing.splats_to(rank)[: hole.count - 1]
    kept = places >= 0
    assert torch.equal(records[places[kept].long()], splats.records[kept])
    assert set(torch.nonzero(kept).flatten().tolist()) <= set(own.tolist())
    assert (places[(routing.masks & routing.others_of(rank)) != 0] == op.ELSEWHERE).all()
    assert (places[routing.masks == 0] == op.NOWHERE).all()
    whole = (routing.masks == 1 << rank).sum()
    assert kept.sum() == whole or spare < 0
    assert torch.equal(records[2 : 2 + len(own)], splats.records[own])
    assert torch.equal(arrived.ids[2 : 2 + len(own)], splats.ids[own])
    assert records[2 + len(own) : 2 + hole.count, RECORD_DEPTH].isnan().all()
    assert (records[:2] == 0.5).all()
    assert (records[2 + hole.count :] == 0.5).all()


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 40), ranks=st.integers(2, 5), seed=st.integers(0, 999))
def test_sums_are_those_without_rooms_of_all_or_of_what_others_share(count, ranks, seed):
    splats, routing = bound_for(count, ranks, 3, seed)
    rank = seed % ranks
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n - 4, ex.SENT_GRADIENTS, generator=generator) for n in routing.rooms]
    gradients = torch.zeros(routing.rooms[rank], GRADIENT)
    gradients[: len(parts[rank]), : ex.SENT_GRADIENTS] = parts[rank]
    gradients[::3] = parts[rank][::3] = 0
    returned = torch.cat([torch.cat([part, torch.zeros(4, ex.SENT_GRADIENTS)]) for part in parts])
    zeros, hole = torch.zeros(1, dtype=torch.int64), Hole(0, len(gradients))
    out, expected = torch.empty(count, GRADIENT), torch.empty(count, GRADIENT)
    ex.sum_gradients(REFERENCE, routing, returned, rank, gradients, hole, out, zeros)
    ex.sum_gradients(
        REFERENCE, replace(routing, rooms=None), torch.cat(parts), rank, gradients, hole, expected, zeros.clone()
    )
    assert torch.equal(out, expected)
    some, counted = torch.full((count, GRADIENT), 0.5), torch.zeros(1, dtype=torch.int64)
    elsewhere = (routing.masks & routing.others_of(rank)) != 0
    ex.sum_gradients(REFERENCE, routing, returned, rank, gradients, hole, some, counted, shared=True)
    assert torch.equal(some[elsewhere], expected[elsewhere])
    assert (some[~elsewhere] == 0.5).all()
    # What is kept has its zeros counted by who uses it.
    places, arrived = torch.empty(count, dtype=torch.int32), ex.take_arrivals(REFERENCE, Workspace(), "a", hole.count)
    ex.keep_records(REFERENCE, splats, routing, rank, hole, arrived, places)
    kept = places >= 0
    assert torch.equal(gradients[places[kept].long(), : ex.SENT_GRADIENTS], expected[kept, : ex.SENT_GRADIENTS])
    assert counted + (~expected[kept].any(dim=1)).sum() == zeros


@pytest.mark.parametrize("flagged", [None, 0, 1, 2])
def test_the_flag_of_any_other_rank_sets_the_own_one(flagged):
    rows, overflow = torch.zeros(9, 13), torch.zeros(1, dtype=torch.int32)
    rows[:, 0] = 0.5  # Of records, and of the rank's own rows, which never came.
    rows[[1, 8], 0] = 0
    if flagged is not None:
        rows[[1, 5, 8][flagged], 0] = 1
    ex.take_flags(REFERENCE, rows, (2, 4, 3), 1, overflow)
    assert int(overflow) == int(flagged in (0, 2))


@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_others_are_all_ranks_but_one(ranks):
    masks = torch.ones(ranks, dtype=torch.int64) << torch.arange(ranks)
    routing = Routing(masks, torch.zeros(ranks, ex.ROUTE_COUNTS, dtype=torch.int64))
    for rank in range(ranks):
        assert ((masks & routing.others_of(rank)) != 0).tolist() == [rank != other for other in range(ranks)]


def test_rooms_want_splats_with_a_room(parity):
    view = parity.view(1)
    splats = op.project(REFERENCE, view.parameters, view.ids, view.camera, 3, Workspace())
    owners = torch.zeros(view.camera.tiles, dtype=torch.int32)
    with pytest.raises(ValueError, match="expected splats with a room, and a row or more for each of 2 ranks"):
        ex.route_splats(REFERENCE, splats, view.camera, owners, 2, Workspace(), rooms=RankRooms((5, 5), (9, 9)))


@pytest.mark.parametrize(("rows", "instances"), [(0, 0), (-1, 0), (0, -1)])
def test_a_rank_that_is_sent_too_much_sets_the_overflow(parity, rows, instances):
    view = parity.view(1)
    splats = op.project(REFERENCE, view.parameters, view.ids, view.camera, 3, Workspace())
    owners = torch.arange(view.camera.tiles, dtype=torch.int32) % 2
    counts = ex.route_splats(REFERENCE, splats, view.camera, owners, 2, Workspace()).counts
    (most, also), (many, more) = counts[:, ex.SENT_RECORDS].tolist(), counts[:, ex.SENT_INSTANCES].tolist()
    splats = replace(splats, live=torch.tensor([splats.count, 0]), overflow=torch.zeros(1, dtype=torch.int32))
    rooms = RankRooms((most + 1, also + 1 + rows), (many, more + instances))
    ex.route_splats(REFERENCE, splats, view.camera, owners, 2, Workspace(), rooms=rooms)
    assert int(splats.overflow) == int((rows, instances) != (0, 0))


def bits(real: torch.Tensor) -> torch.Tensor:
    """Ids lie among the reals of a wire: some of their bits are not a number."""
    return real.contiguous().view(torch.int32)


@pytest.fixture
def compiled() -> KernelSet:
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    return KernelSet("compiled", torch.device("cuda", 0))


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(("spare", "more"), [(-40, 0), (-1, 7), (0, 0), (0, -1), (1, 5), (3000, 3000)])
def test_compiled_rooms_are_the_definition(parity, compiled, ranks, spare, more):
    device = compiled.device
    view = parity.view(8, gaussians=3000, width=200, height=150)
    rows, ids = view.parameters.to(device), (view.ids % ex.MOST_ID).to(device)
    owners = (
        torch.arange(view.camera.tiles, dtype=torch.int32).mul_(ranks).div_(view.camera.tiles, rounding_mode="floor")
    )
    exact = op.project(compiled, rows, ids, view.camera, 3, Workspace(device))
    counted = ex.route_splats(compiled, exact, view.camera, owners.to(device), ranks, Workspace(device)).counts
    rooms = tuple(max(1, n + 1 + spare) for n in counted[:, ex.SENT_RECORDS].tolist())
    of_ranks = RankRooms(rooms, tuple(n + more for n in counted[:, ex.SENT_INSTANCES].tolist()))
    overflow, work = torch.zeros(1, dtype=torch.int32, device=device), Workspace(device)
    splats = op.project(compiled, rows, ids, view.camera, 3, work, Room(exact.count + 300, 0, overflow))
    ours = ex.route_splats(compiled, splats, view.camera, owners.to(device), ranks, work, rooms=of_ranks)
    assert torch.equal(ours.counts, counted)
    assert int(overflow) == int(spare < 0 or more < 0)
    there = Splats(splats.rows.cpu(), splats.ids.cpu(), splats.records.cpu(), splats.live.cpu(), overflow.cpu())
    theirs = Routing(ours.masks.cpu(), ours.counts.cpu(), None, rooms, there.overflow)
    rank = ranks - 1
    hole, count = Hole(sum(rooms[:rank]), rooms[rank]), sum(rooms)
    expected = torch.zeros(count, ex.wire_width(REFERENCE))
    ex.pack_records(REFERENCE, there, theirs, rank, expected)
    drawn = expected[:, RECORD_DEPTH] == expected[:, RECORD_DEPTH]
    # The lower half of an id's 64 bits is all of it here.
    expected = bits(expected)[:, : RECORD + 1]
    for width in (12, 16):
        wire = torch.zeros(count, width, device=device)
        ex.pack_records(compiled, splats, ours, rank, wire)
        assert torch.equal(wire[:, RECORD_DEPTH].isnan().cpu(), ~drawn)
        assert torch.equal(bits(wire.cpu())[drawn, : RECORD + 1], expected[drawn])
        assert not wire[:, RECORD + 1 :].any()
        ends = torch.tensor(rooms).cumsum(0)[:-1] - 1  # The last rank's own rows are not written.
        assert torch.equal(bits(wire.cpu())[ends, 0], expected[ends, 0])
        for reader in range(ranks):
            told = torch.zeros(1, dtype=torch.int32, device=device)
            ex.take_flags(compiled, wire, rooms, reader, told)
            assert int(told) == int(overflow) * int(reader > 0 or ranks > 2)
    mine = ex.take_arrivals(compiled, Workspace(device), "arrived", count)
    kept = ex.take_arrivals(REFERENCE, Workspace(), "arrived", count)
    ex.row_words(mine.records).zero_()
    kept.records.zero_()
    kept.ids.zero_()
    places = torch.empty(splats.count, dtype=torch.int32, device=device)
    their_places = torch.empty(splats.count, dtype=torch.int32)
    ex.keep_records(compiled, splats, ours, rank, hole, mine, places)
    ex.keep_records(REFERENCE, there, theirs, rank, hole, kept, their_places)
    assert torch.equal(places.cpu(), their_places)
    drawn = kept.records[:, RECORD_DEPTH] == kept.records[:, RECORD_DEPTH]
    assert torch.equal(mine.records[:, RECORD_DEPTH].isnan().cpu(), ~drawn)
    assert torch.equal(mine.records.cpu()[drawn], kept.records[drawn])
    assert torch.equal(mine.ids.cpu()[drawn].long(), kept.ids[drawn])

    returned = torch.randn(count, ex.SENT_GRADIENTS, generator=torch.Generator().manual_seed(1))
    gradients = torch.randn(count, GRADIENT, generator=torch.Generator().manual_seed(2))
    padded = torch.zeros((count, GRADIENT_STRIDE), device=device)[:, :GRADIENT].copy_(gradients)
    total = torch.empty((splats.count, GRADIENT_STRIDE), device=device)[:, :GRADIENT]
    zeros, by_definition = torch.zeros(1, dtype=torch.int64, device=device), torch.empty(splats.count, GRADIENT)
    ex.sum_gradients(compiled, ours, returned.to(device), rank, padded, hole, total, zeros)
    ex.sum_gradients(REFERENCE, theirs, returned, rank, gradients, hole, by_definition, zeros.cpu())
    live = slice(0, exact.count)
    # A row that lies beyond its room was never sent; the definition and the kernel leave out the same ones.
    assert torch.equal(total[live].cpu(), by_definition[live])
    total.fill_(0.5)
    counted, theirs_counted = torch.zeros_like(zeros), torch.zeros(1, dtype=torch.int64)
    shared = torch.full_like(by_definition, 0.5)
    ex.sum_gradients(compiled, ours, returned.to(device), rank, padded, hole, total, counted, shared=True)
    ex.sum_gradients(REFERENCE, theirs, returned, rank, gradients, hole, shared, theirs_counted, shared=True)
    assert torch.equal(total[live].cpu(), shared[live])
    assert torch.equal(counted.cpu(), theirs_counted)
