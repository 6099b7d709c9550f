"""Images of the procedural city and the textures on its surfaces."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.camera import Camera
from cuda_src.layout import MEAN
from harness.scenes.blocks import city_blocks
from harness.scenes.city_gaussians import CityGaussians
from harness.scenes.facades import SKY, sky_colour
from harness.scenes.paths import aerial_cameras, look, street_cameras
from harness.scenes.raycast import CityImages, pixel_directions, trace
from harness.scenes.texture import band, stripes
from strategies.base import Rect

CPU = torch.device("cpu")
CITY = city_blocks(20_000, 0)
SIZE = (80, 60)
STREET = street_cameras(CITY, 8, SIZE, math.inf)
AERIAL = aerial_cameras(CITY, 8, SIZE, math.inf)


def brute_force_depth(origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Depth of the nearest box or of the ground by testing all of them, [N], direction [3, N], in float64."""
    boxes = CITY.boxes.double().numpy()
    low = np.stack([boxes[0], boxes[2], np.zeros_like(boxes[0])])[:, :, None]
    high = np.stack([boxes[1], boxes[3], boxes[4]])[:, :, None]
    with np.errstate(divide="ignore"):
        a = (low - origin[:, None, None]) / direction[:, None, :]
        b = (high - origin[:, None, None]) / direction[:, None, :]
    enter, leave = np.minimum(a, b).max(axis=0), np.maximum(a, b).min(axis=0)
    depth = np.where((enter < leave) & (enter > 0), enter, np.inf).min(axis=0)
    ground = -origin[2] / direction[2]
    there = np.abs(origin[:2, None] + ground * direction[:2]).max(axis=0)
    ground = np.where((ground > 0) & (there < CITY.side / 2 + 60), ground, np.inf)
    return np.minimum(depth, ground)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), inside=st.booleans())
def test_rays_end_where_a_test_of_every_box_says(seed: int, inside: bool) -> None:
    random = np.random.default_rng(seed)
    if inside:
        street = (random.integers(0, CITY.blocks + 1) - CITY.blocks / 2) * 30.0
        origin = np.array([street, random.uniform(-40, 40), random.uniform(0.5, 15)])
    else:
        origin = np.array([*random.uniform(-150, 150, 2), random.uniform(CITY.tallest, 80)])
    direction = random.normal(size=(3, 500)).astype(np.float32)
    depth = trace(CITY, origin.tolist(), torch.from_numpy(direction)).depth.double().numpy()
    expected = brute_force_depth(origin, direction.astype(np.float64))
    # A ray that grazes an edge may fall on either side of it in float32.
    agree = np.isclose(depth, expected, rtol=1e-4) | (np.isinf(depth) & np.isinf(expected))
    assert agree.mean() > 0.99


def test_rays_along_an_axis_end_like_any_other() -> None:
    boxes = CITY.boxes
    tallest = int(boxes[4].argmax())
    middle_y = float(boxes[2, tallest] + boxes[3, tallest]) / 2
    start = float(boxes[0, tallest]) - 2.0
    hits = trace(CITY, [start, middle_y, 2.0], torch.tensor([[1.0], [0.0], [0.0]]))
    assert hits.depth.item() == pytest.approx(2.0, abs=1e-4)
    assert hits.block.item() == tallest
    up = trace(CITY, [start, middle_y, 2.0], torch.tensor([[0.0], [0.0], [1.0]]))
    assert up.face.item() == SKY


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_region_is_the_crop_of_the_whole_image(data: st.DataObject) -> None:
    cameras = STREET + AERIAL
    view = data.draw(st.integers(0, len(cameras) - 1))
    x0, y0 = data.draw(st.integers(0, SIZE[0] - 1)), data.draw(st.integers(0, SIZE[1] - 1))
    rect = Rect(x0, y0, data.draw(st.integers(x0 + 1, SIZE[0])), data.draw(st.integers(y0 + 1, SIZE[1])))
    part = CityImages(CITY, cameras).region(view, rect, CPU)
    images = CityImages(CITY, cameras)
    whole = images.region(view, Rect.whole(cameras[view]), CPU)
    assert torch.equal(part, whole[rect.y0 : rect.y1, rect.x0 : rect.x1])
    assert torch.equal(images.region(view, rect, CPU), part), "now from the kept image"


def test_the_cache_stays_within_its_bytes_and_changes_nothing() -> None:
    whole = Rect.whole(STREET[0])
    image_bytes = 3 * SIZE[0] * SIZE[1]
    images = CityImages(CITY, STREET, cache_bytes=2 * image_bytes)
    first = [images.region(view, whole, CPU).clone() for view in range(len(STREET))]
    assert images.cached_bytes <= 2 * image_bytes
    again = [images.region(view, whole, CPU) for view in range(len(STREET))]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_images_have_detail_and_differ_by_view_and_seed() -> None:
    whole = Rect.whole(AERIAL[0])
    images = [CityImages(CITY, AERIAL).region(view, whole, CPU).float() for view in (0, 3)]
    other = CityImages(city_blocks(20_000, 1), AERIAL).region(0, whole, CPU).float()
    assert all(image.std() > 25 for image in images)
    assert (images[0] - images[1]).abs().mean() > 10
    assert (images[0] - other).abs().mean() > 5


def test_beyond_far_the_image_is_sky() -> None:
    far = 35.0
    near_sighted = tuple(replace(camera, far=far) for camera in STREET)
    whole = Rect.whole(STREET[0])
    pixels = torch.arange(SIZE[0] * SIZE[1])
    changed = 0
    for view, camera in enumerate(STREET):
        direction = pixel_directions(camera, pixels)
        hidden = trace(CITY, camera.centre.tolist(), direction).depth > far
        image = CityImages(CITY, near_sighted).region(view, whole, CPU).reshape(-1, 3)
        clear = CityImages(CITY, STREET).region(view, whole, CPU).reshape(-1, 3)
        sky = (sky_colour(direction).T * 255 + 0.5).to(torch.uint8)
        assert torch.equal(image[hidden], sky[hidden])
        assert torch.equal(image[~hidden], clear[~hidden])
        changed += int((image != clear).any(dim=1).sum())
    assert changed > 0


def test_a_surface_looks_the_same_from_everywhere() -> None:
    place = np.array([0.0, -15.0, 0.0])  # a street's middle, seen from two sides at the same distance
    colours = []
    for yaw in (0.0, math.pi):
        centre = place - 6.0 * np.array([math.cos(yaw) * math.cos(0.5), math.sin(yaw) * math.cos(0.5), -math.sin(0.5)])
        camera = Camera(33, 33, 400.0, 400.0, 16.5, 16.5, look(centre, yaw, 0.5))
        colours.append(CityImages(CITY, [camera]).region(0, Rect(16, 16, 17, 17), CPU).flatten().int())
    assert (colours[0] - colours[1]).abs().max() <= 1


@settings(max_examples=25, deadline=None)
@given(
    x=st.floats(-30, 30),
    lo=st.floats(0, 0.5),
    duty=st.floats(0.05, 0.5),
    width=st.floats(0.02, 5),
)
def test_stripes_and_bands_are_averages_over_their_width(x: float, lo: float, duty: float, width: float) -> None:
    samples = x + width * ((np.arange(20_001) + 0.5) / 20_001 - 0.5)
    inside = (samples - np.floor(samples) >= lo) & (samples - np.floor(samples) < lo + duty)
    at, over = torch.tensor([x]), torch.tensor([width])
    assert stripes(at, lo, lo + duty, over).item() == pytest.approx(inside.mean(), abs=1e-3)
    inside = (samples >= lo) & (samples < lo + duty)
    assert band(at, lo, lo + duty, over).item() == pytest.approx(inside.mean(), abs=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_images_and_means_are_the_same_bit_for_bit_on_a_gpu() -> None:
    cuda = torch.device("cuda")
    for cameras in (STREET, AERIAL):
        whole = Rect.whole(cameras[1])
        images = [CityImages(CITY, cameras).region(1, whole, device).cpu() for device in (CPU, cuda)]
        assert torch.equal(*images)
    ids = torch.arange(0, 20_000, 7)
    rows = [CityGaussians(CITY, 20_000).read(ids, device).cpu() for device in (CPU, cuda)]
    assert torch.equal(rows[0][:, MEAN], rows[1][:, MEAN])
    assert torch.allclose(rows[0], rows[1], rtol=1e-5, atol=1e-5)
