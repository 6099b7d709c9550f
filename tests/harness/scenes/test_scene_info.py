from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial.transform import Rotation

from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from harness.scenes import info as info_module
from harness.scenes.info import info_table, scene_info
from harness.scenes.plot import plot_scene, viewing_frame
from harness.scenes.points import PointSource
from harness.scenes.scene import PointCloud, Scene

REFERENCE = KernelSet(backend="reference")


def camera(centre: tuple[float, float, float], forward: tuple[float, float, float], up: tuple[float, float, float]):
    z = np.array(forward) / np.linalg.norm(forward)
    x = np.cross(z, up)
    x /= np.linalg.norm(x)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([x, np.cross(z, x), z])
    pose[:3, 3] = -pose[:3, :3] @ np.array(centre)
    return Camera(48, 32, 40.0, 40.0, 24.0, 16.0, pose)


def scene_of(cameras: list[Camera], points: int = 40) -> Scene:
    rng = np.random.default_rng(0)
    cloud = PointCloud(
        rng.uniform(-0.5, 0.5, (points, 3)).astype(np.float32), rng.integers(0, 256, (points, 3), dtype=np.uint8)
    )
    names = tuple(str(i) for i in range(len(cameras)))
    return Scene(
        "cube", tuple(cameras), names, None, cloud, None, 2.5, "0" * 64, "by hand", {"side_metres": 3, "far": None}
    )


def ring(count: int = 9) -> list[Camera]:
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    around = [(2 * np.cos(a), 2 * np.sin(a), 1.0) for a in angles]
    return [camera(c, (-c[0], -c[1], -c[2]), (0, 0, 1)) for c in around]


def turned(scene: Scene, rotation: np.ndarray) -> Scene:
    """The same scene in a world turned by the rotation."""
    cameras = []
    for one in scene.cameras:
        pose = one.world_to_camera.copy()
        pose[:3, :3] = pose[:3, :3] @ rotation.T
        cameras.append(replace(one, world_to_camera=pose))
    return replace(scene, cameras=tuple(cameras))


def test_info_counts_the_scene_and_what_is_seen_of_it() -> None:
    found = scene_info(scene_of(ring()), REFERENCE)
    assert (found.points, found.gaussians) == (40, None)
    assert (found.train_views, found.test_views, found.width, found.height) == (7, 2, 48, 32)
    drawing = found.drawing
    assert drawing is not None
    assert (drawing.gaussians, drawing.views) == (40, 9)
    assert drawing.visible_share == 1.0
    assert 40 <= drawing.tile_instances <= 40 * 6
    p50, p90, p99, largest = drawing.list_lengths
    assert 0 < p50 <= p90 <= p99 <= largest <= 40
    assert drawing.saturated_share == 0.0


def test_nothing_is_visible_from_cameras_that_look_away() -> None:
    away = [camera((2.0, i / 10, 0.0), (1, 0, 0), (0, 0, 1)) for i in range(3)]
    drawing = scene_info(scene_of(away), REFERENCE).drawing
    assert drawing is not None
    assert (drawing.visible_share, drawing.tile_instances, drawing.saturated_share) == (0, 0, 0)
    assert drawing.list_lengths == (0, 0, 0, 0)


class Opaque(PointSource):
    """Points as large opaque Gaussians."""

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        parameters = super().read(indices, device)
        parameters[:, 3:6] = 0.0
        parameters[:, 10] = 10.0
        return parameters


def test_ready_gaussians_go_before_points_and_saturate_pixels() -> None:
    scene = scene_of(ring())
    assert scene.points is not None
    few = PointCloud(scene.points.positions[:20], scene.points.colours[:20])
    found = scene_info(replace(scene, gaussians=Opaque(few)), REFERENCE)
    assert (found.points, found.gaussians) == (40, 20)
    assert found.drawing is not None
    assert found.drawing.gaussians == 20
    assert found.drawing.saturated_share > 0.5


def test_gaussians_drawn_in_pieces_give_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(ring())
    whole = scene_info(scene, REFERENCE).drawing
    monkeypatch.setattr(info_module, "PIECE", 7)
    assert scene_info(scene, REFERENCE).drawing == whole


def test_at_most_sixteen_views_are_drawn() -> None:
    drawing = scene_info(scene_of(ring(30), points=4), REFERENCE).drawing
    assert drawing is not None
    assert drawing.views == 16


def test_scene_without_points_has_no_drawing() -> None:
    found = scene_info(replace(scene_of(ring()), points=None), REFERENCE)
    assert (found.drawing, found.bounds, found.points) == (None, None, None)
    assert ("initial points", "none") in info_table(found)


def test_table_says_every_figure_once() -> None:
    table = info_table(scene_info(scene_of(ring()), REFERENCE))
    keys = [key for key, _ in table]
    assert len(set(keys)) == len(keys)
    rows = dict(table)
    assert rows["views"] == "9 (7 train, 2 test)"
    assert rows["initial points"] == "40"
    assert rows["visible share"].startswith("100.00%")
    assert rows["side metres"] == "3"
    assert "far" not in rows
    assert "max" in rows["tile lists"]


@pytest.mark.parametrize(
    "cameras",
    [
        pytest.param(ring(), id="around an object"),
        pytest.param(
            [camera((x, y, 5.0), (0.0, 0.0, -1.0), (0, s, 0)) for x in range(4) for y, s in ((0, 1), (2, -1))],
            id="nadir, there and back",
        ),
        pytest.param([camera((x, 0.1 * x, 5.0), (0, 0, -1), (0, 1, 0)) for x in range(4)], id="nadir, one heading"),
        pytest.param([camera((x, 0.0, 0.05 * (x % 2)), (1, 0, 0), (0, 0, 1)) for x in range(5)], id="street"),
    ],
)
def test_up_is_found_in_any_world(cameras: list[Camera]) -> None:
    scene = scene_of(cameras)
    frame, labels = viewing_frame(scene)
    np.testing.assert_allclose(frame @ frame.T, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(frame[2], [0, 0, 1], atol=1e-9)
    assert labels[2] == "z"
    rotation = Rotation.from_euler("xyz", [0.5, 0.4, 0.3]).as_matrix()
    frame, labels = viewing_frame(turned(scene, rotation))
    np.testing.assert_allclose(frame @ frame.T, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(frame[2], rotation[:, 2], atol=0.02)
    assert labels[2] == "height"


@pytest.mark.parametrize("kind", ["points", "gaussians", "cameras"])
def test_plot_draws_cameras_and_points(tmp_path: Path, kind: str) -> None:
    scene = scene_of(ring())
    assert scene.points is not None
    if kind == "gaussians":
        scene = replace(scene, gaussians=PointSource(scene.points), points=None)
    elif kind == "cameras":
        scene = replace(scene, points=None)
    plot_scene(scene, tmp_path / "scene.png")
    colours = np.asarray(Image.open(tmp_path / "scene.png").convert("RGB")).reshape(-1, 3).astype(int)
    red = (np.abs(colours - [214, 39, 40]).max(axis=1) < 20).sum()
    blue = (np.abs(colours - [31, 119, 180]).max(axis=1) < 20).sum()
    assert red > blue > 50
