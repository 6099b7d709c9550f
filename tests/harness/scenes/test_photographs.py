from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cuda_src.camera import Camera
from harness.errors import UserError
from harness.scenes.photographs import Photograph, PhotographSource, check_sizes, reduced
from strategies.base import Rect

CPU = torch.device("cpu")
CAMERA = Camera(40, 30, 50.0, 51.0, 18.0, 16.0, np.eye(4))


def pixels(seed: int, shape: tuple[int, ...] = (30, 40, 3)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photograph(folder: Path, content: np.ndarray, name: str = "a.png", mask: np.ndarray | None = None) -> Photograph:
    Image.fromarray(content).save(folder / name)
    if mask is not None:
        Image.fromarray(mask).save(folder / "mask.png")
    return Photograph(name, folder / name, CAMERA, mask=None if mask is None else folder / "mask.png")


def source_of(*photographs: Photograph, size: tuple[int, int] | None = None, cache: int = 1 << 20) -> PhotographSource:
    return PhotographSource(photographs, [reduced(p.camera, size) for p in photographs], cache)


def whole(source: PhotographSource, view: int = 0, size: tuple[int, int] = (40, 30)) -> np.ndarray:
    return source.region(view, Rect(0, 0, *size), CPU).numpy()


def test_region_is_that_part_of_the_photograph(tmp_path: Path) -> None:
    content = pixels(0)
    source = source_of(photograph(tmp_path, content))
    region = source.region(0, Rect(5, 7, 20, 9), CPU)
    assert region.dtype == torch.uint8
    np.testing.assert_array_equal(region, content[7:9, 5:20])
    assert source.mask(0, Rect(5, 7, 20, 9), CPU) is None


def test_writing_into_a_region_leaves_the_photograph(tmp_path: Path) -> None:
    content = pixels(0)
    source = source_of(photograph(tmp_path, content))
    source.region(0, Rect(0, 0, 40, 30), CPU).zero_()
    np.testing.assert_array_equal(whole(source), content)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, (40, 30)), ((80, 80), (40, 30)), ((20, 80), (20, 15)), ((40, 10), (13, 10)), ((1, 1), (1, 1))],
)
def test_images_are_reduced_to_fit_inside_and_never_enlarged(
    size: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    camera = reduced(CAMERA, size)
    assert (camera.width, camera.height) == expected
    assert camera.cx / camera.width == pytest.approx(CAMERA.cx / CAMERA.width)
    assert camera.fy / camera.height == pytest.approx(CAMERA.fy / CAMERA.height)


def test_reduced_image_keeps_its_brightness_and_place(tmp_path: Path) -> None:
    content = np.zeros((30, 40, 3), dtype=np.uint8)
    content[:, 20:] = 200
    reduced_image = whole(source_of(photograph(tmp_path, content), size=(20, 20)), size=(20, 15))
    assert reduced_image.shape == (15, 20, 3)
    assert reduced_image.mean() == pytest.approx(100, abs=1)
    assert reduced_image[:, :8].max() <= 5
    assert reduced_image[:, 12:].min() >= 195


def test_images_are_decoded_on_first_use_and_kept_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [pixels(i) for i in range(4)]
    photographs = [photograph(tmp_path, content, f"{i}.png") for i, content in enumerate(contents)]
    decoded = []
    load = Image.Image.convert
    monkeypatch.setattr(Image.Image, "convert", lambda self, mode: decoded.append(mode) or load(self, mode))
    one = contents[0].nbytes
    source = source_of(*photographs, cache=2 * one)
    assert (decoded, source.cached_bytes) == ([], 0)
    for view in (0, 1, 0, 2):
        np.testing.assert_array_equal(whole(source, view), contents[view])
        assert source.cached_bytes <= 2 * one
    assert len(decoded) == 3
    whole(source, 0)  # used more recently than view 1
    assert len(decoded) == 3
    whole(source, 1)
    assert len(decoded) == 4


def test_an_image_larger_than_the_bound_is_still_read(tmp_path: Path) -> None:
    contents = [pixels(0), pixels(1)]
    source = source_of(*(photograph(tmp_path, c, f"{i}.png") for i, c in enumerate(contents)), cache=10)
    for view in (0, 1):
        np.testing.assert_array_equal(whole(source, view), contents[view])
    assert source.cached_bytes == contents[1].nbytes


def test_mask_is_read_beside_the_image_and_reduced_by_its_mean(tmp_path: Path) -> None:
    mask = np.full((30, 40), 255, dtype=np.uint8)
    mask[:, :10] = 0
    mask[:, 10:11] = 128
    source = source_of(photograph(tmp_path, pixels(0), mask=mask))
    np.testing.assert_array_equal(source.mask(0, Rect(8, 0, 13, 2), CPU), mask[:2, 8:13])
    half = source_of(photograph(tmp_path, pixels(0), mask=mask), size=(20, 15))
    found = half.mask(0, Rect(0, 0, 20, 15), CPU)
    assert found is not None
    assert found[0, 3:7].tolist() == pytest.approx([0, 0, 192, 255], abs=1)


def test_a_mask_that_hides_nothing_is_none(tmp_path: Path) -> None:
    source = source_of(photograph(tmp_path, pixels(0), mask=np.full((30, 40), 255, dtype=np.uint8)))
    assert source.mask(0, Rect(0, 0, 40, 30), CPU) is None


def test_transparent_pixels_are_laid_on_black_and_grey_becomes_colour(tmp_path: Path) -> None:
    content = pixels(0, (30, 40, 4))
    content[..., 3] = 255
    content[:10, :, 3] = 0
    found = whole(source_of(photograph(tmp_path, content)))
    assert not found[:10].any()
    np.testing.assert_array_equal(found[10:], content[10:, :, :3])
    grey = pixels(1, (30, 40))
    np.testing.assert_array_equal(whole(source_of(photograph(tmp_path, grey)))[..., 2], grey)


def test_deep_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.png: image has mode I;16; expected 8 bits"):
        check_sizes([photograph(tmp_path, pixels(0, (30, 40)).astype(np.uint16) * 200)])


def damage_by_removal(file: Path) -> None:
    file.unlink()


def damage_by_emptying(file: Path) -> None:
    file.write_bytes(b"")


def damage_by_text(file: Path) -> None:
    file.write_text("no image")


def damage_by_size(file: Path) -> None:
    Image.new("RGB", (30, 40)).save(file)


@pytest.mark.parametrize("name", ["a.png", "mask.png"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_by_removal, "image is missing"),
        (damage_by_emptying, r"image file is empty \(0 bytes\)"),
        (damage_by_text, "cannot be read as an image"),
        (damage_by_size, "is 30x40 pixels; its camera expects 40x30"),
    ],
)
def test_damaged_images_and_masks_are_refused_when_loading_and_when_reading(
    tmp_path: Path, name: str, damage, message: str
) -> None:
    taken = photograph(tmp_path, pixels(0), mask=pixels(1, (30, 40)))
    source = source_of(taken)
    damage(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: {message}"):
        check_sizes([taken])
    with pytest.raises(UserError, match=f"{name}: {message}"):
        whole(source)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_truncated_images_are_refused_when_read(tmp_path: Path, name: str) -> None:
    taken = photograph(tmp_path, pixels(0), name)
    content = taken.file.read_bytes()
    taken.file.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(UserError, match=f"{name}: cannot be decoded"):
        whole(source_of(taken))


def pattern(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A smooth image over normalised camera coordinates."""
    return 127 + 60 * np.sin(9 * x + 1) * np.cos(8 * y) + 50 * np.sin(5 * y + 2 * x)


def distorted(ray: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """Where the lens puts a ray, normalised coordinates [2, H, W] (OpenCV's documentation of calib3d)."""
    k1, k2, p1, p2, k3, k4, k5, k6 = coefficients
    x, y = ray
    r2 = x * x + y * y
    radial = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
    across = 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
    down = p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    return np.stack([x * radial + across, y * radial + down])


@pytest.mark.parametrize(
    "coefficients",
    [
        (-0.2, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        (0.1, 0.0, 0.02, -0.03, 0.0, 0.0, 0.0, 0.0),
        (0.3, 0.1, 0.01, 0.01, 0.02, 0.2, 0.05, 0.01),
    ],
)
def test_undistorted_image_is_what_the_pinhole_camera_sees(tmp_path: Path, coefficients: tuple[float, ...]) -> None:
    """The distorted photograph is made by inverting the distortion at each pixel; the principal point is off centre."""
    camera = Camera(200, 150, 220.0, 210.0, 80.0, 90.0, np.eye(4))
    x, y = np.meshgrid(np.arange(200) + 0.5, np.arange(150) + 0.5)
    seen = np.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy])
    rays = seen.copy()
    for _ in range(200):
        rays += seen - distorted(rays, coefficients)
    assert np.abs(distorted(rays, coefficients) - seen).max() < 1e-6
    taken = np.repeat(pattern(*rays)[..., None], 3, axis=2).round().astype(np.uint8)
    Image.fromarray(taken).save(tmp_path / "a.png")
    source = source_of(Photograph("a.png", tmp_path / "a.png", camera, coefficients))
    rect = Rect(0, 0, 200, 150)
    found = source.region(0, rect, CPU).numpy()[..., 0].astype(float)
    expected = pattern(*seen)
    mask = source.mask(0, rect, CPU)
    valid = np.ones((150, 200), dtype=bool) if mask is None else mask.numpy() == 255
    assert valid.mean() > 0.8
    assert np.abs(found - expected)[valid].mean() < 0.6
    assert np.abs(taken[..., 0] - expected)[valid].mean() > 1


def test_pixels_beyond_a_distorted_photograph_are_masked(tmp_path: Path) -> None:
    taken = photograph(tmp_path, pixels(0), mask=np.full((30, 40), 255, dtype=np.uint8))
    bent = replace(taken, coefficients=(0.8, 0, 0, 0, 0, 0, 0, 0))
    for variant in (bent, replace(bent, mask=None)):
        mask = source_of(variant).mask(0, Rect(0, 0, 40, 30), CPU)
        assert mask is not None
        assert (mask[0, 0], mask[-1, -1], mask[16, 18]) == (0, 0, 255)


def test_distortion_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    taken = replace(photograph(tmp_path, pixels(0)), coefficients=(1e308, 1e308, 0, 0, 0, 0, 0, 0))
    with pytest.raises(UserError, match=r"a\.png: .*leads to no finite pixel"):
        whole(source_of(taken))
