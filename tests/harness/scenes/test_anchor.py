"""The anchor: the same numbers for ever."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, QUATERNION, SH, SH_DC
from harness.errors import UserError
from harness.scenes.anchor import AnchorGaussians, AnchorImages, anchor_cameras, anchor_side
from harness.scenes.city import city_scene
from harness.suite.cell import SceneSpec
from strategies.base import Rect

CPU = torch.device("cpu")
PROBE = Path(__file__).parents[4] / "shared" / "probes" / "anchor_city.py"
"""What the reference timings were taken with, beside the checkout; never part of it."""


@pytest.fixture
def probe() -> ModuleType:
    if not PROBE.is_file():
        pytest.skip(f"needs the probe {PROBE.name} beside the checkout")
    spec = importlib.util.spec_from_file_location("anchor_probe", PROBE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("count", "seed"), [(1_000, 3), (120_001, 0)])
def test_gaussians_equal_those_of_the_probe(probe: ModuleType, count: int, seed: int) -> None:
    expected, side = probe.city(count, seed=seed, device="cpu")
    rows = AnchorGaussians(count, seed).read(torch.arange(count), CPU)
    assert anchor_side(count) == side
    assert torch.equal(rows[:, MEAN], expected["means"])
    assert torch.equal(rows[:, LOG_SCALE], expected["scales"])
    assert torch.equal(rows[:, QUATERNION], expected["quats"])
    assert torch.equal(rows[:, OPACITY_LOGIT], expected["opacities"])
    assert torch.equal(rows[:, SH], expected["sh"].flatten(1))


@pytest.mark.parametrize("path", ["street", "aerial"])
def test_the_first_16_of_128_cameras_equal_those_of_the_probe(probe: ModuleType, path: str) -> None:
    count = 20_000_000
    poses, intrinsics = probe.cameras(anchor_side(count), 16, path, device="cpu")
    cameras = anchor_cameras(anchor_side(count), 128, path, (1920, 1080), math.inf)
    for camera, pose, matrix in zip(cameras, poses.numpy(), intrinsics.numpy(), strict=False):
        assert np.allclose(camera.world_to_camera, pose, atol=2e-4)
        assert np.allclose(camera.world_to_camera[:3, :3], pose[:3, :3], atol=1e-6)
        assert [camera.fx, camera.fy, camera.cx, camera.cy] == [matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]]


def test_gaussians_keep_their_values() -> None:
    rows = AnchorGaussians(1_000, 3).read(torch.tensor([500, 0]), CPU)
    assert rows[0, MEAN].tolist() == pytest.approx([-17.92487, 24.0, 3.618467], rel=1e-5)
    assert rows[0, LOG_SCALE].tolist() == pytest.approx([0.264288, -1.358467, 0.386342], rel=1e-4)
    assert rows[0, QUATERNION].tolist() == pytest.approx([0.942572, 0.0278276, 0.0144518, -0.083532], rel=1e-4)
    assert rows[0, OPACITY_LOGIT].item() == pytest.approx(1.747858, rel=1e-5)
    assert rows[0, SH_DC].tolist() == pytest.approx([0.736774, -0.993618, 0.143114], rel=1e-4)
    assert rows[0, 56:].tolist() == pytest.approx([-0.00731757, 0.00404503, 0.00724826], rel=1e-4)
    assert rows[1, MEAN].tolist() == pytest.approx([-6.0, -15.51094, 0.358130], rel=1e-5)


def test_cameras_keep_their_values() -> None:
    aerial, street = (
        anchor_cameras(anchor_side(1_000), 16, path, (1920, 1080), math.inf)[15] for path in ("aerial", "street")
    )
    assert aerial.world_to_camera[:3, 3].tolist() == pytest.approx([17.5221, 66.3712, 74.8487], abs=1e-3)
    assert street.world_to_camera[:3, 3].tolist() == pytest.approx([2.9299, 3.8235, 20.7556], abs=1e-3)
    assert street.world_to_camera[2, :3].tolist() == pytest.approx([-0.6004, -0.7950, 0.0872], abs=1e-4)


def test_the_first_cameras_of_many_are_those_of_few_and_scale_with_the_size() -> None:
    few = anchor_cameras(anchor_side(1_000), 3, "street", (960, 540), 50.0)
    many = anchor_cameras(anchor_side(1_000), 9, "street", (1920, 1080), 50.0)
    for small, large in zip(few, many, strict=False):
        assert np.array_equal(small.world_to_camera, large.world_to_camera)
        assert small.fx == large.fx / 2 == 500.0
        assert small.far == 50.0


def test_positions_and_bounds_belong_to_the_rows() -> None:
    source = AnchorGaussians(500, 0)
    rows = source.read(torch.arange(500), CPU)
    assert source.count == 500
    assert torch.equal(source.positions(37, 91), rows[37:91, MEAN])
    assert np.array_equal(source.bounds, np.stack([rows[:, :3].amin(0).numpy(), rows[:, :3].amax(0).numpy()]))


def test_images_are_a_pattern_of_the_view_and_regions_are_crops() -> None:
    cameras = anchor_cameras(anchor_side(1_000), 3, "aerial", (64, 48), math.inf)
    images = AnchorImages(cameras, 0)
    first, second = (images.region(view, Rect.whole(cameras[view]), CPU) for view in (0, 1))
    assert first.shape == (48, 64, 3)
    assert first.dtype == torch.uint8
    assert (first.int() - second.int()).abs().float().mean() > 10
    assert torch.equal(images.region(0, Rect(5, 7, 40, 30), CPU), first[7:30, 5:40])
    assert torch.equal(AnchorImages(cameras, 0).region(0, Rect.whole(cameras[0]), CPU), first)


def test_cameras_of_a_fixed_side_are_the_same_above_any_number_of_gaussians() -> None:
    few, many, free = (
        city_scene(SceneSpec(city="anchor_aerial", gaussians=count, views=5, camera_side=side), (64, 48), CPU)
        for count, side in ((20_000, 20.0), (60_000, 20.0), (60_000, None))
    )
    for one, other in zip(few.cameras, many.cameras, strict=True):
        assert np.array_equal(one.world_to_camera, other.world_to_camera)
        assert np.abs(one.centre[:2]).max() <= 10.0
    assert max(np.abs(camera.centre[:2]).max() for camera in free.cameras) > 10.0
    assert few.content_hash != many.content_hash


def test_only_the_anchors_cameras_can_be_held_to_a_side() -> None:
    with pytest.raises(UserError, match=r"scene.camera_side: value 20.0; the cameras of city 'small_street' follow"):
        city_scene(SceneSpec(city="small_street", camera_side=20.0), (64, 48), CPU)
