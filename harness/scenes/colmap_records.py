"""What COLMAP's files hold, whichever form they have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.errors import UserError
from harness.scenes.distortion import PARAMETER_NAMES, check_model, pinhole

MODELS = {
    0: "SIMPLE_PINHOLE",
    1: "PINHOLE",
    2: "SIMPLE_RADIAL",
    3: "RADIAL",
    4: "OPENCV",
    5: "OPENCV_FISHEYE",
    6: "FULL_OPENCV",
    7: "FOV",
    8: "SIMPLE_RADIAL_FISHEYE",
    9: "RADIAL_FISHEYE",
    10: "THIN_PRISM_FISHEYE",
    11: "RAD_TAN_THIN_PRISM_FISHEYE",
}
"""Model numbers of COLMAP's binary files."""


@dataclass(frozen=True)
class CameraRecord:
    """width, height: pixels. parameters: by name, pixels and OpenCV's coefficients."""

    model: str
    width: int
    height: int
    parameters: dict[str, float]


@dataclass(frozen=True)
class ImageRecord:
    """world_to_camera: [4, 4] float64. keypoints: [K, 2] float64 pixels. point_ids: [K] int64, -1 for no point."""

    image_id: int
    camera_id: int
    name: str
    world_to_camera: np.ndarray
    keypoints: np.ndarray
    point_ids: np.ndarray


@dataclass(frozen=True)
class PointRecords:
    """ids: [P] int64. positions: [P, 3] float64. colours: [P, 3] uint8."""

    ids: np.ndarray
    positions: np.ndarray
    colours: np.ndarray


def camera_record(model: str, width: int, height: int, values: tuple[float, ...]) -> CameraRecord:
    """A checked camera; UserError (without the file) for what no camera has."""
    check_model(model)
    names = PARAMETER_NAMES[model]
    if len(values) != len(names):
        raise UserError(f"{model} camera has {len(values)} parameters; expected {len(names)}: {' '.join(names)}")
    parameters = dict(zip(names, values, strict=True))
    pinhole(width, height, parameters, np.eye(4))
    return CameraRecord(model, width, height, parameters)


def world_to_camera(quaternion: tuple[float, ...], translation: tuple[float, ...]) -> np.ndarray:
    """[4, 4] float64 of a quaternion (w x y z, any length but zero) and a translation; UserError without the file."""
    q = np.array(quaternion, dtype=np.float64)
    t = np.array(translation, dtype=np.float64)
    if not (np.isfinite(q).all() and np.isfinite(t).all()):
        raise UserError(f"pose {quaternion} {translation}; expected finite numbers")
    largest = np.abs(q).max()
    if largest == 0:
        raise UserError("the quaternion is zero; expected w x y z of a rotation")
    q = q / largest
    w, x, y, z = q / np.linalg.norm(q)
    matrix = np.eye(4)
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:3, 3] = t
    return matrix
