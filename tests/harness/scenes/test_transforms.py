"""transforms.json in its variants, written here, and the real object scene."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from harness.errors import UserError
from harness.scenes.transforms import find_transforms, read_transforms

SIZE = (40, 30)
LOOKING_DOWN_FROM_5 = [[1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 1, 5], [0, 0, 0, 1]]
"""Camera-to-world, OpenGL axes: at (2, 3, 5), looking along -z, image up along +y."""

NERFSTUDIO: dict[str, Any] = {
    "camera_model": "OPENCV",
    "fl_x": 50.0,
    "fl_y": 51.0,
    "cx": 18.0,
    "cy": 16.0,
    "w": 40,
    "h": 30.0,
    "k1": 0.01,
    "k2": 0.0,
    "p1": 0.0,
    "p2": 0.02,
    "frames": [
        {"file_path": "images/b.png", "transform_matrix": LOOKING_DOWN_FROM_5},
        {"file_path": "./images/a.png", "transform_matrix": LOOKING_DOWN_FROM_5},
    ],
}


def write(folder: Path, document: object, name: str = "transforms.json", images: tuple[str, ...] = ()) -> Path:
    for image in images or ("images/a.png", "images/b.png"):
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", SIZE).save(folder / image)
    file = folder / name
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def changed(frame: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """NERFSTUDIO with other keys; None leaves a key out."""
    document = copy.deepcopy(NERFSTUDIO) | top
    document["frames"][0] |= frame or {}
    document["frames"][0] = {key: value for key, value in document["frames"][0].items() if value is not None}
    return {key: value for key, value in document.items() if value is not None}


def test_nerfstudio_file_is_read_sorted_by_name_with_opencv_axes(tmp_path: Path) -> None:
    photographs, points = read_transforms([write(tmp_path, NERFSTUDIO)])
    assert points is None
    assert [p.name for p in photographs] == ["images/a.png", "images/b.png"]
    camera = photographs[0].camera
    assert (camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy) == (40, 30, 50, 51, 18, 16)
    assert photographs[0].coefficients == (0.01, 0, 0, 0.02, 0, 0, 0, 0)
    np.testing.assert_allclose(camera.centre, [2, 3, 5])
    # Four units below the camera, one to its right and one towards the image's upper side.
    np.testing.assert_allclose(camera.world_to_camera @ [3, 4, 1, 1], [1, -1, 4, 1])


def test_frames_override_the_common_intrinsics(tmp_path: Path) -> None:
    document = changed({"fl_x": 70.0, "k1": 0.0, "p2": 0.0})
    photographs, _ = read_transforms([write(tmp_path, document)])
    assert [p.camera.fx for p in photographs] == [50.0, 70.0]
    assert photographs[1].coefficients == ()


def test_nerf_split_files_are_read_together_with_focal_length_from_the_field_of_view(tmp_path: Path) -> None:
    frame = {"transform_matrix": LOOKING_DOWN_FROM_5}
    for part, angle in (("test", 1.0), ("train", 1.2)):
        document = {"camera_angle_x": angle, "frames": [{"file_path": f"./{part}/r_0", **frame}]}
        write(tmp_path, document, f"transforms_{part}.json", (f"{part}/r_0.png",))
    photographs, _ = read_transforms(find_transforms(tmp_path))
    assert [p.name for p in photographs] == ["test/r_0.png", "train/r_0.png"]
    for photograph, angle in zip(photographs, (1.0, 1.2), strict=True):
        camera = photograph.camera
        assert camera.fx == camera.fy == pytest.approx(20 / math.tan(angle / 2))
        assert (camera.cx, camera.cy, photograph.coefficients) == (20.0, 15.0, ())


def test_one_transforms_file_goes_before_the_split_ones(tmp_path: Path) -> None:
    file = write(tmp_path, NERFSTUDIO)
    write(tmp_path, NERFSTUDIO, "transforms_train.json")
    assert find_transforms(tmp_path) == [file]


def test_matrixcity_scale_is_taken_out_of_rot_mat_and_images_go_by_number(tmp_path: Path) -> None:
    matrix = np.array(LOOKING_DOWN_FROM_5, dtype=float)
    matrix[:3, :3] *= 0.01
    frames = [{"frame_index": index, "rot_mat": matrix.tolist()} for index in (0, 12)]
    file = write(tmp_path, {"camera_angle_x": 0.8, "frames": frames}, images=("0000.png", "0012.png"))
    photographs, _ = read_transforms([file])
    assert [p.name for p in photographs] == ["0000.png", "0012.png"]
    np.testing.assert_allclose(photographs[0].camera.world_to_camera @ [3, 4, 1, 1], [1, -1, 4, 1])


def test_points_and_masks_named_by_the_file_are_read(tmp_path: Path) -> None:
    header = (
        "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    )
    (tmp_path / "cloud.ply").write_text(header + "1 2 3\n")
    document = changed({"mask_path": "own.png"}, ply_file_path="cloud.ply")
    file = write(tmp_path, document, images=("images/a.png", "images/b.png", "masks/a.png", "own.png"))
    photographs, points = read_transforms([file])
    assert points is not None
    np.testing.assert_array_equal(points.positions, [[1, 2, 3]])
    assert [p.mask for p in photographs] == [tmp_path / "masks/a.png", tmp_path / "own.png"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{\n "frames": [\n }\n', r"transforms\.json:3: no JSON"),
        ("[1, 2]", "holds a list"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "frames: expected a list"),
        ('{"frames": []}', "frames: expected a list"),
        ('{"frames": [3]}', "frames: expected a list"),
        (changed(camera_model="OPENCV_FISHEYE"), "frame 1: camera model 'OPENCV_FISHEYE' is not supported"),
        (changed(camera_model="EQUIRECTANGULAR"), "EQUIRECTANGULAR"),
        (changed(camera_model="HOLOGRAM"), "unknown camera model 'HOLOGRAM'"),
        (changed(camera_model=4), "camera_model is 4"),
        (changed(is_fisheye=True), "is_fisheye"),
        (changed(k4=0.1), "k4 is 0.1"),
        (changed(fl_x=None), "no focal length; expected fl_x or camera_angle_x"),
        (changed(fl_x=-1.0), "focal length is -1"),
        (changed(fl_x="wide"), "fl_x is wide; expected a finite number"),
        (changed(fl_x=float("nan")), "fl_x is nan"),
        (changed(fl_x=10**400), "fl_x is 1000.*expected a finite number"),
        (changed(fl_x=None, camera_angle_x=3.5), "camera_angle_x is 3.5; expected radians"),
        (changed(w=40.5), "w is 40.5; expected a whole number"),
        (changed(w=0), "width is 0"),
        (changed({"transform_matrix": None}), "frame 1: no pose; expected transform_matrix or rot_mat"),
        (changed({"transform_matrix": [[1, 2], [3]]}), "transform_matrix: expected 4 x 4"),
        (changed({"transform_matrix": [[math.inf] * 4] * 4}), "transform_matrix: expected 4 x 4 finite"),
        (changed({"transform_matrix": [[0] * 4] * 4}), "a column of the rotation is zero"),
        (changed({"transform_matrix": [[1] * 4] * 4}), "expected a rotation"),
        (changed({"transform_matrix": np.diag([1.0, 1.0, -1.0, 1.0]).tolist()}), "expected a rotation"),
        (changed({"file_path": None}), "file_path is None"),
        (changed({"file_path": "images/none.png"}), "none.png: image is missing"),
        (changed({"file_path": "../a.png"}), "inside the scene's folder"),
        (changed({"file_path": "/a.png"}), "inside the scene's folder"),
        (changed({"file_path": "."}), "inside the scene's folder"),
        (changed({"file_path": "\ud800.png"}), "inside the scene's folder"),
        (changed({"file_path": "x" * 5000}), "image is missing"),
        (changed({"file_path": "images/a.png"}), "occurs twice"),
        (changed(ply_file_path="../cloud.ply"), "inside the scene's folder"),
        (changed(ply_file_path="none.ply"), "PLY file is missing"),
        (changed(ply_file_path=3), "ply_file_path is 3"),
    ],
)
def test_mistakes_are_refused_naming_the_file(tmp_path: Path, document: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_transforms([write(tmp_path, document)])
    assert str(tmp_path) in str(caught.value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = [*NERFSTUDIO, "ply_file_path", "is_fisheye", "k3", "k4", "camera_angle_x"]
FRAME_KEYS = ["file_path", "transform_matrix", "rot_mat", "mask_path", "frame_index", "w", "h", "fl_x"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_end_in_a_user_error_or_are_read(tmp_path: Path, data: st.DataObject) -> None:
    document = copy.deepcopy(NERFSTUDIO)
    for key in data.draw(st.lists(st.sampled_from(KEYS), max_size=2)):
        document[key] = data.draw(JSON_VALUES)
    if document["frames"] and isinstance(document["frames"], list) and isinstance(document["frames"][0], dict):
        for key in data.draw(st.lists(st.sampled_from(FRAME_KEYS), max_size=2)):
            document["frames"][0][key] = data.draw(JSON_VALUES)
    text = json.dumps(document)
    file = write(tmp_path, text[: data.draw(st.just(len(text)) | st.integers(0, len(text)))])
    try:
        photographs, _ = read_transforms([file])
    except UserError as error:
        message = str(error)
    else:
        message = str(tmp_path)
        assert all(np.isfinite(p.camera.world_to_camera).all() for p in photographs)
    assert str(tmp_path) in message


def test_points_of_the_object_scene_lie_inside_its_images(photo_scenes: Path) -> None:
    photographs, points = read_transforms(find_transforms(photo_scenes / "object_banana_nerf"))
    assert points is not None
    assert (len(photographs), len(points.positions)) == (15, 7_375)
    centres = np.stack([p.camera.centre for p in photographs])
    assert np.linalg.norm(centres, axis=1).mean() == pytest.approx(4.0, rel=0.02)
    seen = np.zeros(len(points.positions), dtype=int)
    for photograph in photographs:
        camera = photograph.camera
        local = points.positions @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]
        pixels = local[:, :2] / local[:, 2:] * [camera.fx, camera.fy] + [camera.cx, camera.cy]
        inside = (local[:, 2] > 0) & ((pixels > 0) & (pixels < [camera.width, camera.height])).all(axis=1)
        seen += inside
    # Every point was triangulated from at least three photographs (distortion shifts 1.5 px at most).
    assert (seen >= 3).mean() > 0.99
