"""Camera paths of the procedural city."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cuda_src.camera import Camera
from harness.scenes.blocks import CityBlocks, city_blocks
from harness.scenes.facades import SKY
from harness.scenes.paths import STREET_STEP, aerial_cameras, street_cameras
from harness.scenes.raycast import pixel_directions, trace
from harness.scenes.scene import HOLD_OUT

SIZE = (64, 48)
PATHS = {"street": street_cameras, "aerial": aerial_cameras}


def cameras(path: str, gaussians: int = 20_000, views: int = 32, seed: int = 0) -> tuple[CityBlocks, list[Camera]]:
    city = city_blocks(gaussians, seed)
    return city, list(PATHS[path](city, views, SIZE, math.inf))


def seen_points(city: CityBlocks, camera: Camera) -> np.ndarray:
    """World positions that the camera's pixels see, [n, 3]."""
    direction = pixel_directions(camera, torch.arange(camera.width * camera.height))
    hits = trace(city, camera.centre.tolist(), direction)
    there = hits.face != SKY
    return camera.centre + (hits.depth[there] * direction[:, there]).T.double().numpy()


def sees(city: CityBlocks, camera: Camera, points: np.ndarray) -> np.ndarray:
    """Whether the camera sees each point [n, 3]: in the image, and nothing in front."""
    local = points @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        u = camera.fx * local[:, 0] / local[:, 2] + camera.cx
        v = camera.fy * local[:, 1] / local[:, 2] + camera.cy
    inside = (local[:, 2] > 0.2) & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
    direction = torch.from_numpy((points - camera.centre).T.astype(np.float32))
    depth = trace(city, camera.centre.tolist(), direction).depth.numpy()
    return inside & (depth > 0.999)


@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.parametrize(
    ("gaussians", "views", "seed"), [(20_000, 32, 0), (20_000, 2, 5), (5_000_000, 128, 1), (5, 7, 2)]
)
def test_cameras_are_level_right_handed_and_outside_of_buildings(
    path: str, gaussians: int, views: int, seed: int
) -> None:
    city, path_cameras = cameras(path, gaussians, views, seed)
    assert len(path_cameras) == views
    x0, x1, y0, y1, height = city.boxes.double().numpy()
    for camera in path_cameras:
        rotation = camera.world_to_camera[:3, :3]
        assert np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(rotation) == pytest.approx(1.0)
        assert rotation[0, 2] == 0.0, "the image's x axis is horizontal"
        assert rotation[1, 2] < 0.0, "the image's y axis points down"
        x, y, z = camera.centre
        assert not ((x0 < x) & (x < x1) & (y0 < y) & (y < y1) & (z < height)).any()
        assert 60 <= math.degrees(2 * math.atan(camera.width / 2 / camera.fx)) <= 88


def test_street_cameras_drive_on_the_road_at_eye_height_in_small_steps() -> None:
    city, path_cameras = cameras("street", 5_000_000, 128)
    centres = np.stack([camera.centre for camera in path_cameras])
    assert ((centres[:, 2] >= 1.7) & (centres[:, 2] <= 2.0)).all()
    from_line = np.abs((centres[:, :2] + city.side / 2 + 15.0) % 30.0 - 15.0)
    assert (from_line.min(axis=1) < 4.0).all()
    assert np.linalg.norm(np.diff(centres, axis=0), axis=1).max() < STREET_STEP + 3.5
    assert (np.ptp(centres[:, :2], axis=0) > 0.6 * city.side).all(), "the whole city is driven"


def test_street_cameras_look_in_several_directions() -> None:
    _, path_cameras = cameras("street")
    quarters = {round(math.atan2(*camera.world_to_camera[2, 1::-1]) / (math.pi / 2)) % 4 for camera in path_cameras}
    assert len(quarters) >= 3


def test_aerial_cameras_fly_between_60_and_110_metres_over_big_cities() -> None:
    _, path_cameras = cameras("aerial", 5_000_000, 16)
    heights = [camera.centre[2] for camera in path_cameras]
    assert min(heights) >= 60
    assert max(heights) <= 110


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_small_aerial_views_are_full_of_city(seed: int) -> None:
    city, path_cameras = cameras("aerial", seed=seed)
    for camera in path_cameras:
        points = seen_points(city, camera)
        assert len(points) >= 0.6 * SIZE[0] * SIZE[1]
        assert (np.abs(points[:, :2]).max(axis=1) < city.side / 2).mean() > 0.5


@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.parametrize(("gaussians", "views"), [(20_000, 32), (5_000_000, 128)])
def test_what_held_out_views_show_is_seen_by_training_views(path: str, gaussians: int, views: int) -> None:
    city, path_cameras = cameras(path, gaussians, views)
    shares = []
    for view in range(HOLD_OUT, views, 3 * HOLD_OUT):
        points = seen_points(city, path_cameras[view])[::7]
        others = np.zeros(len(points), dtype=bool)
        for other in range(views):
            if other % HOLD_OUT:
                others |= sees(city, path_cameras[other], points)
        shares.append(others.mean())
    assert min(shares) > 0.6
    assert np.mean(shares) > 0.8


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_path_depends_on_the_seed_alone(path: str) -> None:
    poses = [np.stack([c.world_to_camera for c in cameras(path, seed=seed)[1]]) for seed in (3, 3, 4)]
    assert np.array_equal(poses[0], poses[1])
    assert not np.array_equal(poses[0], poses[2])
