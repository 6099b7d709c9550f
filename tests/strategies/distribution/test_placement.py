"""Ownership, regions, halos and migration: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.halo import SSIM_HALO, HaloExchange, halo_of_regions
from strategies.distribution.migration import migrate
from strategies.distribution.ownership import dealt_owners, kdtree_ids, owned_ids
from strategies.distribution.regions import Regions, ViewCost, cut_regions, largest_share
from strategies.distribution.virtual import VirtualWorld
from strategies.gaussians import Gaussians
from strategies.morton import morton_codes, morton_order

OWNERSHIPS = ["morton_blocks", "contiguous", "random", "kdtree"]


def camera(width: int, height: int) -> Camera:
    return Camera(width, height, 50.0, 50.0, width / 2, height / 2, np.eye(4))


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("count", [0, 1, 5, 5000])
@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_every_gaussian_has_one_owner(make_scene, ownership, count, ranks):
    source = make_scene(count=count, views=1).source
    parts = [owned_ids(ownership, source, r, ranks, seed=1) for r in range(ranks)]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(count))
    if count > 1000 and ownership != "random":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1024


def test_morton_blocks_spread_neighbours_over_ranks(make_scene):
    source = make_scene(count=8192, views=1).source
    near = source.parameters[:, layout.MEAN].norm(dim=1) < 0.5
    shares = [near[owned_ids("morton_blocks", source, r, 2, 0)].sum() / near.sum() for r in range(2)]
    assert max(shares) < 0.75


def test_kdtree_leaves_are_boxes_of_equal_count():
    points = torch.rand(1000, 3) * torch.tensor([10.0, 1.0, 1.0])
    leaves = kdtree_ids(points, 4)
    assert [len(rows) for rows in leaves] == [250] * 4
    ranges = [(points[rows, 0].min(), points[rows, 0].max()) for rows in leaves]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=4),
    ranks=st.integers(1, 9),
    unit=st.sampled_from(["block", "row", "image"]),
    seed=st.integers(0, 99),
)
def test_regions_partition_every_image_at_unit_borders(sizes, ranks, unit, seed):
    cameras = [camera(*s) for s in sizes]
    generator = torch.Generator().manual_seed(seed)
    costs = [torch.rand(c.tiles, generator=generator) * (seed % 3) for c in cameras]
    regions = cut_regions(cameras, costs, ranks, unit)
    for view, cam in enumerate(cameras):
        parts = [regions.of(r, view) for r in range(ranks)]
        assert torch.equal(torch.cat(parts), torch.arange(cam.tiles, dtype=torch.int32))
        owner = regions.owner(view)
        for rank, tiles in enumerate(parts):
            assert (owner[tiles.long()] == rank).all()
            if unit != "block" and len(tiles):
                step = cam.tiles_x if unit == "row" else cam.tiles
                assert int(tiles[0]) % step == 0
                assert len(tiles) % step == 0
        assert regions.pixel_owner(view).shape == (cam.height, cam.width)


def test_a_cut_balances_cost_not_area():
    cam = camera(160, 160)
    cost = torch.ones(cam.tiles)
    cost[:10] = 90.0
    regions = cut_regions([cam], [cost], 2, "block")
    shares = [cost[regions.of(r, 0).long()].sum() for r in range(2)]
    assert max(shares) / sum(shares) < 0.55
    assert len(regions.of(0, 0)) < 10


def test_dilation_is_a_square_that_stops_at_the_image(dilate):
    mask = torch.zeros(30, 40, dtype=torch.bool)
    mask[0, 20] = True
    grown = dilate(mask, SSIM_HALO)
    rows, columns = grown.nonzero().T
    assert (rows.max(), columns.min(), columns.max()) == (10, 10, 30)
    assert grown.sum() == 11 * 21


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 90)), min_size=1, max_size=3),
    ranks=st.integers(1, 6),
    unit=st.sampled_from(["block", "row", "image"]),
    seed=st.integers(0, 99),
)
def test_the_halo_of_a_run_of_tiles_is_that_of_its_pixels(halo_of_pixels, sizes, ranks, unit, seed):
    cameras, generator = [camera(*s) for s in sizes], torch.Generator().manual_seed(seed)
    regions = cut_regions(cameras, [torch.rand(c.tiles, generator=generator) ** 4 for c in cameras], ranks, unit)
    for rank in range(ranks):
        ours, masks = halo_of_regions(regions, rank), halo_of_pixels(regions, rank, ranks, len(cameras))
        for side in ("gives", "takes"):
            for a, b in zip(itertools.chain(*getattr(ours, side)), itertools.chain(*getattr(masks, side)), strict=True):
                assert torch.equal(a, b)
        for view, cam in enumerate(cameras):
            covered = torch.zeros(cam.height, cam.width, dtype=torch.int64)
            for part in regions.rectangles(rank, view):
                covered[part.y0 : part.y1, part.x0 : part.x1] += 1
            assert torch.equal(covered, (regions.pixel_owner(view) == rank).long())
            assert len(regions.rectangles(rank, view)) <= 3
    for view, owners in enumerate(regions.owners(torch.device("cpu"))):
        assert torch.equal(owners.long(), regions.owner(view))
        assert regions.whole(view) == (int(owners[0]) if (owners == owners[0]).all() else None)


def shares(regions: Regions, costs: list[torch.Tensor], view_cost: ViewCost) -> list[float]:
    """What each rank has, with what views cost it."""
    cut = any(len(regions.owner(view).unique()) > 1 for view in range(len(costs)))
    of_ranks = []
    for rank in range(regions.ranks):
        parts = [
            cost[regions.segment(rank, view).start : regions.segment(rank, view).stop]
            for view, cost in enumerate(costs)
        ]
        of_views = sum(float(part.sum()) + view_cost.each * (len(part) > 0) for part in parts)
        of_ranks.append(of_views + view_cost.cut * cut)
    return of_ranks


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=3),
    ranks=st.integers(1, 3),
    view_cost=st.sampled_from([0.01, 1.0, 5.0, 1000.0]),
    seed=st.integers(0, 99),
)
def test_where_views_cost_something_the_largest_share_is_the_least_there_is(sizes, ranks, view_cost, seed):
    cameras, generator = [camera(*s) for s in sizes], torch.Generator().manual_seed(seed)
    costs = [torch.rand(c.tiles, generator=generator) for c in cameras]
    cost = ViewCost(view_cost)
    regions = cut_regions(cameras, costs, ranks, "block", cost)
    total = sum(c.tiles for c in cameras)
    assert (regions.cuts[0], regions.cuts[-1]) == (0, total)
    every = itertools.combinations_with_replacement(range(total + 1), ranks - 1)
    least = min(max(shares(replace(regions, cuts=(0, *cuts, total)), costs, cost)) for cuts in every)
    largest = max(shares(regions, costs, cost))
    assert largest == pytest.approx(least, rel=1e-6)
    assert largest_share(regions, torch.cat(costs), cost) == pytest.approx(largest)


def test_views_that_cost_almost_as_much_stay_whole_where_beginning_one_costs_more():
    cameras = [camera(64, 64)] * 2
    costs = [torch.full((16,), 1.0), torch.full((16,), 1.2)]
    assert cut_regions(cameras, costs, 2, "block").cuts == (0, 17, 32)
    assert cut_regions(cameras, costs, 2, "block", ViewCost(3.0)).cuts == (0, 16, 32)
    costs[1] *= 3
    assert cut_regions(cameras, costs, 2, "block", ViewCost(3.0)).cuts[1] > 16


@pytest.mark.parametrize(("more", "cut"), [(4.0, False), (12.0, False), (20.0, True)])
def test_a_batch_stays_whole_until_cutting_it_saves_more_than_it_costs(more, cut):
    """Cut, the rank with most has half of the difference less, half of what a view costs and what a cut costs more."""
    cameras, cost = [camera(64, 64)] * 2, ViewCost(1.0, 6.0)
    costs = [torch.full((16,), 10.0), torch.full((16,), 10.0 + more / 16)]
    regions = cut_regions(cameras, costs, 2, "block", cost)
    assert (regions.whole(0), regions.whole(1)) == ((0, None) if cut else (0, 1))
    assert largest_share(regions, torch.cat(costs), cost) == pytest.approx(max(shares(regions, costs, cost)))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("by", "view"), [("pixels", 0), ("regions", 0), ("regions", 1)])
def test_halo_brings_in_every_pixel_within_reach_and_no_other(dilate, halo_of_pixels, ranks, by, view):
    cameras = [camera(70, 50), camera(33, 40)]
    truth = [torch.rand(c.height, c.width, 3) for c in cameras]
    regions = cut_regions(cameras, [torch.rand(c.tiles) for c in cameras], ranks, "block")

    def main(comm: Communicator):
        mine = [regions.pixel_owner(v) == comm.rank for v in range(2)]
        images = [torch.where(m[..., None], t, torch.nan) for m, t in zip(mine, truth, strict=True)]
        of_pixels = halo_of_pixels(regions, comm.rank, ranks, len(cameras))
        halo = of_pixels if by == "pixels" else halo_of_regions(regions, comm.rank)
        coming = HaloExchange(comm, "exchange_loss", halo, images, Workspace())
        coming.wait_for(view)
        near = dilate(mine[view], SSIM_HALO)
        assert torch.equal(images[view][near], truth[view][near])
        coming.wait()
        for image, own, whole in zip(images, mine, truth, strict=True):
            near = dilate(own, SSIM_HALO)
            assert torch.equal(image[near], whole[near])
            assert image[~near].isnan().all()
        return comm.ledger.payload["exchange_loss"], [int(i.isfinite().sum()) for i in images], mine

    for rank, (payload, _, _) in enumerate(VirtualWorld(ranks).run(main)):
        assert payload[rank, rank] == 0


def test_views_that_are_not_cut_wait_for_no_halo():
    cameras, waits = [camera(64, 48)] * 2, []
    costs = [torch.full((c.tiles,), cost) for c, cost in zip(cameras, (3.0, 1.0), strict=True)]
    regions = cut_regions(cameras, costs, 2, "block")  # The second rank begins in the first view.
    pending = SimpleNamespace(wait=lambda: waits.append(1))
    comm = SimpleNamespace(exchange=lambda stage, *rest, terms: pending)
    halo = HaloExchange(comm, "a", halo_of_regions(regions, 1), [torch.zeros(48, 64, 3)] * 2, Workspace())
    halo.wait_for(0)
    assert len(waits) == 1
    halo.wait_for(1)
    halo.wait()
    assert len(waits) == 1
    halo = HaloExchange(comm, "a", halo_of_regions(regions, 1), [torch.zeros(48, 64, 3)] * 2, Workspace())
    halo.wait_for(1)
    assert len(waits) == 1
    halo.wait()
    assert len(waits) == 2


def table(ids: torch.Tensor) -> Gaussians:
    """Rows that can be recognised by their id."""
    rows = ids[:, None] + torch.arange(layout.PARAMETERS) / 100.0
    return Gaussians(ids, rows, rows + 0.001, rows + 0.002)


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(1, 5), count=st.integers(0, 40), seed=st.integers(0, 99))
def test_migration_conserves_ids_parameters_and_optimizer_state(ranks, count, seed):
    generator = torch.Generator().manual_seed(seed)
    before = torch.randint(0, ranks, (count,), generator=generator)
    after = torch.randint(0, ranks, (count,), generator=generator)
    ids = torch.arange(count)

    def main(comm: Communicator):
        mine = ids[before == comm.rank]
        moved = migrate(comm, KernelSet("reference"), table(mine), after[mine])
        expected = table(ids[after == comm.rank])
        by_id = torch.argsort(moved.ids)
        for name in ("ids", "parameters", "moment1", "moment2"):
            assert torch.equal(getattr(moved, name)[by_id], getattr(expected, name)), name
        assert torch.equal(morton_order(moved.parameters[:, layout.MEAN], moved.ids), torch.arange(moved.count))
        ledger = comm.ledger
        return ledger.payload["migrate"].sum().item(), ledger.metadata["migrate"].sum().item()

    sent = VirtualWorld(ranks).run(main)
    assert sum(payload for payload, _ in sent) == count * 3 * layout.PARAMETERS * 4
    # Ids, and each rank's counts.
    assert sum(metadata for _, metadata in sent) == count * 8 + ranks * ranks * 8


@pytest.mark.gpu
def test_a_rank_alone_on_a_gpu_gets_its_own_rows_back_in_morton_order():
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    device = torch.device("cuda", 0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(700, generator=generator)
    held = [torch.randn(700, layout.PARAMETERS, generator=generator) for _ in range(3)]
    gaussians = Gaussians(*(t.to(device) for t in (ids, *held)))
    comm, nowhere_else = LocalCommunicator(device), torch.zeros(700, dtype=torch.int64)
    moved = migrate(comm, KernelSet("compiled", device), gaussians, nowhere_else)
    order = morton_order(held[0][:, layout.MEAN], ids)
    for there, here in zip((moved.ids, *moved.tables), (ids, *held), strict=True):
        assert torch.equal(there.cpu(), here[order])


def test_displaced_gaussians_are_dealt_again_by_where_they_are_now(make_scene):
    scene = make_scene(count=4096, views=1)
    scene.source.parameters[:, layout.MEAN] = torch.rand(4096, 3)
    bounds = np.array([[0, 0, 0], [1, 1, 1]], np.float32)

    def main(comm: Communicator):
        ids = owned_ids("contiguous", scene.source, comm.rank, comm.ranks, 0)
        gaussians = Gaussians.from_source(scene.source, ids, comm.device, torch.float32)
        return migrate(comm, KernelSet("reference"), gaussians, dealt_owners(comm, gaussians, bounds)).ids

    parts = VirtualWorld(4).run(main)
    order = torch.argsort(morton_codes(scene.source.parameters[:, layout.MEAN], bounds), stable=True)
    for rank, ids in enumerate(parts):
        assert torch.equal(ids.sort().values, order[torch.arange(4096) // 1024 % 4 == rank].sort().values)
