"""Exchange with rooms: as many rows as were agreed upon, whatever the records; a flag comes back with gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import exchange as ex
from cuda_src import operators as op
from cuda_src.exchange import Hole, Routing
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
    ex.pack_records(REFERENCE, splats, routing, rank, wire)
    for destination, part in enumerate(wire.split(routing.rooms)):
        rows = routing.splats_to(destination)[: len(part) - 1]
        if destination == rank:
            assert (part == 0.5).all()
            continue
        assert torch.equal(part[: len(rows), :RECORD], splats.records[rows])
        assert part[len(rows) :, RECORD_DEPTH].isnan().all()
    hole = Hole(2, routing.rooms[rank])
    arrived = ex.take_arrivals(REFERENCE, Workspace(), "arrived", hole.count + 4)
    records = arrived.records.fill_(0.5)
    ex.keep_records(REFERENCE, splats, routing, rank, hole, arrived)
    own = routing.splats_to(rank)[: hole.count - 1]
    assert torch.equal(records[2 : 2 + len(own)], splats.records[own])
    assert torch.equal(arrived.ids[2 : 2 + len(own)], splats.ids[own])
    assert records[2 + len(own) : 2 + hole.count, RECORD_DEPTH].isnan().all()
    assert (records[:2] == 0.5).all()
    assert (records[2 + hole.count :] == 0.5).all()


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 40), ranks=st.integers(2, 5), flagged=st.integers(-1, 4), seed=st.integers(0, 999))
def test_sums_are_those_without_rooms_and_any_rank_s_flag_sets_the_own_one(count, ranks, flagged, seed):
    _, routing = bound_for(count, ranks, 3, seed)
    rank = seed % ranks
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n - 4, ex.SENT_GRADIENTS, generator=generator) for n in routing.rooms]
    gradients = torch.zeros(routing.rooms[rank], GRADIENT)
    gradients[: len(parts[rank]), : ex.SENT_GRADIENTS] = parts[rank]
    returned = torch.cat([torch.cat([part, torch.zeros(4, ex.SENT_GRADIENTS)]) for part in parts])
    for source in range(ranks):
        mine = returned.split(routing.rooms)[source]
        sets = torch.tensor([int(source == flagged)], dtype=torch.int32)
        ex.flag_gradients(REFERENCE, sets, [len(mine)], -1, mine)
    zeros, hole = torch.zeros(1, dtype=torch.int64), Hole(0, len(gradients))
    out, expected = torch.empty(count, GRADIENT), torch.empty(count, GRADIENT)
    ex.sum_gradients(REFERENCE, routing, returned, rank, gradients, hole, out, zeros)
    ex.sum_gradients(
        REFERENCE, replace(routing, rooms=None), torch.cat(parts), rank, gradients, hole, expected, zeros.clone()
    )
    assert torch.equal(out, expected)
    assert int(routing.overflow) == int(flagged not in (-1, rank) and flagged < ranks)


def test_a_flag_is_written_for_every_other_rank_and_nothing_else_is(parity):
    rows = torch.full((9, ex.SENT_GRADIENTS), 0.5)
    for flag in (0, 1):
        ex.flag_gradients(REFERENCE, torch.tensor([flag], dtype=torch.int32), (2, 4, 3), 1, rows)
        assert rows[[1, 8], 0].tolist() == [flag, flag]
        rows[[1, 8], 0] = 0.5
        assert (rows == 0.5).all()


def test_rooms_want_splats_with_a_room(parity):
    view = parity.view(1)
    splats = op.project(REFERENCE, view.parameters, view.ids, view.camera, 3, Workspace())
    owners = torch.zeros(view.camera.tiles, dtype=torch.int32)
    with pytest.raises(ValueError, match="expected splats with a room, and a row or more for each of 2 ranks"):
        ex.route_splats(REFERENCE, splats, view.camera, owners, 2, Workspace(), rooms=(5, 5))


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
@pytest.mark.parametrize("spare", [-40, -1, 0, 1, 3000])
def test_compiled_rooms_are_the_definition(parity, compiled, ranks, spare):
    device = compiled.device
    view = parity.view(8, gaussians=3000, width=200, height=150)
    rows, ids = view.parameters.to(device), (view.ids % ex.MOST_ID).to(device)
    owners = (
        torch.arange(view.camera.tiles, dtype=torch.int32).mul_(ranks).div_(view.camera.tiles, rounding_mode="floor")
    )
    exact = op.project(compiled, rows, ids, view.camera, 3, Workspace(device))
    counted = ex.route_splats(compiled, exact, view.camera, owners.to(device), ranks, Workspace(device)).counts
    rooms = tuple(max(1, n + 1 + spare) for n in counted[:, ex.SENT_RECORDS].tolist())
    overflow, work = torch.zeros(1, dtype=torch.int32, device=device), Workspace(device)
    splats = op.project(compiled, rows, ids, view.camera, 3, work, Room(exact.count + 300, 0, overflow))
    ours = ex.route_splats(compiled, splats, view.camera, owners.to(device), ranks, work, rooms=rooms)
    assert torch.equal(ours.counts, counted)
    assert int(overflow) == int(spare < 0)
    overflow.zero_()
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
    mine = ex.take_arrivals(compiled, Workspace(device), "arrived", count)
    kept = ex.take_arrivals(REFERENCE, Workspace(), "arrived", count)
    ex.row_words(mine.records).zero_()
    kept.records.zero_()
    kept.ids.zero_()
    ex.keep_records(compiled, splats, ours, rank, hole, mine)
    ex.keep_records(REFERENCE, there, theirs, rank, hole, kept)
    drawn = kept.records[:, RECORD_DEPTH] == kept.records[:, RECORD_DEPTH]
    assert torch.equal(mine.records[:, RECORD_DEPTH].isnan().cpu(), ~drawn)
    assert torch.equal(mine.records.cpu()[drawn], kept.records[drawn])
    assert torch.equal(mine.ids.cpu()[drawn].long(), kept.ids[drawn])

    returned = torch.randn(count, ex.SENT_GRADIENTS, generator=torch.Generator().manual_seed(1))
    gradients = torch.randn(count, GRADIENT, generator=torch.Generator().manual_seed(2))
    padded = torch.zeros((count, GRADIENT_STRIDE), device=device)[:, :GRADIENT].copy_(gradients)
    for flag in (0, 1):
        own = torch.tensor([flag], dtype=torch.int32)
        rows_there = returned.to(device)
        ex.flag_gradients(compiled, own.to(device), rooms, rank, rows_there)
        expected = returned.clone()
        ex.flag_gradients(REFERENCE, own, rooms, rank, expected)
        assert torch.equal(rows_there.cpu(), expected)
        total = torch.empty((splats.count, GRADIENT_STRIDE), device=device)[:, :GRADIENT]
        zeros, by_definition = torch.zeros(1, dtype=torch.int64, device=device), torch.empty(splats.count, GRADIENT)
        overflow.zero_()
        ex.sum_gradients(compiled, ours, rows_there, rank, padded, hole, total, zeros)
        ex.sum_gradients(REFERENCE, theirs, expected, rank, gradients, hole, by_definition, zeros.cpu())
        live = slice(0, exact.count)
        # A row that lies beyond its room was never sent; the definition and the kernel leave out the same ones.
        assert torch.equal(total[live].cpu(), by_definition[live])
        assert int(overflow) == int(flag and ranks > 1)
