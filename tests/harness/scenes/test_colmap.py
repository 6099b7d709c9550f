"""COLMAP models, written here by a small writer of their own, and the real photo scenes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.spatial.transform import Rotation

from harness.errors import UserError
from harness.scenes.colmap import find_model, read_colmap, read_reconstruction

NUMBERS = {"SIMPLE_PINHOLE": 0, "PINHOLE": 1, "SIMPLE_RADIAL": 2, "RADIAL": 3, "OPENCV": 4, "OPENCV_FISHEYE": 5}
NUMBERS |= {"FULL_OPENCV": 6, "FOV": 7, "NEW_MODEL": 99}
FORMS = pytest.mark.parametrize("form", ["bin", "txt"])


@dataclass(frozen=True)
class CameraLine:
    camera_id: int = 1
    model: str = "PINHOLE"
    size: tuple[int, int] = (40, 30)
    values: tuple[float, ...] = (35.0, 36.0, 19.0, 16.0)


@dataclass(frozen=True)
class ImageLine:
    image_id: int = 1
    quaternion: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)
    translation: tuple[float, ...] = (0.0, 0.0, 2.0)
    camera_id: int = 1
    name: str = "a.png"
    keypoints: tuple[tuple[float, float, int], ...] = ((19.0, 16.0, 7), (3.5, 4.5, -1))


@dataclass(frozen=True)
class PointLine:
    point_id: int = 7
    position: tuple[float, ...] = (0.0, 0.0, 0.0)
    colour: tuple[int, int, int] = (10, 20, 30)
    track: tuple[tuple[int, int], ...] = ((1, 0),)


@dataclass(frozen=True)
class Model:
    cameras: tuple[CameraLine, ...] = (CameraLine(),)
    images: tuple[ImageLine, ...] = (
        ImageLine(),
        ImageLine(2, (0.8, 0.0, 0.6, 0.0), (1.0, 0.0, 3.0), 1, "b.png", ()),
    )
    points: tuple[PointLine, ...] = field(default=(PointLine(), PointLine(9, (1.0, -2.0, 0.5), (255, 0, 1), ())))

    def write(self, folder: Path, form: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (self._binary() if form == "bin" else self._text()).items():
            (folder / name).write_bytes(content)
        return folder

    def _binary(self) -> dict[str, bytes]:
        cameras = struct.pack("<Q", len(self.cameras))
        for c in self.cameras:
            cameras += struct.pack(f"<IiQQ{len(c.values)}d", c.camera_id, NUMBERS[c.model], *c.size, *c.values)
        images = struct.pack("<Q", len(self.images))
        for i in self.images:
            images += struct.pack("<I7dI", i.image_id, *i.quaternion, *i.translation, i.camera_id)
            images += i.name.encode() + b"\0" + struct.pack("<Q", len(i.keypoints))
            images += b"".join(struct.pack("<ddq", *k) for k in i.keypoints)
        points = struct.pack("<Q", len(self.points))
        for p in self.points:
            points += struct.pack("<Q3d3BdQ", p.point_id, *p.position, *p.colour, 0.5, len(p.track))
            points += b"".join(struct.pack("<II", *entry) for entry in p.track)
        return {"cameras.bin": cameras, "images.bin": images, "points3D.bin": points}

    def _text(self) -> dict[str, bytes]:
        def line(*parts: object) -> str:
            return " ".join(str(part) for part in parts) + "\n"

        cameras = "".join(line(c.camera_id, c.model, *c.size, *c.values) for c in self.cameras)
        images = "# two lines an image\n"
        for i in self.images:
            images += line(i.image_id, *i.quaternion, *i.translation, i.camera_id, i.name)
            images += line(*(part for k in i.keypoints for part in k))
        points = "# a point a line\n"
        for p in self.points:
            track = (part for entry in p.track for part in entry)
            points += line(p.point_id, *p.position, *p.colour, 0.5, *track)
        return {"cameras.txt": cameras.encode(), "images.txt": images.encode(), "points3D.txt": points.encode()}


def one_camera(**changes: object) -> Model:
    return Model(cameras=(replace(CameraLine(), **changes),))


def first_image(**changes: object) -> Model:
    return Model(images=(replace(ImageLine(), **changes), Model().images[1]))


@FORMS
def test_model_reads_back_as_written(tmp_path: Path, form: str) -> None:
    read = read_reconstruction(Model().write(tmp_path, form))
    assert read.cameras[1].parameters == {"fx": 35.0, "fy": 36.0, "cx": 19.0, "cy": 16.0}
    assert [image.name for image in read.images] == ["a.png", "b.png"]
    np.testing.assert_array_equal(read.images[0].keypoints, [[19.0, 16.0], [3.5, 4.5]])
    np.testing.assert_array_equal(read.images[0].point_ids, [7, -1])
    rotation = Rotation.from_quat([0.0, 0.6, 0.0, 0.8]).as_matrix()
    np.testing.assert_allclose(read.images[1].world_to_camera[:3, :3], rotation, atol=1e-12)
    np.testing.assert_array_equal(read.images[1].world_to_camera[:3, 3], [1.0, 0.0, 3.0])
    np.testing.assert_array_equal(read.points.ids, [7, 9])
    np.testing.assert_array_equal(read.points.positions, [[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]])
    np.testing.assert_array_equal(read.points.colours, [[10, 20, 30], [255, 0, 1]])


@FORMS
@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        ("SIMPLE_PINHOLE", (35.0, 19.0, 16.0), ()),
        ("SIMPLE_RADIAL", (35.0, 19.0, 16.0, 0.1), (0.1, 0, 0, 0, 0, 0, 0, 0)),
        ("RADIAL", (35.0, 19.0, 16.0, 0.1, 0.2), (0.1, 0.2, 0, 0, 0, 0, 0, 0)),
        ("OPENCV", (35.0, 35.0, 19.0, 16.0, 0.1, 0.2, 0.3, 0.4), (0.1, 0.2, 0.3, 0.4, 0, 0, 0, 0)),
        ("OPENCV", (35.0, 35.0, 19.0, 16.0, 0.0, 0.0, 0.0, 0.0), ()),
        ("FULL_OPENCV", (35.0, 35.0, 19.0, 16.0, 1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 6, 7, 8)),
    ],
)
def test_camera_models_give_opencv_coefficients(
    tmp_path: Path, form: str, model: str, values: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    folder = one_camera(model=model, values=values).write(tmp_path / "sparse", form)
    (tmp_path / "images").mkdir()
    photographs, _ = read_colmap(tmp_path, folder)
    camera = photographs[0].camera
    assert photographs[0].coefficients == expected
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (35.0, 35.0, 19.0, 16.0)


@FORMS
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (one_camera(model="OPENCV_FISHEYE", values=(1.0,) * 8), "OPENCV_FISHEYE.*not supported"),
        (one_camera(model="FOV", values=(1.0,) * 5), "FOV.*not supported"),
        (one_camera(model="NEW_MODEL"), "camera 1: unknown camera model 99|unknown camera model 'NEW_MODEL'"),
        (one_camera(values=(0.0, 36.0, 19.0, 16.0)), "focal length is 0"),
        (one_camera(values=(35.0, -36.0, 19.0, 16.0)), "focal length is -36"),
        (one_camera(values=(float("nan"), 36.0, 19.0, 16.0)), "nan.*expected a finite number"),
        (one_camera(values=(35.0, float("inf"), 19.0, 16.0)), "inf.*expected a finite number"),
        (one_camera(size=(0, 30)), "width is 0"),
        (one_camera(size=(40, 2**40)), "height is 1099511627776"),
        (Model(cameras=(CameraLine(), CameraLine())), "camera 1 occurs twice"),
        (first_image(camera_id=5), "image 'a.png' has the unknown camera 5; known: 1"),
        (first_image(quaternion=(0.0, 0.0, 0.0, 0.0)), "quaternion is zero"),
        (first_image(quaternion=(float("nan"), 0.0, 0.0, 0.0)), "expected.* finite number"),
        (first_image(translation=(0.0, float("inf"), 0.0)), "expected.* finite number"),
        (first_image(keypoints=((1.0, 1.0, 8),)), "keypoint of point 8, which points3D.* lacks"),
        (first_image(name="b.png"), "image 'b.png' .* occurs twice"),
        (first_image(image_id=2), "occurs twice"),
        (Model(images=()), "holds no image"),
        (Model(points=(PointLine(), PointLine())), "point 7 occurs twice"),
    ],
)
def test_impossible_models_are_refused_naming_the_file(tmp_path: Path, form: str, model: Model, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_reconstruction(model.write(tmp_path, form))
    assert str(tmp_path) in str(caught.value)


@FORMS
@pytest.mark.parametrize("name", ["../a.png", "/etc/a.png", "x/../../a.png", "..\\a.png", "C:\\a.png"])
def test_image_paths_must_stay_inside_the_scene(tmp_path: Path, form: str, name: str) -> None:
    folder = first_image(name=name).write(tmp_path / "sparse", form)
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match="expected one inside the scene's folder"):
        read_colmap(tmp_path, folder)


@FORMS
@pytest.mark.parametrize("position", [(float("nan"), 0.0, 0.0), (1e300, 0.0, 0.0)])
def test_points_that_are_not_finite_in_float32_are_refused(
    tmp_path: Path, form: str, position: tuple[float, ...]
) -> None:
    folder = Model(points=(PointLine(position=position),)).write(tmp_path / "sparse", form)
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match="finite number"):
        read_colmap(tmp_path, folder)


@FORMS
@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
def test_missing_files_are_named(tmp_path: Path, form: str, part: str) -> None:
    folder = Model().write(tmp_path / "sparse" / "0", form)
    assert find_model(tmp_path) == folder
    (folder / f"{part}.{form}").unlink()
    with pytest.raises(UserError, match=rf"{part}\."):
        read_reconstruction(folder)


def test_binary_is_read_where_both_forms_exist(tmp_path: Path) -> None:
    one_camera(values=(50.0, 50.0, 1.0, 1.0)).write(tmp_path, "txt")
    assert read_reconstruction(Model().write(tmp_path, "bin")).cameras[1].parameters["fx"] == 35.0


@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
def test_binary_files_cut_anywhere_or_too_long_are_refused(tmp_path: Path, part: str) -> None:
    file = Model().write(tmp_path, "bin") / f"{part}.bin"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=rf"{part}\.bin"):
            read_reconstruction(tmp_path)
    file.write_bytes(whole + b"\0")
    with pytest.raises(UserError, match="1 bytes follow the last record"):
        read_reconstruction(tmp_path)


@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
def test_announced_counts_are_checked_against_the_file(tmp_path: Path, part: str) -> None:
    file = Model().write(tmp_path, "bin") / f"{part}.bin"
    file.write_bytes(struct.pack("<Q", 2**62) + file.read_bytes()[8:])
    with pytest.raises(UserError, match="announces 4611686018427387904"):
        read_reconstruction(tmp_path)


@pytest.mark.parametrize(
    ("part", "line", "text"),
    [
        ("cameras", 1, "1 PINHOLE 40 30 35.0 36.0 19.0"),
        ("cameras", 1, "1 PINHOLE forty 30 35.0 36.0 19.0 16.0"),
        ("cameras", 1, "1 PINHOLE"),
        ("images", 2, "1 1 0 0 0 0 0 2 1"),
        ("images", 2, "1 one 0 0 0 0 0 2 1 a.png"),
        ("images", 3, "19.0 16.0 7 3.5 4.5"),
        ("images", 3, "19.0 16.0 99999999999999999999"),
        ("points3D", 2, "7 0 0 0 10 20 300 0.5"),
        ("points3D", 2, "7 0 0"),
    ],
)
def test_text_mistakes_name_the_line(tmp_path: Path, part: str, line: int, text: str) -> None:
    file = Model().write(tmp_path, "txt") / f"{part}.txt"
    lines = file.read_text().splitlines()
    lines[line - 1] = text
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=rf"{part}\.txt:{line}: "):
        read_reconstruction(tmp_path)


@FORMS
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_end_in_a_user_error_or_are_read(tmp_path: Path, form: str, data: st.DataObject) -> None:
    (tmp_path / "images").mkdir(exist_ok=True)
    folder = Model().write(tmp_path / "sparse", form)
    file = folder / f"{data.draw(st.sampled_from(['cameras', 'images', 'points3D']))}.{form}"
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    try:
        photographs, points = read_colmap(tmp_path, folder)
    except UserError as error:
        message = str(error)
    else:
        message = str(tmp_path)
        assert np.isfinite(points.positions).all()
        assert all(np.isfinite(p.camera.world_to_camera).all() for p in photographs)
    assert str(tmp_path) in message


def test_masks_beside_the_images_are_found(tmp_path: Path) -> None:
    folder = Model().write(tmp_path / "sparse", "bin")
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    Image.new("L", (40, 30), 255).save(tmp_path / "masks" / "b.png")
    photographs, _ = read_colmap(tmp_path, folder)
    assert [photograph.mask for photograph in photographs] == [None, tmp_path / "masks" / "b.png"]


@pytest.mark.parametrize(
    ("scene", "images", "points", "observations", "median", "principal"),
    [
        ("aerial_lewis", 53, 19_417, 91_315, 0.295, (480.0, 345.5)),
        ("aerial_sheffield", 32, 13_492, 80_035, 0.373, (401.3916798569166, 296.94975519483427)),
        ("street_lund", 29, 6_578, 19_049, 0.459, (480.0, 359.5)),
    ],
)
def test_points_of_photo_scenes_project_onto_their_keypoints(
    photo_scenes: Path,
    scene: str,
    images: int,
    points: int,
    observations: int,
    median: float,
    principal: tuple[float, float],
) -> None:
    """The figures are an independent parser's."""
    folder = photo_scenes / scene
    model = find_model(folder)
    assert model is not None
    read = read_reconstruction(model)
    photographs, cloud = read_colmap(folder, model)
    assert (len(photographs), len(cloud.positions)) == (images, points)
    order = np.argsort(read.points.ids)
    errors = []
    for image, photograph in zip(read.images, photographs, strict=True):
        camera = photograph.camera
        assert (camera.cx, camera.cy) == principal
        matched = image.point_ids != -1
        rows = order[np.searchsorted(read.points.ids[order], image.point_ids[matched])]
        local = read.points.positions[rows] @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]
        pixels = local[:, :2] / local[:, 2:] * [camera.fx, camera.fy] + [camera.cx, camera.cy]
        errors.append(np.linalg.norm(pixels - image.keypoints[matched], axis=1))
    residuals = np.concatenate(errors)
    assert len(residuals) == observations
    assert np.median(residuals) == pytest.approx(median, abs=0.001)
