"""transforms.json scenes: NeRF's, Nerfstudio's and instant-ngp's, MatrixCity's.

Poses are camera-to-world with OpenGL camera axes (x right, y up, z backwards).
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.scenes.distortion import COEFFICIENTS, check_model, pinhole
from harness.scenes.photographs import Photograph, image_size, is_file, path_inside
from harness.scenes.ply import read_points
from harness.scenes.points import point_cloud
from harness.scenes.scene import PointCloud

_ENDINGS = (".png", ".jpg", ".jpeg", ".PNG", ".JPG", ".JPEG")
"""Tried in this order where a path has no ending of an image."""

_POSE_KEYS = ("transform_matrix", "rot_mat")
_GL_TO_CV = np.diag([1.0, -1.0, -1.0, 1.0])
_SKEW = 1e-2
"""How far, in its normalised columns' products, a pose written with few digits may be from a rotation."""

_MODEL_NAMES = {"PERSPECTIVE": "PINHOLE", "": "OPENCV"}
"""Other names that files use for the models of COLMAP."""


def find_transforms(folder: Path) -> list[Path]:
    """The files that make up the scene: transforms.json, or NeRF's train and test files together; may be empty."""
    if is_file(folder / "transforms.json"):
        return [folder / "transforms.json"]
    return [file for part in ("train", "test") if is_file(file := folder / f"transforms_{part}.json")]


def read_transforms(files: list[Path]) -> tuple[list[Photograph], PointCloud | None]:
    """Photographs of all files, sorted by name, and the points of the first file that names some.

    Raises UserError, with the frame's number (from 1) where there is one.
    """
    photographs: list[Photograph] = []
    points: PointCloud | None = None
    for file in files:
        document = _document(file)
        for number, frame in enumerate(document["frames"], 1):
            try:
                photographs.append(_photograph(frame, document, file))
            except UserError as error:
                raise error if error.file is not None else UserError(f"frame {number}: {error}", file) from error
        name = document.get("ply_file_path")
        if name is not None and points is None:
            if not isinstance(name, str):
                raise UserError(f"ply_file_path is {name!r}; expected a path", file)
            ply = path_inside(file.parent, name, file)
            points = point_cloud(*read_points(ply), ply)
    photographs.sort(key=lambda photograph: photograph.name)
    for a, b in itertools.pairwise(photographs):
        if a.name == b.name:
            raise UserError(f"image {a.name!r} occurs twice", files[0])
    return photographs, points


def _document(file: Path) -> dict[str, Any]:
    """The file's object, with a list of frames that are objects."""
    try:
        document = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        raise UserError(f"no JSON: {error.msg} (column {error.colno})", file, error.lineno) from error
    except UnicodeDecodeError as error:
        raise UserError(f"no JSON: not UTF-8 text at byte {error.start}", file) from error
    except (RecursionError, ValueError) as error:
        raise UserError("no JSON that can be read: nested too deeply, or a number too long", file) from error
    if not isinstance(document, dict):
        raise UserError(f"holds a {type(document).__name__}; expected an object with frames", file)
    frames = document.get("frames")
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise UserError("frames: expected a list of at least one object", file)
    return document


def _photograph(frame: dict[str, Any], document: dict[str, Any], file: Path) -> Photograph:
    values = {**document, **frame}
    name, path = _image_file(frame, file)
    model = values.get("camera_model", "OPENCV")
    if not isinstance(model, str):
        raise UserError(f"camera_model is {model!r}; expected a name such as OPENCV")
    check_model(_MODEL_NAMES.get(model, model))
    if values.get("is_fisheye"):
        raise UserError("is_fisheye: a fisheye camera is not supported (no pinhole image can stand for it)")
    width, height = _size(values, path)
    parameters = _intrinsics(values, width, height)
    camera, coefficients = pinhole(width, height, parameters, _world_to_camera(frame))
    mask = frame.get("mask_path")
    if mask is not None:
        return Photograph(name, path, camera, coefficients, path_inside(file.parent, str(mask), file))
    beside = path.parent.parent / "masks" / f"{path.stem}.png"
    return Photograph(name, path, camera, coefficients, beside if is_file(beside) else None)


def _image_file(frame: dict[str, Any], file: Path) -> tuple[str, Path]:
    """Name and path of the frame's image; MatrixCity's raw files number it instead of naming it."""
    name = frame.get("file_path")
    if name is None and isinstance(frame.get("frame_index"), int):
        name = f"{frame['frame_index']:04d}"
    if not isinstance(name, str):
        raise UserError(f"file_path is {name!r}; expected the path of an image")
    path = path_inside(file.parent, name, file)
    for candidate in (path, *(path.with_name(path.name + ending) for ending in _ENDINGS)):
        if is_file(candidate):
            return candidate.relative_to(file.parent).as_posix(), candidate
    raise UserError(f"image is missing (named by {file.name}; also tried {' '.join(_ENDINGS)})", path)


def _size(values: dict[str, Any], path: Path) -> tuple[int, int]:
    """Width and height: w and h, or the image's own."""
    if "w" not in values or "h" not in values:
        return image_size(path)
    sides = []
    for key in ("w", "h"):
        side = _number(values, key)
        if not side.is_integer():
            raise UserError(f"{key} is {side}; expected a whole number of pixels")
        sides.append(int(side))
    return sides[0], sides[1]


def _intrinsics(values: dict[str, Any], width: int, height: int) -> dict[str, float]:
    """fx, fy, cx, cy and OpenCV's coefficients.

    Focal lengths from fl_x, else from the field of view: f = w / (2 tan(angle / 2)). The principal point is the
    image's centre where it is not given.
    """
    if "fl_x" in values:
        fx = _number(values, "fl_x")
    elif "camera_angle_x" in values:
        fx = 0.5 * width / math.tan(0.5 * _angle(values, "camera_angle_x"))
    else:
        raise UserError("no focal length; expected fl_x or camera_angle_x")
    if "fl_y" in values:
        fy = _number(values, "fl_y")
    elif "fl_x" not in values and "camera_angle_y" in values:
        fy = 0.5 * height / math.tan(0.5 * _angle(values, "camera_angle_y"))
    else:
        fy = fx
    parameters = {"fx": fx, "fy": fy, "cx": width / 2, "cy": height / 2}
    for key in ("cx", "cy", *(c for c in COEFFICIENTS if c in ("k1", "k2", "k3", "p1", "p2"))):
        if key in values:
            parameters[key] = _number(values, key)
    # Nerfstudio's k4 is a fourth radial term, OpenCV's a denominator: no reader could know which is meant.
    if "k4" in values and _number(values, "k4") != 0:
        raise UserError(f"k4 is {values['k4']}; expected 0 or none: only k1, k2, k3, p1 and p2 are read")
    return parameters


def _angle(values: dict[str, Any], key: str) -> float:
    angle = _number(values, key)
    if not 0 < angle < math.pi:
        raise UserError(f"{key} is {angle}; expected radians between 0 and pi")
    return angle


def _number(values: dict[str, Any], key: str) -> float:
    value = values[key]
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{key} is {str(value)[:40]}; expected a finite number")
    return number


def _world_to_camera(frame: dict[str, Any]) -> np.ndarray:
    """[4, 4] float64, OpenCV axes. Columns of the rotation are normalised: MatrixCity's carry a scale."""
    key = next((key for key in _POSE_KEYS if key in frame), None)
    if key is None:
        raise UserError(f"no pose; expected {' or '.join(_POSE_KEYS)}")
    try:
        pose = np.array(frame[key], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        pose = np.empty(0)
    if pose.shape not in ((4, 4), (3, 4)) or not np.isfinite(pose).all():
        raise UserError(f"{key}: expected 4 x 4 finite numbers")
    columns = pose[:3, :3] / np.abs(pose[:3, :3]).max(initial=np.finfo(float).tiny)
    lengths = np.linalg.norm(columns, axis=0)
    if not lengths.all():
        raise UserError(f"{key}: a column of the rotation is zero")
    columns = columns / lengths
    if np.abs(columns.T @ columns - np.eye(3)).max() > _SKEW or np.linalg.det(columns) < 0:
        raise UserError(f"{key}: expected a rotation, up to the scale of its columns, in the upper left 3 x 3")
    left, _, right = np.linalg.svd(columns)
    camera_to_world = np.eye(4)
    camera_to_world[:3, :3] = left @ right
    camera_to_world[:3, 3] = pose[:3, 3]
    camera_to_world = camera_to_world @ _GL_TO_CV
    rotation = camera_to_world[:3, :3].T
    world_to_camera = np.eye(4)
    world_to_camera[:3, :3] = rotation
    world_to_camera[:3, 3] = -rotation @ camera_to_world[:3, 3]
    return world_to_camera
