"""Gaussians, points and scenes of the procedural city."""

from __future__ import annotations

import resource
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, PARAMETERS, QUATERNION, SH_DC
from harness.errors import UserError
from harness.scenes.blocks import BUILDING, city_blocks
from harness.scenes.city import city_scene
from harness.scenes.city_gaussians import SH_C0, CityGaussians, city_points
from harness.scenes.presets import PRESETS
from harness.scenes.raycast import trace
from harness.scenes.scene import Scene
from harness.suite.cell import SceneSpec
from strategies.base import Rect

CPU = torch.device("cpu")
COUNT = 6_000


def gaussians(count: int = COUNT, seed: int = 0) -> CityGaussians:
    return CityGaussians(city_blocks(count, seed), count)


def scene(city: str = "small_street", **spec: object) -> Scene:
    return city_scene(SceneSpec.model_validate({"city": city} | spec), (64, 48), CPU)


def rotation(quaternion: torch.Tensor) -> torch.Tensor:
    """[n, 3, 3] of unit quaternions w x y z, from the products i j = k and so on."""
    w, x, y, z = quaternion.double().T
    rows = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


@settings(max_examples=20, deadline=None)
@given(ids=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=40))
def test_a_row_does_not_depend_on_what_is_read_with_it(ids: list[int]) -> None:
    source = gaussians()
    whole = source.read(torch.arange(COUNT), CPU)
    assert torch.equal(source.read(torch.tensor(ids), CPU), whole[ids])


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, COUNT), max_size=4))
def test_positions_in_any_split_are_the_means_of_the_rows(cuts: list[int]) -> None:
    source = gaussians()
    edges = [0, *sorted(cuts), COUNT]
    parts = torch.cat([source.positions(lo, hi) for lo, hi in pairwise(edges)])
    assert torch.equal(parts, source.read(torch.arange(COUNT), CPU)[:, MEAN])


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 5_000), seed=st.integers(0, 2**40))
def test_every_count_is_met_exactly_inside_the_bounds(count: int, seed: int) -> None:
    source = gaussians(count, seed)
    rows = source.read(torch.arange(count), CPU)
    assert rows.shape == (count, PARAMETERS)
    assert rows.isfinite().all()
    low, high = source.bounds
    means = rows[:, MEAN].numpy()
    assert (means >= low - 1e-4).all()
    assert (means <= high + 1e-4).all()


def test_another_seed_gives_another_city() -> None:
    first, second = (gaussians(seed=seed).read(torch.arange(COUNT), CPU) for seed in (0, 1))
    assert not torch.equal(city_blocks(COUNT, 0).boxes, city_blocks(COUNT, 1).boxes)
    assert (first != second).any(dim=1).all()


def test_gaussians_lie_on_surfaces_with_their_thin_axis_along_the_normal() -> None:
    source = gaussians()
    rows = source.read(torch.arange(COUNT), CPU)
    normal = rotation(rows[:, QUATERNION])[:, :, 2]
    axis = normal.abs().argmax(dim=1)
    assert torch.allclose(normal.abs().amax(dim=1), torch.ones(COUNT, dtype=torch.float64), atol=1e-6)
    boxes = city_blocks(COUNT, 0).boxes
    planes = {0: boxes[:2].flatten(), 1: boxes[2:4].flatten(), 2: torch.cat([boxes[4], torch.zeros(1)])}
    for number, plane in planes.items():
        on = rows[axis == number][:, number]
        assert len(on) > 100
        assert ((on[:, None] - plane[None]).abs().amin(dim=1) < 1e-4).all()
    thin = rows[:, LOG_SCALE].argmin(dim=1) == 2
    assert thin.float().mean() > 0.99


def test_walls_roofs_and_ground_are_equally_dense() -> None:
    city = city_blocks(COUNT, 0)
    means = gaussians().positions(0, COUNT)
    x0, x1, y0, y1, height = city.boxes.double()
    roofs = (x1 - x0) * (y1 - y0) * (height > 0)
    areas = torch.stack([2 * (x1 - x0 + y1 - y0) @ height, roofs.sum(), city.side**2 - roofs.sum()])
    ground = means[:, 2] == 0
    roof = ((means[:, 2, None] - height[None].float()).abs() < 1e-5).any(dim=1) & ~ground
    counts = torch.stack([(~ground & ~roof).sum(), roof.sum(), ground.sum()]).double()
    assert torch.allclose(counts / COUNT, areas / areas.sum(), atol=0.01)


def test_sizes_and_opacities_are_like_those_of_a_trained_model() -> None:
    source = gaussians()
    rows = source.read(torch.arange(COUNT), CPU)
    size = rows[:, LOG_SCALE][:, :2].exp()
    assert 0.5 * source.spacing < size.median() < 0.7 * source.spacing
    opacity = torch.sigmoid(rows[:, OPACITY_LOGIT])
    assert opacity.median() > 0.85
    assert 0.02 < (opacity < 0.4).float().mean() < 0.2


def test_gaussians_have_the_colours_that_the_images_show_at_their_place() -> None:
    # Dense enough that a splat averages over little more than a pixel does.
    count = 4_000_000
    city = city_blocks(count, 0)
    source = CityGaussians(city, count)
    made = city_scene(SceneSpec(city="big_aerial", gaussians=count, views=8), (1280, 960), CPU)
    camera = made.cameras[3]
    assert made.images is not None
    image = made.images.region(3, Rect.whole(camera), CPU)
    rows = source.read(torch.arange(0, count, 997), CPU)
    origin = torch.tensor(camera.centre, dtype=torch.float32)
    seen = (trace(city, origin.tolist(), (rows[:, MEAN] - origin).T).depth - 1.0).abs() < 1e-3
    matrix = torch.tensor(camera.world_to_camera, dtype=torch.float32)
    x, y, z = matrix[:3, :3] @ rows[:, MEAN].T + matrix[:3, 3:]
    u, v = camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy
    seen &= (z > 0) & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
    assert seen.sum() > 200
    colour = (0.5 + SH_C0 * rows[seen][:, SH_DC]).flatten()
    pixels = image[v[seen].long(), u[seen].long()].flatten() / 255.0
    assert torch.corrcoef(torch.stack([colour, pixels]))[0, 1] > 0.9


def test_rows_of_half_a_billion_are_read_in_little_memory() -> None:
    count = 500_000_000
    source = gaussians(count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = torch.randint(0, count, (1_000,), generator=torch.Generator().manual_seed(0))
    rows = source.read(ids, CPU)
    near = source.positions(int(ids[0]), int(ids[0]) + 5)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert torch.equal(near[0], rows[0, MEAN])
    assert rows.isfinite().all()
    assert after - before < 200_000, "kilobytes"


def test_density_of_large_cities_does_not_depend_on_their_size() -> None:
    assert gaussians(40_000_000).spacing == pytest.approx(gaussians(10_000_000).spacing, rel=0.1)


@pytest.mark.parametrize("count", [1, 19, 4_000])
def test_points_are_as_many_as_asked_and_mostly_near_surfaces(count: int) -> None:
    city = city_blocks(20_000, 0)
    points = city_points(city, count)
    assert points.positions.shape == points.colours.shape == (count, 3)
    assert points.positions.dtype == np.float32
    assert points.colours.dtype == np.uint8
    low, high = CityGaussians(city, 1).bounds
    inside = ((points.positions > low - 1) & (points.positions < high + 1)).all(axis=1)
    assert inside.mean() >= 0.85


@pytest.mark.parametrize("city", sorted(PRESETS))
def test_every_preset_makes_a_scene(city: str) -> None:
    made = scene(city, gaussians=2_000, views=9)
    assert made.gaussians is not None
    assert made.images is not None
    assert made.gaussians.count == 2_000
    assert len(made.cameras) == len(made.view_names) == 9
    assert made.test_views == (0, 8)
    assert made.images.region(8, Rect.whole(made.cameras[8]), CPU).shape == (48, 64, 3)
    assert made.images.mask(8, Rect.whole(made.cameras[8]), CPU) is None
    assert made.extent > 1


def test_a_city_has_streets_and_buildings() -> None:
    city = city_blocks(20_000, 0)
    assert (city.use == BUILDING).float().mean() > 0.5
    assert (city.boxes[4][city.use == BUILDING] >= 7.0).all()
    assert (city.boxes[4][city.use != BUILDING] == 0.0).all()


def test_content_hash_follows_what_decides_the_scene() -> None:
    base = scene().content_hash
    assert scene().content_hash == base
    assert scene(gaussians=20_000, views=32).content_hash == base, "the preset's defaults written out"
    others = [
        scene(seed=1),
        scene(far=40.0),
        scene(views=16),
        scene(points=500),
        scene(gaussians=19_999),
        scene("small_aerial"),
        city_scene(SceneSpec(city="small_street"), (65, 48), CPU),
    ]
    assert len({base, *(other.content_hash for other in others)}) == len(others) + 1


def test_far_reaches_the_cameras() -> None:
    assert {camera.far for camera in scene(far=40.0).cameras} == {40.0}
    assert {camera.far for camera in scene().cameras} == {float("inf")}


def test_an_unknown_city_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"scene\.city: value 'atlantis'; expected one of small_street, "):
        scene("atlantis")


def test_points_are_refused_where_the_city_has_none() -> None:
    with pytest.raises(UserError, match=r"scene\.points: value 7; the city 'anchor_street' has no initial points"):
        scene("anchor_street", points=7)


def test_presets_are_known_without_torch() -> None:
    code = "import sys, harness.scenes.presets as p; sys.exit(not p.PRESETS or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
