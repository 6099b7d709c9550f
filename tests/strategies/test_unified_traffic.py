"""The remote bytes of `unified` are closed forms of what is rendered where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import TILE
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.distribution.halo import SSIM_HALO
from strategies.training.config import Training
from strategies.unified.info import ROW_BYTES, UnifiedOptions
from strategies.unified.sectors import SECTOR, item_bytes, run_bytes, scattered_bytes
from strategies.unified.strategy import Unified
from strategies.views import ViewQueue

PORTABLE = KernelSet("portable")
STRIPE = 4 * ROW_BYTES


@pytest.fixture
def scene(make_scene):
    scene = make_scene(count=90)
    # Opaque and large: whole tiles stop early, and the backward walks over fewer instances than there are.
    scene.source.parameters[:, layout.OPACITY_LOGIT] += 6.0
    scene.source.parameters[:, layout.LOG_SCALE] += 1.0
    return scene


def stepped(scene, places: int, batch: int, **options):
    """A strategy after one step from a fresh cut, and the regions of that step."""
    comm, devices = LocalCommunicator(places=places), (torch.device("cpu"),) * places
    context = replace(scene.context(PORTABLE, Training(sh_every=0), batch, comm), world=World(0, 1, devices, places))
    strategy = Unified()
    strategy.setup(context, scene.source, scene.images, UnifiedOptions(stripe_bytes=STRIPE, **options))
    order = ViewQueue(range(len(scene.cameras)), seed=3)
    views = order.peek(batch)
    regions = strategy._cut(views, [scene.cameras[v] for v in views])
    strategy.step(order)
    return strategy, regions


def whole_views(scene, regions):
    """Splats, tile lists and raster of each view of the regions, as one device would have them."""
    ids = torch.arange(scene.source.count)
    for camera in regions.cameras:
        work = Workspace()
        splats = op.project(PORTABLE, scene.source.parameters, ids, camera, 3, work)
        bins = op.bin_splats(PORTABLE, splats, camera, work)
        yield splats, bins, op.raster_forward(PORTABLE, splats, bins, camera, work)


def record_counts(scene, regions, places: int) -> torch.Tensor:
    """n(owner, destination), summed over views; owners deal stripes of four rows."""
    counts = torch.zeros((places, places), dtype=torch.int64)
    for view, (splats, bins, _) in enumerate(whole_views(scene, regions)):
        met = torch.zeros((splats.count, places), dtype=torch.bool)
        tile = bins.tiles.long().repeat_interleave(bins.starts.diff())
        met[bins.splat.long(), regions.owner(view)[tile]] = True
        for splat, of_splat in enumerate(met):
            counts[int(splats.rows[splat]) // 4 % places] += of_splat.long()
    return counts


@pytest.mark.parametrize(("places", "batch"), [(1, 1), (2, 1), (3, 3), (8, 2)])
def test_pushed_bytes_are_64_a_record_each_way(scene, places, batch):
    strategy, regions = stepped(scene, places, batch)
    ledger, counts = strategy.ctx.comm.ledger, record_counts(scene, regions, places)
    assert counts.sum() > 0
    assert torch.equal(ledger.payload["exchange_forward"], 64 * counts)
    assert torch.equal(ledger.payload["exchange_backward"], 64 * counts.T)
    assert torch.equal(ledger.metadata["exchange_forward"], torch.full((places, places), 8 * batch))


def test_slots_of_48_bytes_move_whole_sectors(scene):
    strategy, regions = stepped(scene, 3, 2, record=48)
    counts = record_counts(scene, regions, 3)
    beyond = strategy.ctx.comm.ledger.payload["exchange_forward"] - 48 * counts
    # A run of slots begins and ends in the middle of a sector at most, once a view.
    assert (beyond >= 0).all()
    assert (beyond <= 2 * 2 * (SECTOR - 16)).all()
    assert (strategy.ctx.comm.ledger.payload["exchange_forward"] % SECTOR == 0).all()


def test_gradients_are_added_remotely_once_a_tile_and_splat(scene):
    """64 B (two sectors hold the 36 B) for each instance that the backward walks over: to its tile's last."""
    places, batch = 3, 2
    strategy, regions = stepped(scene, places, batch, exchange="remote_atomic")
    expected, all_instances = torch.zeros((places, places), dtype=torch.int64), 0
    for view, (splats, bins, raster) in enumerate(whole_views(scene, regions)):
        camera, owner = regions.cameras[view], regions.owner(view)
        for tile in range(camera.tiles):
            top, left = tile // camera.tiles_x * TILE, tile % camera.tiles_x * TILE
            first = int(bins.starts[tile])
            last = int(raster.last[top : top + TILE, left : left + TILE].max())
            for splat in bins.splat[first : first + last].tolist():
                expected[owner[tile], int(splats.rows[splat]) // 4 % places] += 64
        all_instances += bins.instances
    assert expected.sum() < 64 * all_instances
    assert torch.equal(strategy.ctx.comm.ledger.payload["exchange_backward"], expected)


def test_dense_buffers_cost_36_bytes_a_row_and_view(scene):
    places, batch = 3, 2
    strategy, _ = stepped(scene, places, batch, exchange="local_reduce")
    table = strategy.ctx.comm.ledger.payload["exchange_backward"]
    owned = torch.tensor([place.arena.gaussians.count for place in strategy.places])
    assert torch.equal(table, (36 * batch * owned).expand(places, places))
    assert (table.sum(dim=1) == 36 * scene.source.count * batch).all()


def test_loss_reads_the_sectors_of_its_neighbours_pixels(scene):
    strategy, regions = stepped(scene, 3, 2)
    expected = torch.zeros((3, 3), dtype=torch.int64)
    for view, camera in enumerate(regions.cameras):
        owner = regions.pixel_owner(view)
        for reader in range(3):
            sectors: dict[int, set[int]] = {}
            for y, x in (owner != reader).nonzero().tolist():
                box = owner[max(0, y - SSIM_HALO) : y + SSIM_HALO + 1, max(0, x - SSIM_HALO) : x + SSIM_HALO + 1]
                if bool((box == reader).any()):
                    begin = 12 * (y * camera.width + x)
                    sectors.setdefault(int(owner[y, x]), set()).update({begin // SECTOR, (begin + 11) // SECTOR})
            for source, touched in sectors.items():
                expected[source, reader] += SECTOR * len(touched)
    assert expected.sum() > 0
    assert torch.equal(strategy.ctx.comm.ledger.payload["exchange_loss"], expected)


def test_rendering_reads_the_other_places_pixels_once(scene):
    strategy, _ = stepped(scene, 3, 1, balance="off")
    camera = scene.cameras[2]
    strategy.ctx.comm.clear()
    strategy.render(camera)
    owner = strategy._cut([-1], [camera]).pixel_owner(0).flatten()
    table = strategy.ctx.comm.ledger.payload["render"]
    for source in (1, 2):
        assert int(table[source, 0]) == scattered_bytes((owner == source).nonzero().flatten(), 12)
    assert table.sum() == table[1:, 0].sum()


def test_one_place_reads_and_writes_nothing_remotely(scene):
    for exchange in ("push", "remote_atomic", "local_reduce"):
        strategy, _ = stepped(scene, 1, 2, exchange=exchange)
        assert strategy.ctx.comm.ledger.wire_bytes() == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500))
def test_bytes_of_a_run_are_the_sectors_it_touches(begin, length):
    touched = {address // SECTOR for address in range(begin, begin + length)}
    assert run_bytes(begin, begin + length) == SECTOR * len(touched)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 200)), st.integers(1, SECTOR))
def test_bytes_of_scattered_items_count_each_sector_once(items, size):
    touched = {address // SECTOR for i in items for address in range(i * size, (i + 1) * size)}
    assert scattered_bytes(torch.tensor(sorted(items), dtype=torch.int64), size) == SECTOR * len(touched)


def test_a_gradient_of_36_bytes_takes_two_sectors():
    assert (item_bytes(36), item_bytes(32), item_bytes(33)) == (64, 32, 64)
