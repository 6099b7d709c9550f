"""Routing and packing of records: exactly what the tile lists hold, every bit where it should arrive, sums in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import exchange as ex
from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.exchange import Hole, Routing
from cuda_src.layout import GRADIENT, GRADIENT_STRIDE, RECORD, RECORD_DEPTH, RECORD_OPACITY
from cuda_src.operators import KernelSet, Room, Splats
from cuda_src.reference import exchange as by_definition
from cuda_src.workspace import Workspace

ON_CPU = ["reference", "portable"]


def cut_evenly(camera: Camera, ranks: int, seed: int) -> torch.Tensor:
    """Rank of each tile: contiguous segments, some of them empty."""
    cuts = torch.randint(0, camera.tiles + 1, (ranks - 1,), generator=torch.Generator().manual_seed(seed)).sort().values
    return torch.searchsorted(cuts, torch.arange(camera.tiles), right=True).to(torch.int32)


def sets_from_lists(kernels: KernelSet, splats: Splats, camera: Camera, owners: torch.Tensor, limit=None):
    """By rank: the splats in the lists of its tiles, and the instances there."""
    bins = op.bin_splats(kernels, splats, camera, Workspace(splats.records.device), depth_limit=limit)
    found: dict[int, set[int]] = {}
    instances: dict[int, int] = {}
    starts, listed = bins.starts.tolist(), bins.splat.tolist()
    for tile, rank in enumerate(owners.tolist()):
        own = listed[starts[tile] : starts[tile + 1]]
        found.setdefault(rank, set()).update(own)
        instances[rank] = instances.get(rank, 0) + len(own)
    return found, instances


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 64])
def test_a_splat_goes_to_the_ranks_whose_lists_hold_it(parity, backend, footprint, ranks):
    kernels = replace(parity.kernels(backend), footprint=footprint)
    view = parity.view(4, gaussians=60, width=130, height=90)
    splats = op.project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    owners = cut_evenly(view.camera, ranks, seed=ranks)
    routing = ex.route_splats(kernels, splats, view.camera, owners, ranks, Workspace())
    found, instances = sets_from_lists(kernels, splats, view.camera, owners)
    for rank in range(ranks):
        assert set(routing.splats_to(rank).tolist()) == found.get(rank, set())
        records, own_instances, seen, undrawn, overflow = routing.counts[rank].tolist()
        assert (records, own_instances) == (len(found.get(rank, ())), instances.get(rank, 0))
        assert (seen, undrawn, overflow) == (splats.count, 0, 0)


@pytest.mark.parametrize("backend", ON_CPU)
def test_what_is_hidden_or_too_faint_goes_nowhere(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(5, gaussians=80, width=80, height=60)
    splats = op.project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    owners, limit = cut_evenly(view.camera, 3, 1), torch.full((view.camera.tiles,), 2.5)
    hidden = ex.route_splats(kernels, splats, view.camera, owners, 3, Workspace(), limit)
    assert torch.equal(hidden.masks != 0, splats.records[:, RECORD_DEPTH] <= 2.5)
    faint = ex.route_splats(kernels, splats, view.camera, owners, 3, Workspace(), min_opacity=0.5)
    assert torch.equal(faint.masks != 0, splats.records[:, RECORD_OPACITY] >= 0.5)
    assert faint.counts[0, ex.OWN_SPLATS] == splats.count


def test_more_ranks_than_bits_are_refused(parity):
    kernels, view = parity.kernels("reference"), parity.view(1)
    splats = Splats(view.ids, view.ids, torch.zeros(len(view.ids), RECORD))
    with pytest.raises(ValueError, match="expected at most 64 ranks, got 65"):
        ex.route_splats(kernels, splats, view.camera, torch.zeros(1), 65, Workspace())


def noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Every bit pattern that float32 has."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int32).view(torch.float32)


def random_splats(count: int, ranks: int, seed: int) -> tuple[Splats, Routing]:
    """Splats of any bits, each bound for any ranks; for a rank or two, none."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    sent = torch.rand(count, ranks, generator=generator) < torch.rand(ranks, generator=generator)
    counts = torch.zeros(ranks, ex.ROUTE_COUNTS, dtype=torch.int64)
    counts[:, ex.SENT_RECORDS] = sent.sum(0)
    masks = (sent.long() << torch.arange(ranks)).sum(1)
    return Splats(ids, ids, noise((count, RECORD), seed + 1)), Routing(masks, counts)


def bits(real: torch.Tensor) -> torch.Tensor:
    return real.contiguous().view(torch.int32)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 60), ranks=st.integers(1, 5), spare=st.sampled_from([0, 3]), seed=st.integers(0, 999))
def test_records_arrive_bit_by_bit_by_source_with_their_ids(count, ranks, spare, seed):
    kernels = KernelSet("reference")
    width = ex.wire_width(kernels) + spare
    sides = [random_splats(count, ranks, seed + 7 * source) for source in range(ranks)]
    sent = torch.stack([routing.counts[:, ex.SENT_RECORDS] for _, routing in sides])
    wires = []
    for source, (splats, routing) in enumerate(sides):
        wires.append(torch.full((int(sent[source].sum()), width), 0.5))
        ex.pack_records(kernels, splats, routing, source, wires[-1])
    for rank in range(ranks):
        came = sent[:, rank].tolist()
        parts = [wire.split(sent[source].tolist())[rank] for source, wire in enumerate(wires)]
        assert (parts[rank] == 0.5).all()
        hole = Hole(sum(came[:rank]), came[rank])
        arrived = ex.take_arrivals(kernels, Workspace(), "records", sum(came))
        ex.unpack_records(kernels, torch.cat(parts), hole, arrived)
        ex.keep_records(kernels, *sides[rank], rank, hole, arrived)
        rows = [routing.splats_to(rank) for _, routing in sides]
        expected = [(splats.records[own], splats.ids[own]) for (splats, _), own in zip(sides, rows, strict=True)]
        records, ids = map(torch.cat, zip(*expected, strict=True))
        assert torch.equal(bits(arrived.records), bits(records))
        assert torch.equal(arrived.ids, ids)


@pytest.mark.parametrize("width", [12, 14])
def test_ids_travel_in_float64_too_and_a_short_buffer_is_filled_as_far_as_it_reaches(width):
    kernels = KernelSet("reference", precision="float64")
    splats, routing = random_splats(40, 2, 3)
    splats = replace(splats, records=splats.records.nan_to_num(0.0).double())
    going = routing.splats_to(1)
    wire = torch.zeros(len(going) - 2, width, dtype=torch.float64)
    ex.pack_records(kernels, splats, replace(routing, masks=routing.masks & 2), 0, wire)
    arrived = ex.take_arrivals(kernels, Workspace(), "records", len(wire))
    ex.unpack_records(kernels, wire, ex.NO_HOLE, arrived)
    assert torch.equal(arrived.ids, splats.ids[going[:-2]])
    assert torch.equal(arrived.records, splats.records[going[:-2]])


def test_ids_that_a_compiled_record_has_no_room_for_are_refused():
    compiled, ids = KernelSet("compiled"), torch.tensor([5, ex.MOST_ID, 0])
    ex.check_ids(compiled, ids)
    ex.check_ids(compiled, ids[:0])
    for wrong in (ex.MOST_ID + 1, 2**40, -1):
        with pytest.raises(ValueError, match=f"Gaussian id {wrong}: .* with ids from 0 to 2147483647"):
            ex.check_ids(compiled, torch.cat([ids, torch.tensor([wrong])]))
        ex.check_ids(KernelSet("portable"), torch.tensor([wrong]))


def returned_gradients(routing: Routing, rank: int, seed: int):
    """Random gradients in the order of sending; those of the rank's own also in a hole among what arrived."""
    generator = torch.Generator().manual_seed(seed)
    sent = routing.counts[:, ex.SENT_RECORDS].tolist()
    returned = torch.randn(sum(sent), ex.SENT_GRADIENTS, generator=generator)
    returned[torch.rand(len(returned), generator=generator) < 0.4] = 0
    hole = Hole(5, sent[rank])
    gradients = torch.randn(hole.first + hole.count + 9, GRADIENT, generator=generator)
    own = slice(sum(sent[:rank]), sum(sent[: rank + 1]))
    gradients[hole.first : hole.first + hole.count, : ex.SENT_GRADIENTS] = returned[own]
    return returned, gradients, hole, own


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 60), ranks=st.integers(1, 5), seed=st.integers(0, 999))
def test_gradients_sum_at_their_splat_rank_after_rank_wherever_the_own_ones_lie(count, ranks, seed):
    kernels, rank = KernelSet("reference"), seed % ranks
    _, routing = random_splats(count, ranks, seed)
    returned, gradients, hole, own = returned_gradients(routing, rank, seed)
    expected = torch.zeros(count, GRADIENT)
    for number, part in enumerate(returned.split(routing.counts[:, ex.SENT_RECORDS].tolist())):
        expected[routing.splats_to(number), : ex.SENT_GRADIENTS] += part
    holed = returned.clone()
    holed[own] = torch.nan
    out, zeros = torch.full((count, GRADIENT), torch.nan), torch.zeros(1, dtype=torch.int64)
    ex.sum_gradients(kernels, routing, holed, rank, gradients, hole, out, zeros)
    assert torch.equal(out, expected)
    assert int(zeros) == int((returned[own] == 0).all(1).sum())
    ex.sum_gradients(kernels, routing, returned, rank, None, ex.NO_HOLE, out.fill_(torch.nan), zeros)
    assert torch.equal(out, expected)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 40), first=st.integers(0, 40), length=st.integers(0, 40), seed=st.integers(0, 999))
def test_gradients_that_travel_leave_out_the_hole_and_count_zeros(count, first, length, seed):
    hole = Hole(min(first, count), min(length, count - min(first, count)))
    gradients = torch.randn(count, GRADIENT, generator=torch.Generator().manual_seed(seed))
    gradients[::3, : ex.SENT_GRADIENTS] = 0
    out, zeros = torch.full((count, ex.SENT_GRADIENTS), 0.5), torch.ones(1, dtype=torch.int64)
    ex.pack_gradients(KernelSet("reference"), gradients, hole, out, zeros)
    others = torch.ones(count, dtype=torch.bool)
    others[hole.first : hole.first + hole.count] = False
    assert torch.equal(out[others], gradients[others][:, : ex.SENT_GRADIENTS])
    assert (out[~others] == 0.5).all()
    assert int(zeros) == 1 + int(others[::3].sum())


@pytest.fixture
def compiled() -> KernelSet:
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    return KernelSet("compiled", torch.device("cuda", 0))


VIEWS = [(1, 17, 33), (40, 50, 40), (257, 130, 70), (5000, 330, 250)]


@pytest.mark.gpu
@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
@pytest.mark.parametrize(("gaussians", "width", "height"), VIEWS)
def test_compiled_routes_are_those_of_its_own_lists(parity, compiled, footprint, ranks, gaussians, width, height):
    kernels, device = replace(compiled, footprint=footprint), compiled.device
    view = parity.view(21, gaussians=gaussians, width=width, height=height, sizes=(0.5, 90.0))
    splats = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, Workspace(device))
    owners = cut_evenly(view.camera, ranks, seed=ranks).to(device)
    limit = torch.rand(view.camera.tiles, generator=torch.Generator().manual_seed(1)).to(device) * 8
    for depth_limit, least in ((None, 0.0), (limit, 0.0), (limit, 0.4)):
        work = Workspace(device), Workspace(device)
        ours = ex.route_splats(kernels, splats, view.camera, owners, ranks, work[0], depth_limit, least)
        exact = by_definition.route_splats(
            kernels, splats, view.camera, owners, ranks, work[1], depth_limit, least, None
        )
        assert torch.equal(ours.masks, exact.masks)
        assert torch.equal(ours.counts, exact.counts)


@pytest.mark.gpu
def test_compiled_routes_of_a_room_are_those_of_the_splats_in_use(parity, compiled):
    device = compiled.device
    view = parity.view(8, gaussians=3000, width=200, height=150)
    rows, ids, owners = view.parameters.to(device), view.ids.to(device), cut_evenly(view.camera, 3, 5).to(device)
    exact = op.project(compiled, rows, ids, view.camera, 3, Workspace(device))
    expected = ex.route_splats(compiled, exact, view.camera, owners, 3, Workspace(device))
    for size in (exact.count + 700, exact.count, max(1, exact.count - 100)):
        overflow, work = torch.zeros(1, dtype=torch.int32, device=device), Workspace(device)
        splats = op.project(compiled, rows, ids, view.camera, 3, work, Room(size, 0, overflow))
        routing = ex.route_splats(compiled, splats, view.camera, owners, 3, work)
        held = min(size, exact.count)
        assert torch.equal(routing.masks[:held], expected.masks[:held])
        assert (routing.masks[held:] == 0).all()
        assert routing.counts[:, ex.OWN_SPLATS].tolist() == [exact.count] * 3
        assert routing.counts[:, ex.OVERFLOWED].tolist() == [int(size < exact.count)] * 3
        if size >= exact.count:
            assert torch.equal(routing.counts, expected.counts)


@pytest.mark.gpu
def test_compiled_routes_of_nothing_are_empty(compiled):
    device = compiled.device
    none = torch.empty(0, dtype=torch.int64, device=device)
    camera = Camera(50, 40, 40.0, 40.0, 25.0, 20.0, torch.eye(4).numpy())
    splats = Splats(none, none, ex.take_records(compiled, Workspace(device), "none", 0))
    owners = torch.zeros(camera.tiles, dtype=torch.int32, device=device)
    routing = ex.route_splats(compiled, splats, camera, owners, 2, Workspace(device))
    assert (routing.counts == 0).all()
    out, zeros = torch.empty((0, GRADIENT), device=device), torch.zeros(1, dtype=torch.int64, device=device)
    returned = torch.empty((0, ex.SENT_GRADIENTS), device=device)
    arrived = ex.take_arrivals(compiled, Workspace(device), "arrived", 0)
    ex.pack_records(compiled, splats, routing, 0, torch.empty((7, 12), device=device))
    ex.keep_records(compiled, splats, routing, 0, Hole(0, 0), arrived)
    ex.unpack_records(compiled, torch.empty((0, 16), device=device), Hole(0, 0), arrived)
    ex.pack_gradients(compiled, out, Hole(0, 0), returned, zeros)
    ex.sum_gradients(compiled, routing, returned, 0, out, Hole(0, 0), out, zeros)
    torch.cuda.synchronize()


def on_gpu(splats: Splats, routing: Routing, kernels: KernelSet) -> tuple[Splats, Routing]:
    """The same, as compiled kernels leave it: padded records, and the sums over blocks that lists are found by."""
    device, count = kernels.device, splats.count
    records = ex.take_records(kernels, Workspace(device), "splats", count).copy_(splats.records)
    blocks = -(-count // 256)
    flags = torch.zeros(routing.ranks, blocks * 256, dtype=torch.int64)
    flags[:, :count] = (routing.masks[None] >> torch.arange(routing.ranks)[:, None]) & 1
    ends = flags.view(-1, 256).sum(1).cumsum(0).view(routing.ranks, blocks)
    ids = splats.ids.to(device)
    return Splats(ids, ids, records), Routing(routing.masks.to(device), routing.counts.to(device), ends.to(device))


def with_short_ids(splats: Splats, seed: int) -> Splats:
    """The same with distinct ids of 31 bits, the largest among them, in no order."""
    numbers = torch.randperm(splats.count, generator=torch.Generator().manual_seed(seed))
    ids = ex.MOST_ID - numbers * (ex.MOST_ID // splats.count)
    return replace(splats, rows=ids, ids=ids)


def rows_with_ids(splats: Splats, rows: torch.Tensor) -> torch.Tensor:
    """Records of those splats, each with its id as the twelfth word, as bits: [n, 12] int32."""
    return torch.cat([bits(splats.records[rows]), splats.ids[rows, None].int()], dim=1)


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 3, 33])
@pytest.mark.parametrize("count", [1, 31, 32, 255, 256, 257, 5000])
def test_compiled_rows_are_records_and_ids_bit_by_bit_wherever_they_are_put(compiled, count, ranks):
    device = compiled.device
    splats, routing = random_splats(count, ranks, count + ranks)
    splats = with_short_ids(splats, count)
    there = on_gpu(splats, routing, compiled)
    sent, rank = routing.counts[:, ex.SENT_RECORDS].tolist(), count % ranks
    own = slice(sum(sent[:rank]), sum(sent[: rank + 1]))
    rows = rows_with_ids(splats, torch.cat([routing.splats_to(other) for other in range(ranks)]))
    for width, short in ((12, 0), (16, 0), (12, 5)):
        expected = bits(torch.full((max(0, sum(sent) - short), width), 0.5))
        ours = expected.to(device).view(torch.float32)
        kept = expected[own].clone()
        expected[:, :12] = rows[: len(expected)]
        expected[own] = kept
        ex.pack_records(compiled, *there, rank, ours)
        assert torch.equal(bits(ours.cpu()), expected), (width, short)
    hole = Hole(11, sent[rank])
    wire = noise((hole.first + hole.count + 300, 16), count)
    arrived = ex.take_arrivals(compiled, Workspace(device), "arrived", len(wire))
    ex.unpack_records(compiled, wire.to(device), hole, arrived)
    ex.keep_records(compiled, *there, rank, hole, arrived)
    expected = bits(wire)[:, :12].clone()
    expected[hole.first : hole.first + hole.count] = rows[own]
    assert torch.equal(bits(ex.row_words(arrived.records).cpu()), expected)
    assert torch.equal(arrived.ids.cpu(), expected[:, 11])


@pytest.mark.gpu
@pytest.mark.parametrize("equal", [2, 40, 700])
def test_ids_in_arrived_records_put_equal_depths_in_order(parity, compiled, equal):
    """In runs of so many, of lists that a block sorts and of longer ones; as with a table of ids."""
    device, count = compiled.device, 6000
    camera = parity.view(1, gaussians=1, width=40, height=30).camera
    generator = torch.Generator().manual_seed(equal)
    splats, records = with_short_ids(random_splats(count, 1, 1)[0], 2), torch.zeros(count, RECORD)
    records[:, layout.RECORD_MEAN2D] = torch.rand(count, 2, generator=generator) * torch.tensor([40.0, 30.0])
    records[:, layout.RECORD_CONIC] = torch.tensor([0.05, 0.0, 0.05])
    records[:, layout.RECORD_OPACITY], records[:, layout.RECORD_RADIUS] = 0.9, 14.0
    records[:, RECORD_DEPTH] = 1.0 + torch.randperm(count, generator=generator).div(equal, rounding_mode="floor")
    splats = replace(splats, records=records)
    arrived = ex.take_arrivals(compiled, Workspace(device), "arrived", count)
    ex.row_words(arrived.records).copy_(rows_with_ids(splats, torch.arange(count)).view(torch.float32))
    beside = Splats(splats.rows.to(device), splats.ids.to(device), arrived.records)
    ours = op.bin_splats(compiled, arrived, camera, Workspace(device))
    theirs = op.bin_splats(compiled, beside, camera, Workspace(device))
    assert ours.instances > 2 * count
    assert torch.equal(ours.starts, theirs.starts)
    assert torch.equal(ours.splat, theirs.splat)
    listed, tile = ours.splat.cpu().long(), torch.arange(camera.tiles).repeat_interleave(ours.starts.cpu().diff())
    order = torch.arange(len(listed))
    for key in (splats.ids[listed], records[listed, RECORD_DEPTH], tile):
        order = order[torch.argsort(key[order], stable=True)]
    assert torch.equal(order, torch.arange(len(listed)))
    # Records that were copied from where they arrived leave their ids behind, and these still count.
    copied = replace(arrived, records=arrived.records.contiguous())
    assert torch.equal(op.bin_splats(compiled, copied, camera, Workspace(device)).splat, ours.splat)


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 3, 33])
@pytest.mark.parametrize("count", [1, 31, 256, 257, 5000])
def test_compiled_sums_are_the_definition_bit_by_bit(compiled, count, ranks):
    reference, device = KernelSet("reference"), compiled.device
    splats, routing = random_splats(count, ranks, count + ranks)
    _, there = on_gpu(splats, routing, compiled)
    rank = count % ranks
    returned, gradients, hole, own = returned_gradients(routing, rank, count)
    padded = torch.full((len(gradients), GRADIENT_STRIDE), torch.nan, device=device)[:, :GRADIENT].copy_(gradients)
    packed, expected = (torch.full((len(gradients), ex.SENT_GRADIENTS), 0.5) for _ in range(2))
    zeros, their_zeros = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int64)
    packed = packed.to(device)
    ex.pack_gradients(compiled, padded, hole, packed, zeros)
    ex.pack_gradients(reference, gradients, hole, expected, their_zeros)
    assert torch.equal(packed.cpu(), expected)
    total = torch.empty((count, GRADIENT))
    ours = torch.empty((count, GRADIENT_STRIDE), device=device)[:, :GRADIENT]
    holed = returned.clone()
    holed[own] = torch.nan
    for rows, where in ((holed, gradients), (returned, None)):
        there_rows = rows.to(device)
        ex.sum_gradients(reference, routing, rows, rank, where, hole, total, their_zeros)
        ex.sum_gradients(
            compiled, there, there_rows, rank, None if where is None else padded, hole, ours.fill_(torch.nan), zeros
        )
        assert torch.equal(ours.cpu(), total)
    assert int(zeros) == int(their_zeros)


@pytest.mark.gpu
def test_rows_that_kernels_cannot_read_are_refused(compiled):
    splats, routing = random_splats(40, 2, 3)
    there, on_device = on_gpu(splats, routing, compiled)
    dense = replace(there, records=there.records.contiguous())
    with pytest.raises(ValueError, match="expected float32 rows 12 apart on a GPU"):
        ex.pack_records(compiled, dense, on_device, 0, torch.empty((40, 12), device=compiled.device))
    for width in (8, 13):
        wire = torch.empty((40, width), device=compiled.device)
        with pytest.raises(ValueError, match=f"expected 12 numbers or more, in words of 16 bytes, got {width}"):
            ex.pack_records(compiled, there, on_device, 0, wire)
