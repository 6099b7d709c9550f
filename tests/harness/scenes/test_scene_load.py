from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from harness.errors import UserError
from harness.scenes.load import load_scene
from harness.scenes.ply import write_gaussians
from harness.scenes.scene import Scene
from harness.suite.cell import SceneSpec
from strategies.base import Rect, Shard

CPU = torch.device("cpu")
SIZE = (40, 30)


def ring(folder: Path, count: int = 17, points: int = 50) -> Path:
    """A transforms.json scene: cameras on a circle of radius 2 that look at the origin."""
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    frames = []
    for i in range(count):
        angle = 2 * math.pi * i / count
        backwards = np.array([math.cos(angle), math.sin(angle), 0.0])
        right = np.array([-math.sin(angle), math.cos(angle), 0.0])
        pose = np.eye(4)
        pose[:3, :3] = np.stack([right, [0.0, 0.0, 1.0], backwards], axis=1)
        pose[:3, 3] = 2 * backwards
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(folder / f"images/{i:02d}.png")
        frames.append({"file_path": f"images/{i:02d}.png", "transform_matrix": pose.tolist()})
    document = {"fl_x": 40.0, "cx": 18.0, "cy": 16.0, "frames": frames}
    if points:
        lines = ["ply", "format ascii 1.0", f"element vertex {points}"]
        lines += [*(f"property float {a}" for a in "xyz"), *(f"property uchar {c}" for c in ("red", "green", "blue"))]
        lines += ["end_header", *(f"{x} {y} {z} 1 2 3" for x, y, z in rng.uniform(-0.5, 0.5, (points, 3)))]
        (folder / "points.ply").write_text("\n".join(lines) + "\n")
        document["ply_file_path"] = "points.ply"
    (folder / "transforms.json").write_text(json.dumps(document))
    return folder


def load(path: Path, size: tuple[int, int] | None = None, **spec: object) -> Scene:
    return load_scene(SceneSpec(path=str(path), **spec), size, CPU)


def test_scene_of_photographs_has_every_part(tmp_path: Path) -> None:
    scene = load(ring(tmp_path / "ring"))
    assert scene.name == scene.credit == "ring"
    assert len(scene.cameras) == len(scene.view_names) == 17
    assert scene.test_views == (0, 8, 16)
    assert scene.points is not None
    assert len(scene.points.positions) == 50
    assert scene.gaussians is None
    # Three held-out cameras leave the mean of the others a little off the middle.
    assert scene.extent == pytest.approx(2.2, rel=0.25)
    assert scene.images is not None
    expected = np.asarray(Image.open(tmp_path / "ring/images/03.png"))
    np.testing.assert_array_equal(scene.images.region(3, Rect(0, 0, *SIZE), CPU), expected)


def test_the_file_itself_names_the_same_scene(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    assert load(folder / "transforms.json").content_hash == load(folder).content_hash


def test_images_are_reduced_to_the_size(tmp_path: Path) -> None:
    scene = load(ring(tmp_path / "ring"), (20, 20))
    camera = scene.cameras[0]
    assert (camera.width, camera.height, camera.fx, camera.cx, camera.cy) == (20, 15, 20.0, 9.0, 8.0)
    assert scene.images is not None
    assert scene.images.region(0, Rect.whole(camera), CPU).shape == (15, 20, 3)


def test_views_are_thinned_evenly_before_holding_out(tmp_path: Path) -> None:
    scene = load(ring(tmp_path / "ring"), views=9)
    assert scene.view_names == tuple(f"images/{i:02d}.png" for i in range(0, 17, 2))
    assert scene.test_views == (0, 8)


def test_points_are_limited_by_gaussians(tmp_path: Path) -> None:
    scene = load(ring(tmp_path / "ring"), gaussians=20)
    assert scene.points is not None
    assert len(scene.points.positions) == 20


def test_scenes_without_points_start_from_random_ones(tmp_path: Path) -> None:
    scene = load(ring(tmp_path / "ring", points=0), gaussians=300)
    assert scene.points is not None
    assert len(scene.points.positions) == 300
    assert np.linalg.norm(np.median(scene.points.positions, axis=0)) < 0.2
    assert "random" in str(scene.facts["points_from"])


def test_model_takes_the_place_of_the_gaussians(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    parameters = torch.randn(6, 59)
    moments = torch.zeros(6, 59)
    write_gaussians(tmp_path / "model.ply", iter([Shard(torch.arange(6), parameters, moments, moments)]), 6)
    scene = load(folder, model=str(tmp_path / "model.ply"))
    assert scene.gaussians is not None
    assert torch.equal(scene.gaussians.read(torch.arange(6), CPU), parameters)
    assert scene.points is not None
    assert scene.content_hash != load(folder).content_hash


def test_content_hash_follows_whatever_decides_the_result(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    original = load(folder).content_hash
    assert load(folder).content_hash == original
    hashes = {original, load(folder, (20, 20)).content_hash, load(folder, views=9).content_hash}
    hashes.add(load(folder, gaussians=20).content_hash)
    (folder / "masks").mkdir()
    Image.new("L", SIZE, 0).save(folder / "masks/03.png")
    hashes.add(load(folder).content_hash)
    Image.new("RGB", SIZE).save(folder / "images/03.png")
    hashes.add(load(folder).content_hash)
    transforms = folder / "transforms.json"
    transforms.write_text(transforms.read_text().replace("40.0", "40.001"))
    hashes.add(load(folder).content_hash)
    assert len(hashes) == 7


def test_moving_a_scene_keeps_its_content_hash(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    before = load(folder).content_hash
    assert load(folder.rename(tmp_path / "elsewhere")).content_hash == before


@pytest.mark.parametrize(
    ("readme", "credit"),
    [
        ("# Ring\n\n- **Origin:** [us](https://example.org), under `MIT`.\n", "us(https://example.org), under MIT"),
        ("Origin: made_by_hand,\nand more\n", "made_by_hand"),
        ("Nothing is known.\n", "ring"),
    ],
)
def test_credit_is_the_origin_that_the_readme_names(tmp_path: Path, readme: str, credit: str) -> None:
    folder = ring(tmp_path / "ring")
    (folder / "README.md").write_text(readme)
    assert load(folder).credit == credit


def test_tiles_repeat_the_scene(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    scene = load(folder, tile=[2, 3])
    assert scene.points is not None
    assert len(scene.points.positions) == 6 * 50
    assert scene.content_hash != load(folder).content_hash


def test_points_beyond_the_scenes_own_are_scattered_around_them(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    few, many = load(folder, points=9).points, load(folder, points=120).points
    assert few is not None
    assert many is not None
    assert (len(few.positions), len(many.positions)) == (9, 120)
    assert np.abs(many.positions).max() < 1.0


def test_a_prepared_model_is_repeated_with_the_scene(tmp_path: Path) -> None:
    parameters = torch.zeros((5, 59))
    parameters[:, :3] = torch.rand(5, 3)
    shard = Shard(torch.arange(5), parameters, parameters, parameters)
    write_gaussians(tmp_path / "prepared.ply", iter([shard]), 5)
    spec = SceneSpec(path=str(ring(tmp_path / "ring")), model="none.ply", tile=(2, 2), tile_views="once", views=8)
    scene = load_scene(spec, None, CPU, tmp_path / "prepared.ply")
    assert scene.gaussians is not None
    assert scene.gaussians.count == 20
    assert len(scene.cameras) == 8


def test_photographs_fill_a_size_that_they_do_not_have(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    scene = load(folder, (90, 30), fill=True)
    assert {(camera.width, camera.height) for camera in scene.cameras} == {(90, 30)}
    assert scene.images is not None
    assert scene.images.region(1, Rect(0, 0, 90, 30), CPU).shape == (30, 90, 3)
    with pytest.raises(UserError, match=r"size is null; expected .width, height., which scene.fill"):
        load(folder, None, fill=True)


def test_the_city_is_made_at_the_size() -> None:
    scene = load_scene(SceneSpec(city="small_aerial", gaussians=2000, points=500, views=4), (64, 48), CPU)
    assert (scene.cameras[0].width, scene.cameras[0].height) == (64, 48)
    assert scene.gaussians is not None
    assert scene.gaussians.count == 2000


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none: scene is missing"):
        load(tmp_path / "none")
    with pytest.raises(UserError, match="holds no scene; expected sparse/0"):
        load(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match=r"a\.txt: is no scene"):
        load(tmp_path / "a.txt")


def test_damaged_photographs_are_found_when_loading(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    (folder / "images/05.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"05\.png: image file is empty"):
        load(folder)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.ply: PLY file is missing"):
        load(ring(tmp_path / "ring"), model=str(tmp_path / "none.ply"))


def test_a_single_photograph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 1 photograph; expected at least 2"):
        load(ring(tmp_path / "ring", count=1))


def test_cameras_beyond_all_distances_are_refused(tmp_path: Path) -> None:
    folder = ring(tmp_path / "ring")
    document = json.loads((folder / "transforms.json").read_text())
    document["frames"][3]["transform_matrix"][0][3] = 1e300
    (folder / "transforms.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="too far apart"):
        load(folder)


def test_the_city_needs_a_size() -> None:
    with pytest.raises(UserError, match=r"size is null; expected \[width, height\]"):
        load_scene(SceneSpec(city="small_street"), None, CPU)


@pytest.mark.parametrize(
    ("name", "views", "size", "credit"),
    [
        ("aerial_lewis", 53, (320, 230), "github.com/OpenDroneMap/odm_data_lewis"),
        ("aerial_sheffield", 32, (320, 240), '"Sheffield Park 3"'),
        ("street_lund", 29, (320, 240), "github.com/mapillary/OpenSfM"),
        ("object_banana_nerf", 15, (320, 213), "github.com/pierotofy/dataset_banana"),
    ],
)
def test_photo_scenes_load_reduced(
    photo_scenes: Path, name: str, views: int, size: tuple[int, int], credit: str
) -> None:
    scene = load(photo_scenes / name, (320, 320))
    assert len(scene.cameras) == views
    camera = scene.cameras[1]
    assert (camera.width, camera.height) == size
    assert scene.credit.startswith(credit)
    assert scene.images is not None
    assert 60 < float(scene.images.region(1, Rect.whole(camera), CPU).float().mean()) < 200
