"""Scenes repeated over a grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.layout import MEAN
from harness.scenes.city import city_scene
from harness.scenes.scene import PointCloud, Scene
from harness.scenes.tile import tiled
from harness.suite.cell import SceneSpec
from strategies.base import Rect

CPU = torch.device("cpu")
COUNT, VIEWS, POINTS = 900, 9, 200


@pytest.fixture(scope="module")
def scene() -> Scene:
    return city_scene(SceneSpec(city="small_street", gaussians=COUNT, views=VIEWS, points=POINTS), (32, 24), CPU)


def test_one_by_one_is_the_scene_itself(scene: Scene) -> None:
    assert tiled(scene, (1, 1)) is scene


def test_copies_are_shifted_by_the_robust_size_along_the_horizontal_axes(scene: Scene) -> None:
    assert scene.gaussians is not None
    grid = tiled(scene, (2, 3))
    assert grid.gaussians is not None
    means = scene.gaussians.positions(0, COUNT)
    low, high = np.percentile(means.numpy(), (1, 99), axis=0)
    assert grid.gaussians.count == 6 * COUNT
    for copy in range(6):
        moved = grid.gaussians.positions(copy * COUNT, (copy + 1) * COUNT) - means
        expected = torch.tensor([(copy // 3) * (high - low)[0], (copy % 3) * (high - low)[1], 0.0])
        assert torch.allclose(moved, expected.float().expand_as(moved), atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(ids=st.lists(st.integers(0, 4 * COUNT - 1), min_size=1, max_size=30), cut=st.integers(0, 4 * COUNT))
def test_rows_are_those_of_the_copy_with_the_mean_moved(scene: Scene, ids: list[int], cut: int) -> None:
    grid = tiled(scene, (2, 2))
    assert scene.gaussians is not None
    assert grid.gaussians is not None
    rows = grid.gaussians.read(torch.tensor(ids), CPU)
    plain = scene.gaussians.read(torch.tensor(ids) % COUNT, CPU)
    assert torch.equal(rows[:, 3:], plain[:, 3:])
    means = torch.cat([grid.gaussians.positions(0, cut), grid.gaussians.positions(cut, 4 * COUNT)])
    assert torch.equal(means[ids], rows[:, MEAN])
    low, high = grid.gaussians.bounds
    assert (means.numpy() >= low - 1e-3).all()
    assert (means.numpy() <= high + 1e-3).all()


def test_each_copys_cameras_see_their_copy_as_the_first_sees_its_own(scene: Scene) -> None:
    grid = tiled(scene, (2, 2))
    assert grid.gaussians is not None
    assert len(grid.cameras) == len(grid.view_names) == len(set(grid.view_names)) == 4 * VIEWS
    for copy in range(4):
        places = grid.gaussians.positions(copy * COUNT, (copy + 1) * COUNT).double().numpy()
        for view in (0, VIEWS - 1):
            camera, first = grid.cameras[copy * VIEWS + view], scene.cameras[view]
            local = places @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]
            base = grid.gaussians.positions(0, COUNT).double().numpy()
            expected = base @ first.world_to_camera[:3, :3].T + first.world_to_camera[:3, 3]
            assert np.allclose(local, expected, atol=1e-3)
            assert (camera.fx, camera.width) == (first.fx, first.width)


def test_images_are_shared_and_points_repeated(scene: Scene) -> None:
    grid = tiled(scene, (1, 2))
    assert scene.images is not None
    assert grid.images is not None
    assert scene.points is not None
    assert grid.points is not None
    rect = Rect(3, 2, 20, 19)
    assert torch.equal(grid.images.region(VIEWS + 4, rect, CPU), scene.images.region(4, rect, CPU))
    assert grid.images.mask(VIEWS + 4, rect, CPU) is None
    assert grid.points.positions.shape == grid.points.colours.shape == (2 * POINTS, 3)
    assert np.array_equal(grid.points.positions[:POINTS], scene.points.positions)
    assert np.array_equal(grid.points.colours[POINTS:], scene.points.colours)


def test_steps_stay_as_long_but_the_content_is_another(scene: Scene) -> None:
    grids = [tiled(scene, repeats) for repeats in ((1, 2), (2, 1), (2, 2))]
    assert {grid.extent for grid in grids} == {scene.extent}
    assert len({scene.content_hash, *(grid.content_hash for grid in grids)}) == 4


def test_the_horizontal_axes_are_the_two_longest_whatever_they_are_called(scene: Scene) -> None:
    assert scene.points is not None
    turned = replace(scene.points, positions=scene.points.positions[:, [2, 0, 1]])
    grid = tiled(replace(scene, gaussians=None, images=None, points=turned), (2, 2))
    assert grid.gaussians is None
    assert grid.images is None
    assert grid.points is not None
    step = grid.points.positions[-POINTS:] - turned.positions
    assert np.allclose(step[:, 0], 0.0, atol=1e-3)
    assert (step[:, 1:] > 10).all()


def test_a_scene_of_cameras_alone_can_be_tiled(scene: Scene) -> None:
    grid = tiled(replace(scene, gaussians=None, points=None), (3, 1))
    assert len(grid.cameras) == 3 * VIEWS
    assert grid.points is None


def test_each_view_once_is_spread_over_the_copies(scene: Scene) -> None:
    every, once = tiled(scene, (2, 2)), tiled(scene, (2, 2), "once")
    assert len(once.cameras) == VIEWS
    assert once.content_hash != every.content_hash
    copies = [int(name.split("/")[0]) for name in once.view_names]
    assert copies == sorted(copies)
    assert {copies.count(copy) for copy in range(4)} <= {VIEWS // 4, VIEWS // 4 + 1}
    assert once.images is not None
    assert scene.images is not None
    for view, copy in enumerate(copies):
        twin = every.cameras[copy * VIEWS + view]
        assert np.array_equal(once.cameras[view].world_to_camera, twin.world_to_camera)
        rect = Rect(0, 0, 5, 4)
        assert torch.equal(once.images.region(view, rect, CPU), scene.images.region(view, rect, CPU))


@pytest.mark.parametrize("tilt", [0.0, 2.0, 20.0])
def test_copies_of_a_sloping_scene_lie_along_its_ground(scene: Scene, tilt: float) -> None:
    generator = np.random.default_rng(4)
    places = generator.uniform((-10, -6, -0.2), (10, 6, 0.2), (4000, 3))
    angle = np.radians(tilt)
    turn = np.array([[np.cos(angle), 0, -np.sin(angle)], [0, 1, 0], [np.sin(angle), 0, np.cos(angle)]])
    points = PointCloud((places @ turn.T).astype(np.float32), np.zeros((4000, 3), np.uint8))
    grid = tiled(replace(scene, gaussians=None, points=points), (2, 2))
    assert grid.points is not None
    steps = grid.points.positions.reshape(4, 4000, 3)[1:, 0] - grid.points.positions[0]
    above = steps @ turn[:, 2]
    if tilt > 5:
        assert np.abs(above).max() < 0.02 * np.abs(steps).max()
    else:
        assert np.array_equal(steps[:, 2], np.zeros(3))
