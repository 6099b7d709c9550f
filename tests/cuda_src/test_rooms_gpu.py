"""Compiled kernels given a room: the same splats, lists and images as with sizes that the host reads, or the flag."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.operators import Room, Splats
from cuda_src.workspace import Workspace

pytestmark = pytest.mark.gpu

PICTURES = ("colour", "transmittance", "depth", "stopped", "last", "stop_depth")


@pytest.fixture
def overflow(device) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)


def listed(kernels, view, device, work: Workspace, room: Room | None = None):
    """Splats and bins of a view."""
    splats = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, work, room)
    return splats, op.bin_splats(kernels, splats, view.camera, work, room=room)


def worn(parity, kernels, device) -> Workspace:
    """A workspace whose memory holds what another, larger view left."""
    work = Workspace(device)
    listed(kernels, parity.view(99, gaussians=9000, width=300, height=200), device, work)
    return work


@pytest.mark.parametrize("extra", [0, 1, 300, 70_000])
@pytest.mark.parametrize(("gaussians", "width", "height"), [(1, 17, 33), (40, 50, 40), (5000, 130, 70)])
def test_with_room_enough_everything_is_as_without(parity, kernels, device, overflow, gaussians, width, height, extra):
    view = parity.view(21, gaussians=gaussians, width=width, height=height, sizes=(0.5, 60.0))
    splats, bins = listed(kernels, view, device, Workspace(device))
    work, count, instances = worn(parity, kernels, device), splats.count, bins.instances
    own, lists = listed(kernels, view, device, work, Room(max(1, count + extra), max(1, instances + extra), overflow))
    assert own.live.tolist() == [count, 0, 0]
    assert lists.needed.tolist() == [count, 0, instances, 0]
    assert own.count == max(1, count + extra)
    for name in ("rows", "ids", "records"):
        assert torch.equal(getattr(own, name)[:count], getattr(splats, name)), name
    assert torch.equal(lists.starts, bins.starts)
    assert torch.equal(lists.tiles, bins.tiles)
    assert torch.equal(lists.splat[:instances], bins.splat)
    grad = torch.randn(*view.pixels, 3, generator=torch.Generator().manual_seed(2)).to(device)
    results = []
    for some, their, memory in ((splats, bins, Workspace(device)), (own, lists, work)):
        raster = op.raster_forward(kernels, some, their, view.camera, memory)
        partial = op.raster_backward(kernels, some, their, raster, view.camera, grad, memory)
        results.append(([getattr(raster, name) for name in PICTURES], partial[:count]))
    for name, exact, ours in zip(PICTURES, results[0][0], results[1][0], strict=True):
        assert torch.equal(exact, ours), name
    if count:
        parity.close(results[1][1], results[0][1], 1e-5)


def test_a_view_that_sees_nothing_has_empty_lists(parity, kernels, device, overflow):
    view = parity.view(3, gaussians=50)
    behind = view.parameters.clone()
    behind[:, layout.MEAN] += 1e6
    work = worn(parity, kernels, device)
    room = Room(100, 200, overflow)
    splats = op.project(kernels, behind.to(device), view.ids.to(device), view.camera, 3, work, room)
    bins = op.bin_splats(kernels, splats, view.camera, work, room=room)
    assert bins.needed.tolist() == [0, 0, 0, 0]
    assert not bins.starts.any()
    raster = op.raster_forward(kernels, splats, bins, view.camera, work)
    assert not raster.colour.any()
    assert (raster.transmittance == 1).all()


def test_no_gaussians_at_all_have_room(parity, kernels, device, overflow):
    view, room = parity.view(3).only([]), Room(64, 64, overflow)
    splats, bins = listed(kernels, view, device, worn(parity, kernels, device), room)
    assert splats.live.tolist() == [0, 0, 0]
    assert bins.needed.tolist() == [0, 0, 0, 0]
    assert not bins.starts.any()


@pytest.mark.parametrize("tiles", [[3], [0, 2, 5, 11], []])
def test_a_room_and_some_of_the_tiles(parity, kernels, device, overflow, tiles):
    view = parity.view(8, gaussians=300)
    splats, _ = listed(kernels, view, device, Workspace(device))
    some = torch.tensor(tiles, dtype=torch.int32, device=device)
    exact = op.bin_splats(kernels, splats, view.camera, Workspace(device), some)
    work, room = worn(parity, kernels, device), Room(splats.count + 9, exact.instances + 40, overflow)
    own, _ = listed(kernels, view, device, work, Room(splats.count + 9, 100_000, overflow))
    bins = op.bin_splats(kernels, own, view.camera, work, some, room=room)
    assert torch.equal(bins.starts, exact.starts)
    assert torch.equal(bins.splat[: exact.instances], exact.splat)
    assert int(overflow) == 0


@pytest.mark.parametrize("some", [True, False])
@pytest.mark.parametrize("there", [range(5, 90), range(1, 6100), range(2048, 4096), range(3000, 12_000)])
def test_lists_begun_with_splats_that_are_there_first_are_those_of_all_at_once(
    parity, kernels, device, overflow, there, some
):
    view = parity.view(17, gaussians=12_000)
    splats, exact = listed(kernels, view, device, Workspace(device))
    there = range(there.start, min(there.stop, splats.count))
    tiles = torch.tensor([1, 2, 7], dtype=torch.int32, device=device) if some else None
    room = Room(splats.count, exact.instances, overflow)
    work = worn(parity, kernels, device)
    own, _ = listed(kernels, view, device, work, room)
    at_once = op.bin_splats(kernels, own, view.camera, Workspace(device), tiles, room=room)
    everything = own.records.clone()
    for _ in range(3):  # The third time both are graphs.
        own.records[: there.start] = own.records[there.stop :] = torch.nan
        op.begin_bins(kernels, own, view.camera, work, tiles, None, room, there)
        own.records.copy_(everything)
        bins = op.bin_splats(kernels, own, view.camera, work, tiles, room=room, begun=there)
        assert torch.equal(bins.starts, at_once.starts)
        used = int(bins.starts[-1])
        assert used > 100
        assert torch.equal(bins.splat[:used], at_once.splat[:used])
        assert torch.equal(bins.needed, at_once.needed)
    assert int(overflow) == 0


@pytest.mark.parametrize("short_of", ["splats", "instances", "both"])
@pytest.mark.parametrize("missing", [1, 200])
def test_too_little_room_sets_the_flag_stays_within_memory_and_moves_nothing(
    parity, kernels, device, overflow, short_of, missing
):
    view = parity.view(30, gaussians=3000, width=130, height=70)
    splats, bins = listed(kernels, view, device, Workspace(device))
    room = Room(
        splats.count - (missing if short_of != "instances" else 0),
        bins.instances - (missing if short_of != "splats" else 0),
        overflow,
    )
    work = worn(parity, kernels, device)
    own, lists = listed(kernels, view, device, work, room)
    assert lists.needed[[0, 3]].tolist() == [splats.count, 1]
    if short_of == "instances":
        assert int(lists.needed[2]) == bins.instances
    assert (lists.starts.diff() >= 0).all()
    assert int(lists.starts[-1]) <= room.instances
    used = lists.splat[: int(lists.starts[-1])]
    assert ((used >= 0) & (used < room.splats)).all()
    raster = op.raster_forward(kernels, own, lists, view.camera, work)
    assert raster.colour.isfinite().all()
    partial = op.raster_backward(kernels, own, lists, raster, view.camera, torch.ones_like(raster.colour), work)
    tables = [view.parameters.to(device), torch.zeros_like(view.parameters, device=device)]
    tables.append(tables[1].clone())
    before = [table.clone() for table in tables]
    rates = torch.full((layout.PARAMETERS,), 1e-2)
    op.project_backward_adam(kernels, *tables, [op.Seen(own, view.camera, partial)], 3, work, op.Pace(rates, 1))
    assert all(torch.equal(a, b) for a, b in zip(tables, before, strict=True))

    enough = Room(splats.count, bins.instances, overflow)
    again, _ = listed(kernels, view, device, work, enough)
    assert int(overflow) == 1, "only who looked at the flag clears it"
    op.project_backward_adam(kernels, *tables, [op.Seen(again, view.camera, partial)], 3, work, op.Pace(rates, 1))
    assert torch.equal(tables[0], before[0])
    overflow.zero_()
    op.project_backward_adam(kernels, *tables, [op.Seen(again, view.camera, partial)], 3, work, op.Pace(rates, 1))
    assert not torch.equal(tables[0], before[0])


def wall(count: int, device: torch.device, in_order: bool) -> Splats:
    """Splats of one depth in one tile, with their ids in the order of rows or not."""
    records = torch.zeros(count, layout.RECORD_STRIDE)
    records[:, : layout.RECORD] = torch.tensor([8.0, 8.0, 0.05, 0.0, 0.05, 0.5, 1.0, 1.0, 1.0, 2.0, 14.0])
    ids = torch.arange(count) if in_order else torch.arange(count).flip(0)
    return Splats(torch.arange(count).to(device), ids.to(device), records.to(device)[:, : layout.RECORD])


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("run", [32, 33, 4096, 4097, 9000])
def test_runs_of_equal_depth_of_any_length_are_in_the_order_of_ids_within_a_room(
    kernels, device, overflow, run, in_order
):
    splats = wall(run, device, in_order)
    camera = Camera(16, 16, 20.0, 20.0, 8.0, 8.0, np.eye(4))
    live = torch.tensor([run, 0], device=device)
    given = Splats(splats.rows, splats.ids, splats.records, live, overflow)
    bins = op.bin_splats(kernels, given, camera, Workspace(device), room=Room(run, run + 7, overflow))
    assert bins.needed.tolist() == [run, 0, run, 0]
    assert given.ids[bins.splat[:run].long()].tolist() == sorted(given.ids.tolist())


def test_splats_whose_colour_is_not_finite_are_counted_and_never_listed_nor_moved(parity, kernels, device, overflow):
    view = parity.view(5, gaussians=200)
    splats, bins = listed(kernels, view, device, Workspace(device))
    bad = splats.rows[::7].cpu()
    view.parameters[bad, layout.SH_DC.start] = float("inf")
    exact, exact_bins = listed(kernels, view, device, Workspace(device))
    work = worn(parity, kernels, device)
    own, lists = listed(kernels, view, device, work, Room(splats.count + 20, bins.instances + 20, overflow))
    assert lists.needed.tolist() == [splats.count, len(bad), exact_bins.instances, 0]
    assert torch.equal(lists.starts, exact_bins.starts)
    instances = exact_bins.instances
    assert torch.equal(own.rows[lists.splat[:instances].long()], exact.rows[exact_bins.splat.long()])
    tables = [view.parameters.to(device), torch.ones_like(view.parameters, device=device)]
    tables.append(tables[1].clone())
    gradients = torch.ones(own.count, layout.GRADIENT_STRIDE, device=device)[:, : layout.GRADIENT]
    rates = torch.full((layout.PARAMETERS,), 1e-2)
    op.project_backward_adam(kernels, *tables, [op.Seen(own, view.camera, gradients)], 3, work, op.Pace(rates, 1))
    assert (tables[1][bad.to(device)] == 1).all()
    assert (tables[1][exact.rows] != 1).any(dim=1).all()


def test_a_million_splats_are_listed_in_the_right_order_each_time(kernels, device, overflow):
    """A million splats of one tile each, spans of a hundred tiles among them."""
    count, generator = 1_000_000, torch.Generator().manual_seed(0)
    records = torch.zeros(count, layout.RECORD_STRIDE)
    records[:, 0] = 640 * torch.rand(count, generator=generator)
    records[:, 1] = 480 * torch.rand(count, generator=generator)
    records[:, layout.RECORD_CONIC] = torch.tensor([2.0, 0.0, 2.0])
    records[::5000, layout.RECORD_CONIC] = torch.tensor([2e-4, 0.0, 2e-4])
    records[:, layout.RECORD_OPACITY] = 0.5
    records[:, layout.RECORD_DEPTH] = 1 + torch.rand(count, generator=generator)
    records[:, layout.RECORD_RADIUS] = 4.0
    records[::5000, layout.RECORD_RADIUS] = 220.0
    ids = torch.arange(count, device=device)
    splats = Splats(ids, ids, records.to(device)[:, : layout.RECORD])
    camera = Camera(640, 480, 500.0, 500.0, 320.0, 240.0, np.eye(4))
    exact = op.bin_splats(kernels, splats, camera, Workspace(device))
    tile_of = torch.repeat_interleave(exact.tiles.long(), exact.starts.diff())
    depth = splats.records[exact.splat.long(), layout.RECORD_DEPTH].double()
    key = tile_of * 4.0 + depth
    assert (key.diff() >= 0).all()
    assert int(exact.splat_starts[-1]) == exact.instances == int(exact.starts[-1])
    assert torch.equal(torch.bincount(exact.splat, minlength=count), exact.splat_starts.diff())
    assert int(exact.splat_starts.diff().max()) > 100
    live = torch.tensor([count, 0], device=device)
    room = Room(count, exact.instances + 12_345, overflow)
    given = Splats(splats.rows, splats.ids, splats.records, live, overflow)
    for _ in range(5):
        bins = op.bin_splats(kernels, given, camera, Workspace(device), room=room)
        assert torch.equal(bins.starts, exact.starts)
        assert torch.equal(bins.splat[: exact.instances], exact.splat)
    assert int(overflow) == 0
