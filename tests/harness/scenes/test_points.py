from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from cuda_src.camera import Camera
from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, QUATERNION, SH_DC, SH_REST
from harness.errors import UserError
from harness.scenes.points import (
    SMALLEST_SCALE,
    PointSource,
    chosen_points,
    neighbour_distances,
    point_cloud,
    points_in_view,
    scattered_points,
    viewing_depth,
)
from harness.scenes.scene import PointCloud

CPU = torch.device("cpu")


def cloud(*positions: tuple[float, float, float]) -> PointCloud:
    colours = np.arange(3 * len(positions), dtype=np.uint8).reshape(-1, 3)
    return PointCloud(np.array(positions, dtype=np.float32), colours)


def looking_at(target: np.ndarray, centre: np.ndarray) -> Camera:
    z = (target - centre) / np.linalg.norm(target - centre)
    x = np.cross([0.0, 0.0, -1.0], z)
    x /= np.linalg.norm(x)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([x, np.cross(z, x), z])
    pose[:3, 3] = -pose[:3, :3] @ centre
    return Camera(40, 30, 50.0, 50.0, 18.0, 16.0, pose)


def test_initial_gaussians_follow_their_points() -> None:
    points = cloud((0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 4), (9, 9, 9))
    source = PointSource(points)
    read = source.read(torch.tensor([3, 0]), CPU)
    np.testing.assert_array_equal(read[:, MEAN], points.positions[[3, 0]])
    # The three nearest points of the origin lie at 1, 2 and 4.
    assert torch.exp(read[1, LOG_SCALE]).tolist() == pytest.approx([7 / 3] * 3, rel=1e-5)
    assert read[0, QUATERNION].tolist() == [1, 0, 0, 0]
    assert torch.sigmoid(read[:, OPACITY_LOGIT]).tolist() == pytest.approx([0.1, 0.1])
    colour = 0.5 + 0.28209479177387814 * read[:, SH_DC]
    np.testing.assert_allclose(colour, points.colours[[3, 0]] / 255, atol=1e-6)
    assert not read[:, SH_REST].any()
    assert source.count == 5
    np.testing.assert_array_equal(source.bounds, [[0, 0, 0], [9, 9, 9]])
    np.testing.assert_array_equal(source.positions(1, 3), points.positions[1:3])


def test_reading_in_parts_gives_the_same_gaussians() -> None:
    rng = np.random.default_rng(0)
    points = PointCloud(rng.normal(size=(50, 3)).astype(np.float32), rng.integers(0, 255, (50, 3), dtype=np.uint8))
    whole = PointSource(points).read(torch.arange(50), CPU)
    other = PointSource(points)
    assert torch.equal(torch.cat([other.read(torch.arange(i, i + 10), CPU) for i in range(0, 50, 10)]), whole)


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_coinciding_points_get_the_smallest_scale(count: int) -> None:
    scales = PointSource(cloud(*[(1.0, 2.0, 3.0)] * count)).read(torch.arange(count), CPU)[:, LOG_SCALE]
    np.testing.assert_allclose(torch.exp(scales), SMALLEST_SCALE, rtol=1e-5)


def test_fewer_points_than_neighbours_use_those_there_are() -> None:
    scales = PointSource(cloud((0, 0, 0), (3, 0, 0))).read(torch.arange(2), CPU)[:, LOG_SCALE]
    np.testing.assert_allclose(torch.exp(scales), 3.0, rtol=1e-5)


def test_no_rows_give_no_gaussians() -> None:
    assert PointSource(cloud((0, 0, 0), (3, 0, 0))).read(torch.arange(0), CPU).shape == (0, 59)


def test_chosen_points_depend_on_the_seed_and_keep_their_order() -> None:
    points = cloud(*((float(i), 0.0, 0.0) for i in range(80)))
    chosen = chosen_points(points, 20, seed=3)
    assert len(chosen.positions) == 20
    assert (np.diff(chosen.positions[:, 0]) > 0).all()
    np.testing.assert_array_equal(chosen.positions, chosen_points(points, 20, seed=3).positions)
    assert not np.array_equal(chosen.positions, chosen_points(points, 20, seed=4).positions)
    rows = chosen.positions[:, 0].astype(int)
    np.testing.assert_array_equal(chosen.colours, points.colours[rows])
    # Evenly: about ten from each half.
    assert 5 <= (rows < 40).sum() <= 15


@pytest.mark.parametrize("count", [None, 3, 4])
def test_no_points_are_left_out_when_all_fit(count: int | None) -> None:
    points = cloud((0, 0, 0), (1, 0, 0), (2, 0, 0))
    assert chosen_points(points, count, seed=0) is points


def test_empty_and_infinite_clouds_are_refused() -> None:
    colours = np.zeros((2, 3), dtype=np.uint8)
    with pytest.raises(UserError, match=r"a\.ply: holds no point"):
        point_cloud(np.empty((0, 3)), colours[:0], Path("a.ply"))
    with pytest.raises(UserError, match="point 2 lies at"):
        point_cloud(np.array([[0, 0, 0], [1, 1e39, 2]]), colours, Path("a.ply"))


def test_cameras_around_an_object_look_at_its_depth() -> None:
    target = np.array([1.0, 2.0, 3.0])
    ring = [target + 4 * np.array([np.cos(a), np.sin(a), 0.3]) for a in np.linspace(0, 6, 9)]
    assert viewing_depth(tuple(looking_at(target, c) for c in ring)) == pytest.approx(4 * np.sqrt(1.09))


def test_parallel_cameras_look_at_the_depth_of_their_extent() -> None:
    down = np.array([0.0, 1e-3, -1.0])
    cameras = tuple(looking_at(np.array([x, 0.0, 5.0]) + down, np.array([x, 0.0, 5.0])) for x in (0.0, 10.0))
    assert viewing_depth(cameras) == pytest.approx(5.5)


def test_random_points_lie_in_view_and_depend_on_the_seed() -> None:
    target = np.zeros(3)
    cameras = tuple(looking_at(target, 4 * np.array([np.cos(a), np.sin(a), 0.3])) for a in np.linspace(0, 6, 9))
    points = points_in_view(cameras, 500, seed=1)
    assert points.positions.dtype == np.float32
    assert points.colours.std() > 50
    seen = np.zeros(500, dtype=bool)
    for camera in cameras:
        local = points.positions @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]
        pixels = local[:, :2] / local[:, 2:] * [camera.fx, camera.fy] + [camera.cx, camera.cy]
        seen |= (local[:, 2] > 0) & ((pixels > -0.01) & (pixels < [40.01, 30.01])).all(axis=1)
    assert seen.all()
    np.testing.assert_array_equal(points.positions, points_in_view(cameras, 500, seed=1).positions)
    assert not np.array_equal(points.positions, points_in_view(cameras, 500, seed=2).positions)


@pytest.mark.parametrize("count", [1, 7, 20, 21, 40, 57])
def test_scattered_points_are_exactly_so_many_around_the_scenes_own(count):
    generator = np.random.default_rng(2)
    own = PointCloud(
        generator.normal(size=(20, 3)).astype(np.float32), generator.integers(0, 256, (20, 3)).astype(np.uint8)
    )
    found = scattered_points(own, count, seed=5)
    assert len(found.positions) == len(found.colours) == count
    assert found.positions.dtype == np.float32
    if count <= 20:
        assert {p.tobytes() for p in found.positions} <= {p.tobytes() for p in own.positions}
        return
    assert np.array_equal(found.positions[:20], own.positions)
    reach = neighbour_distances(cKDTree(own.positions), own.positions)
    uses = np.zeros(20, int)
    for place, colour in zip(found.positions[20:], found.colours[20:], strict=True):
        near = (np.abs(place - own.positions) <= reach[:, None] * (1 + 1e-5)).all(axis=1)
        near &= (colour == own.colours).all(axis=1)
        assert near.sum() == 1
        uses += near
    assert uses.max() - uses.min() <= 1
    again = scattered_points(own, count, seed=5)
    assert np.array_equal(again.positions, found.positions)
    assert not np.array_equal(scattered_points(own, count, seed=6).positions, found.positions)


def test_a_single_point_scatters_at_the_smallest_scale():
    one = PointCloud(np.ones((1, 3), np.float32), np.zeros((1, 3), np.uint8))
    found = scattered_points(one, 9, seed=0)
    assert len(found.positions) == 9
    assert np.abs(found.positions - 1).max() < 1e-6
