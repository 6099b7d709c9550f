"""What only the compiled back end does, on a GPU: room that grows, long ties and lists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace

pytestmark = pytest.mark.gpu


def test_a_view_with_more_splats_than_there_was_room_for_is_whole(parity, kernels, device):
    view, work = parity.view(5, gaussians=2000), Workspace(device)
    parameters, ids = view.parameters.to(device), view.ids.to(device)
    few = op.project(kernels, parameters[:9], ids[:9], view.camera, 3, work)
    assert few.count < 9
    room = work.capacity("project.rows", torch.int64)
    grown = op.project(kernels, parameters, ids, view.camera, 3, work)
    assert grown.count > max(room, 2000 // 8)
    fresh = op.project(kernels, parameters, ids, view.camera, 3, Workspace(device))
    assert torch.equal(grown.rows, fresh.rows)
    assert torch.equal(grown.records, fresh.records)


def test_project_lets_go_of_its_first_splats_before_it_asks_for_room_for_more(parity, kernels, device):
    view, work = parity.view(5, gaussians=20_000), Workspace(device)
    parameters, ids = view.parameters.to(device), view.ids.to(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    splats = op.project(kernels, parameters, ids, view.camera, 3, work)
    assert splats.count > 2 * 20_000 // 8
    # Buffers are rounded up to 512 B each.
    assert torch.cuda.max_memory_allocated(device) - before < work.peak_bytes + 16_384


def test_the_second_visit_of_a_view_allocates_nothing(parity, kernels, device):
    view, work = parity.view(6, gaussians=500), Workspace(device)
    parameters, ids = view.parameters.to(device), view.ids.to(device)
    target = torch.zeros((*view.pixels, 3), dtype=torch.uint8, device=device)

    def step() -> None:
        splats = op.project(kernels, parameters, ids, view.camera, 3, work)
        bins = op.bin_splats(kernels, splats, view.camera, work)
        raster = op.raster_forward(kernels, splats, bins, view.camera, work)
        loss = op.l1_ssim(kernels, raster.colour, target, work)
        partial = op.raster_backward(kernels, splats, bins, raster, view.camera, loss.gradient, work)
        op.project_backward(kernels, parameters, splats, view.camera, 3, partial, work)

    step()
    held, work_bytes = torch.cuda.memory_stats(device)["allocation.all.allocated"], work.bytes
    step()
    assert torch.cuda.memory_stats(device)["allocation.all.allocated"] == held
    assert work.bytes == work_bytes


@pytest.mark.parametrize("run", [2, 31, 32, 33, 5000])
def test_runs_of_equal_depth_of_any_length_are_in_the_order_of_ids(kernels, device, run):
    generator = torch.Generator().manual_seed(run)
    count = 3 * run + 5
    records = torch.zeros(count, layout.RECORD)
    records[:, : layout.RECORD_DEPTH] = torch.tensor([8.0, 8.0, 0.05, 0.0, 0.05, 0.5, 1.0, 1.0, 1.0])
    records[:, layout.RECORD_DEPTH] = torch.arange(count).div(run, rounding_mode="floor").float() + 1
    records[:, layout.RECORD_RADIUS] = 14.0
    ids = (torch.randperm(count, generator=generator) - count // 2) * (1 << 33)  # Both halves of an id, both signs.
    order = torch.randperm(count, generator=generator)
    splats = Splats(torch.arange(count).to(device), ids[order].to(device), records[order].to(device))
    camera = Camera(16, 16, 20.0, 20.0, 8.0, 8.0, np.eye(4))
    bins = op.bin_splats(kernels, splats, camera, Workspace(device))
    listed = bins.splat.long()
    keys = list(zip(splats.records[listed, layout.RECORD_DEPTH].tolist(), splats.ids[listed].tolist(), strict=True))
    assert len(keys) == count
    assert keys == sorted(keys)


@pytest.mark.parametrize("with_room", [False, True])
def test_ids_that_stay_in_their_table_break_ties_as_copied_ones_do(parity, kernels, device, with_room):
    view, lists = parity.view(7, gaussians=3000, sizes=(0.5, 20.0)), []
    parameters, ids = view.parameters.to(device), view.ids.to(device)
    room = op.Room(3000, 60_000, torch.zeros(1, dtype=torch.int32, device=device)) if with_room else None
    for by_row in (False, True):
        work = Workspace(device)
        splats = op.project(kernels, parameters, ids, view.camera, 3, work, room, ids_by_row=by_row)
        splats.records[:, layout.RECORD_DEPTH] = 2.0
        bins = op.bin_splats(kernels, splats, view.camera, work, room=room)
        lists.append(bins.splat[: int(bins.starts[-1])])
        assert bool(work.capacity("project.ids", torch.int64)) != by_row
    assert len(lists[0]) > 3000
    assert torch.equal(*lists)


def test_instances_of_a_wide_view_are_those_of_the_reference(parity, kernels, device):
    """Spans of one tile, of several and of hundreds, which a lane and a warp walk in their own ways."""
    view = parity.view(9, gaussians=400, width=500, height=300, sizes=(0.5, 200.0))
    splats = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, Workspace(device))
    splats = Splats(splats.rows.cpu(), splats.ids.cpu(), splats.records.cpu())
    clear = parity.away_from_edges(kernels, splats, view.camera)
    exact = op.bin_splats(parity.oracle(kernels), parity.splats64(clear), view.camera, Workspace())
    there = Splats(*(t.to(device) for t in (clear.rows, clear.ids, clear.records)))
    ours = op.bin_splats(kernels, there, view.camera, Workspace(device))
    assert exact.instances > 5000
    for name in ("tiles", "starts", "splat", "splat_starts"):
        assert torch.equal(getattr(ours, name).cpu(), getattr(exact, name)), name


@pytest.mark.parametrize("footprint", ["ellipse", "square"])
def test_spans_of_thousands_of_tiles_are_culled_as_by_the_reference(parity, kernels, device, footprint):
    """Needles and plates, most of which pass the image: as a lane decides by few tests, and else the warp."""
    kernels = replace(kernels, footprint=footprint)
    view = parity.view(12, gaussians=600, width=700, height=500, sizes=(20.0, 900.0))
    view.parameters[::2, layout.LOG_SCALE.start + 1] -= 5.0
    ours = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, Workspace(device))
    exact = op.project(parity.oracle(kernels), view.parameters.double(), view.ids, view.camera, 3, Workspace())
    clear = parity.clear_rows(kernels, view, 3)
    mine, theirs = ours.rows.cpu(), exact.rows
    assert mine[clear[mine]].tolist() == theirs[clear[theirs]].tolist()
    culled = torch.ones(600, dtype=torch.bool).index_fill_(0, theirs, False)
    assert (clear & culled).sum() > 40
    assert clear[theirs].sum() > 100


def test_a_view_of_more_tiles_than_a_block_counts_in_shared_memory_is_binned_like_any_other(kernels, device):
    generator, count = torch.Generator().manual_seed(4), 60
    records = torch.zeros(count, layout.RECORD)
    records[:, 0:2] = torch.rand(count, 2, generator=generator) * torch.tensor([2000.0, 1700.0])
    records[:, layout.RECORD_CONIC] = torch.tensor([0.004, 0.001, 0.003])
    records[:, layout.RECORD_OPACITY] = 0.5
    records[:, layout.RECORD_DEPTH] = 1 + torch.rand(count, generator=generator)
    records[:, layout.RECORD_RADIUS] = 60.0
    ids = torch.arange(count)
    camera = Camera(2000, 1700, 900.0, 900.0, 1000.0, 850.0, np.eye(4))
    assert camera.tiles > 10_240
    exact = op.bin_splats(
        KernelSet("reference", precision="float64"), Splats(ids, ids, records.double()), camera, Workspace()
    )
    there = Splats(ids.to(device), ids.to(device), records.to(device))
    ours = op.bin_splats(kernels, there, camera, Workspace(device))
    for name in ("starts", "splat", "splat_starts"):
        assert torch.equal(getattr(ours, name).cpu(), getattr(exact, name)), name


@pytest.mark.parametrize("length", [1024, 1025, 4096, 4097, 8193, 20_000, 150_000])
def test_lists_sorted_at_once_or_in_buckets_are_front_to_back(kernels, device, length):
    """Depths spread, crowded within a millionth of their range, and equal in pairs."""
    generator = torch.Generator().manual_seed(length)
    records = torch.zeros(length, layout.RECORD)
    records[:, : layout.RECORD_DEPTH] = torch.tensor([8.0, 8.0, 0.05, 0.0, 0.05, 0.5, 1.0, 1.0, 1.0])
    records[:, layout.RECORD_RADIUS] = 14.0
    depths = 1 + torch.rand(length, generator=generator)
    depths[length // 2 :] = 900 + 1e-3 * torch.rand(length - length // 2, generator=generator)
    depths[1::5] = depths[0::5][: len(depths[1::5])]
    records[:, layout.RECORD_DEPTH] = depths
    ids = torch.randperm(length, generator=generator)
    camera = Camera(16, 16, 20.0, 20.0, 8.0, 8.0, np.eye(4))
    splats = Splats(torch.arange(length).to(device), ids.to(device), records.to(device))
    listed = op.bin_splats(kernels, splats, camera, Workspace(device)).splat.long().cpu()
    assert len(listed) == length
    keys = list(zip(depths[listed].tolist(), ids[listed].tolist(), strict=True))
    assert keys == sorted(keys)
