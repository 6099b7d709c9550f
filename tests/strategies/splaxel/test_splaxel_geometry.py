"""Boxes share space out, regions bound what is seen of them, and every ray passes each box once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace
from strategies.distribution.halo import SSIM_HALO
from strategies.distribution.virtual import VirtualWorld
from strategies.splaxel import subtiles
from strategies.splaxel.boxes import Boxes, median_boxes
from strategies.splaxel.repartition import balanced_boxes, imbalance
from strategies.splaxel.sight import look
from strategies.splaxel.visibility import Rays, depth_interval, footprint_rectangles, meets, plates, region

NEAR = 0.2
CPU = torch.device("cpu")


def positions(seed: int, count: int = 200) -> torch.Tensor:
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed)) * 4 - 2


seeds = st.integers(0, 1000)
places = st.tuples(*[st.floats(-4, 4)] * 3)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, ranks=st.integers(1, 7), boxes_per_rank=st.sampled_from([1, 2, 4, 16]))
def test_every_position_lies_in_exactly_the_box_that_is_said_to_hold_it(seed, ranks, boxes_per_rank):
    points = positions(seed)
    boxes = median_boxes(points, ranks, boxes_per_rank)
    leaf = boxes.leaf_of(points)
    corners = torch.from_numpy(boxes.corners)
    inside = ((points[:, None] >= corners[:, 0]) & (points[:, None] < corners[:, 1])).all(dim=2)
    assert torch.equal(inside.int().sum(dim=1), torch.ones(len(points), dtype=torch.int64))
    assert torch.equal(inside.int().argmax(dim=1), leaf)
    assert boxes.count == ranks * boxes_per_rank
    assert [len(boxes.of(r)) for r in range(ranks)] == [boxes_per_rank] * ranks


def test_median_boxes_hold_equal_counts():
    boxes = median_boxes(positions(0, 1024), 4, 4)
    assert torch.bincount(boxes.leaf_of(positions(0, 1024))).tolist() == [64] * 16


def test_checkerboard_gives_neighbours_to_different_ranks():
    flat = torch.cartesian_prod(torch.arange(32.0), torch.arange(32.0))
    points = torch.cat([flat, torch.zeros(len(flat), 1)], dim=1)
    boxes = median_boxes(points, 2, 8)
    corners = boxes.corners[:, :, :2]
    for a, b in itertools.combinations(range(boxes.count), 2):
        gap = np.maximum(corners[a, 0], corners[b, 0]) - np.minimum(corners[a, 1], corners[b, 1])
        if sorted(gap.tolist())[0] < 0 and max(gap) == 0:  # They share a face, not only an edge.
            assert boxes.owner[a] != boxes.owner[b]


@settings(max_examples=25, deadline=None)
@given(seed=seeds, leaves=st.integers(1, 9), camera=places, towards=places)
def test_depth_intervals_of_all_boxes_share_out_every_ray_without_gap_or_overlap(
    look_at, seed, leaves, camera, towards
):
    if np.linalg.norm(np.subtract(camera, towards)) < 1e-3:
        towards = (9.0, 9.0, 9.0)
    boxes = median_boxes(positions(seed), 1, leaves)
    view = look_at(camera, towards, 19, 17)
    directions = Rays(view, CPU)
    for dtype in (torch.float64, torch.float32):
        intervals = [depth_interval(directions, c).to(dtype) for c in boxes.corners]
        # Depths at random, and exactly at the crossings.
        depths = [torch.rand(17, 19, dtype=dtype) * 10 for _ in range(3)]
        depths += [i[..., 0].nan_to_num(neginf=0.0, posinf=1.0).clamp(0, 1e6) for i in intervals]
        for depth in depths:
            holders = sum(((i[..., 0] <= depth) & (depth < i[..., 1])).int() for i in intervals)
            assert (holders == 1).all()


@settings(max_examples=25, deadline=None)
@given(seed=seeds, leaves=st.integers(2, 6), camera=places)
def test_depth_intervals_follow_the_order_of_the_tree_from_the_camera(look_at, seed, leaves, camera):
    boxes = median_boxes(positions(seed), 1, leaves)
    view = look_at(camera, (0.01, 0.02, 0.03), 19, 17)
    directions = Rays(view, CPU)
    behind = torch.full((17, 19), 0.0, dtype=torch.float64)
    for box in boxes.front_to_back(view.centre):
        enter, leave = depth_interval(directions, boxes.corners[box]).unbind(dim=-1)
        passed = (enter < leave) & (leave > 0)
        assert (enter.clamp(min=0)[passed] >= behind[passed]).all()
        behind = torch.where(passed, leave, behind)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, leaves=st.integers(1, 6), camera=places, towards=places)
def test_region_holds_every_pixel_whose_ray_enters_the_box(look_at, seed, leaves, camera, towards):
    if np.linalg.norm(np.subtract(camera, towards)) < 1e-3:
        towards = (9.0, 9.0, 9.0)
    boxes = median_boxes(positions(seed), 1, leaves)
    view = look_at(camera, towards, 43, 37)
    directions = Rays(view, CPU)
    bounds = np.array([[-2.0] * 3, [2.0] * 3])
    for corners in boxes.corners:
        for shape in (corners, np.stack([np.maximum(corners[0], bounds[0]), np.minimum(corners[1], bounds[1])])):
            enter, leave = depth_interval(directions, shape).unbind(dim=-1)
            seen = enter.clamp(min=NEAR) < leave
            grid = region(view, NEAR, shape)
            assert (subtiles.pixels_of(grid, view) | ~seen).all()


def test_region_of_a_slab_is_its_projection_to_the_next_subtile(look_at):
    view = look_at([0, 0, 0], [0, 0, 1], 96, 64, 40.0)
    slab = np.array([[-0.3, -0.2, 1.0], [0.4, 0.25, 1.0]])
    pixels = subtiles.pixels_of(region(view, NEAR, slab), view)
    y, x = torch.nonzero(pixels).T
    for got, exact, grain in (
        (int(x.min()), view.cx - 0.3 * view.fx, 8),
        (95 - int(x.max()), 96 - view.cx - 0.4 * view.fx, 8),
        (int(y.min()), view.cy - 0.2 * view.fy, 4),
        (63 - int(y.max()), 64 - view.cy - 0.25 * view.fy, 4),
    ):
        assert exact - grain - 2 <= got <= exact
    assert pixels.sum() == (x.max() - x.min() + 1) * (y.max() - y.min() + 1)


def test_region_of_a_box_behind_the_camera_or_beyond_the_far_plane_is_empty(look_at):
    view = look_at([0, 0, 0], [0, 0, 1])
    assert not region(view, NEAR, np.array([[-1, -1, -3], [1, 1, -1]], float)).any()
    near_sighted = Camera(view.width, view.height, view.fx, view.fy, view.cx, view.cy, view.world_to_camera, far=5.0)
    beyond = np.array([[-1, -1, 6], [1, 1, 8]], float)
    assert region(view, NEAR, beyond).any()
    assert not region(near_sighted, NEAR, beyond).any()
    everything = region(view, NEAR, np.array([[-np.inf] * 3, [np.inf] * 3]))
    assert subtiles.pixels_of(everything, view).all()


def test_margin_sees_a_box_just_outside_the_image(look_at):
    view = look_at([0, 0, 0], [0, 0, 1], 32, 32, 16.0)
    beside = np.array([[1.3, -0.2, 1.0], [1.6, 0.2, 1.1]])
    assert not region(view, NEAR, beside).any()
    assert region(view, NEAR, beside, margin=10.0).any()


@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=seeds, camera=places)
def test_splats_are_blended_only_inside_their_plates_and_boxes_that_meet_them(
    look_at, make_table, footprint, seed, camera
):
    """Each (pixel, splat) that the kernels blend lies in the footprint; its ray point in a box the plate meets."""
    kernels = KernelSet("reference", precision="float64", footprint=footprint)
    view = look_at(camera, (0.1, 0.1, 0.1), 43, 37)
    table = make_table(seed)
    splats = op.project(kernels, table, torch.arange(len(table)), view, 0, Workspace())
    boxes = median_boxes(table[:, layout.MEAN], 1, 5)
    directions, rectangle = Rays(view, CPU), footprint_rectangles(kernels, splats.records, view)
    met = torch.stack([meets(plates(kernels, splats, view), c) for c in boxes.corners])
    centre = torch.from_numpy(view.centre)
    for n in range(splats.count):
        one = op.Splats(splats.rows[n : n + 1], splats.ids[n : n + 1], splats.records[n : n + 1])
        work = Workspace()
        raster = op.raster_forward(kernels, one, op.bin_splats(kernels, one, view, work), view, work)
        y, x = torch.nonzero(raster.transmittance < 1).T
        y, x = (y[raster.last[y, x] > 0], x[raster.last[y, x] > 0])
        x0, y0, x1, y1 = rectangle[n]
        assert ((x + 0.5 >= x0) & (x + 0.5 <= x1) & (y + 0.5 >= y0) & (y + 0.5 <= y1)).all()
        through = torch.stack([directions.along(axis)[y, x] for axis in range(3)], dim=1)
        points = centre + splats.records[n, layout.RECORD_DEPTH] * through
        assert met[boxes.leaf_of(points), n].all()


@pytest.fixture
def make_table(make_scene):
    return lambda seed: make_scene(count=8, views=1, seed=seed).source.parameters


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 70), height=st.integers(1, 70), seed=seeds)
def test_subtile_bits_tiles_and_pixels_agree(dilate, width, height, seed):
    view = Camera(width, height, 50.0, 50.0, 1.0, 1.0, np.eye(4))
    generator = torch.Generator().manual_seed(seed)
    grid = torch.rand(subtiles.grid_shape(view), generator=generator) < 0.2
    bits = subtiles.to_bits(grid)
    assert torch.equal(subtiles.from_bits(bits, view), grid)
    assert torch.equal(subtiles.tiles_of(grid), bits > 0)
    pixels = subtiles.pixels_of(grid, view)
    assert pixels.shape == (height, width)
    for y, x in ((0, 0), (height - 1, width - 1), (height // 2, width // 2)):
        bit = y % 16 // 4 * 2 + x % 16 // 8
        assert pixels[y, x] == bool(bits[y // 16 * view.tiles_x + x // 16] >> bit & 1)
    assert (subtiles.pixels_of(subtiles.touched_by(pixels, view), view) == pixels).all()
    tiles = torch.rand(view.tiles, generator=generator) < 0.3
    near = subtiles.pixels_near(tiles, view, SSIM_HALO)
    assert torch.equal(near, dilate(subtiles.tile_pixels(tiles, view), SSIM_HALO))


@settings(max_examples=25, deadline=None)
@given(seed=seeds, ranks=st.integers(1, 3), boxes_per_rank=st.integers(1, 6), camera=places)
def test_layers_keep_the_order_of_overlapping_boxes_and_join_only_neighbours(
    look_at, seed, ranks, boxes_per_rank, camera
):
    boxes = median_boxes(positions(seed), ranks, boxes_per_rank)
    view = look_at(camera, (0.1, 0.2, 0.3), 43, 37)
    sight = look(view, boxes, NEAR, list(torch.from_numpy(boxes.corners)), whole=False)
    assert sorted(b for layer in sight.layers for b in layer.boxes) == sorted(sight.order)
    place = {box: (n, k) for n, layer in enumerate(sight.layers) for k, box in enumerate(layer.boxes)}
    for front, back in itertools.combinations(sight.order, 2):
        if bool((sight.regions[front] & sight.regions[back]).any()):
            assert place[front] < place[back]
    assert all(boxes.owner[b] == layer.rank for layer in sight.layers for b in layer.boxes)
    assert len(sight.layers) >= len({layer.rank for layer in sight.layers})


@pytest.mark.parametrize("ranks", [1, 3])
def test_balanced_boxes_share_out_work_wherever_the_gaussians_lie(ranks):
    points = positions(3, 3000)
    work = torch.where(points[:, 0] > 1.0, 9.0, 1.0)
    owner = torch.arange(3000) * ranks // 3000

    def main(comm):
        mine = owner == comm.rank
        return balanced_boxes(comm, points[mine], work[mine], 4)

    results = VirtualWorld(ranks).run(main)
    assert all(r == results[0] for r in results)
    shares = torch.bincount(results[0].leaf_of(points), weights=work, minlength=4 * ranks)
    assert shares.max() / shares.mean() < 1.1


def test_balanced_boxes_of_no_gaussians_and_of_one_point_exist():
    def main(points):
        return VirtualWorld(2).run(lambda comm: balanced_boxes(comm, points, torch.ones(len(points)), 2))[0]

    for points in (torch.empty(0, 3), torch.ones(5, 3)):
        assert main(points).count == 4


def test_imbalance_is_the_largest_work_beyond_the_mean():
    assert VirtualWorld(2).run(lambda comm: imbalance(comm, [300.0, 100.0][comm.rank])) == [0.5, 0.5]
    assert VirtualWorld(2).run(lambda comm: imbalance(comm, 0.0)) == [0.0, 0.0]


def test_one_box_is_all_of_space():
    boxes = Boxes(None, 1)
    assert (boxes.count, boxes.of(0), boxes.front_to_back(np.zeros(3))) == (1, [0], [0])
    assert boxes.leaf_of(torch.tensor([[1e30, -1e30, 0.0]])).tolist() == [0]
