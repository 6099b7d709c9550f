"""Lens distortion of photographs: which camera models are read, and how an image is made a pinhole image."""

from __future__ import annotations

import cv2
import numpy as np

from cuda_src.camera import Camera
from harness.errors import UserError

PARAMETER_NAMES = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
    "FULL_OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
}
"""Camera models that are read, with their parameters in COLMAP's order (its documentation, "Camera Models")."""

REFUSED_MODELS = (
    "OPENCV_FISHEYE",
    "FOV",
    "SIMPLE_RADIAL_FISHEYE",
    "RADIAL_FISHEYE",
    "THIN_PRISM_FISHEYE",
    "RAD_TAN_THIN_PRISM_FISHEYE",
    "SIMPLE_FISHEYE",
    "FISHEYE",
    "EQUIRECTANGULAR",
)
"""Known models that no pinhole image can stand for, or that OpenCV's polynomial does not describe."""

COEFFICIENTS = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
"""OpenCV's order (calib3d, "Detailed Description"); k3 is radial, k4 to k6 the denominator."""

MAX_SIDE = 65_535
"""Pixels; the longest side that JPEG can hold. A larger number in a file is a damaged file."""

_MAX_REMAP_SIDE = 32_766
"""cv2.remap addresses pixels with 16-bit integers."""


def check_model(model: str) -> None:
    """UserError when a camera model is refused or unknown."""
    if model in PARAMETER_NAMES:
        return
    expected = f"expected one of {', '.join(PARAMETER_NAMES)}"
    if model in REFUSED_MODELS or "FISHEYE" in model.upper():
        raise UserError(f"camera model {model!r} is not supported (no pinhole image can stand for it); {expected}")
    raise UserError(f"unknown camera model {model!r}; {expected}")


def pinhole(
    width: int,
    height: int,
    parameters: dict[str, float],
    world_to_camera: np.ndarray,  # [4, 4] float64
) -> tuple[Camera, tuple[float, ...]]:
    """The camera of named parameters (f or fx and fy, cx, cy, coefficients), and its OpenCV coefficients.

    Coefficients are empty when all are zero. Raises UserError for sizes, focal lengths or numbers that no camera has.
    """
    for name, value in parameters.items():
        if not np.isfinite(value):
            raise UserError(f"{name} is {value}; expected a finite number")
    for name, side in (("width", width), ("height", height)):
        if not 1 <= side <= MAX_SIDE:
            raise UserError(f"{name} is {side}; expected 1 to {MAX_SIDE} pixels")
    fx = parameters["f"] if "f" in parameters else parameters["fx"]
    fy = parameters["f"] if "f" in parameters else parameters["fy"]
    for value in (fx, fy):
        if value <= 0:
            raise UserError(f"focal length is {value:g}; expected a positive number of pixels")
    coefficients = tuple(parameters.get(name, 0.0) for name in COEFFICIENTS)
    if not any(coefficients):
        coefficients = ()
    elif max(width, height) > _MAX_REMAP_SIDE:
        raise UserError(f"{width}x{height} distorted image; at most {_MAX_REMAP_SIDE} pixels a side can be undistorted")
    return Camera(width, height, fx, fy, parameters["cx"], parameters["cy"], world_to_camera), coefficients


class Undistortion:
    """Maps a distorted image onto the pinhole image of the same size, focal lengths and principal point.

    Pixels of the result that lie outside the photograph have no truth: they repeat the nearest edge, and their
    mask is 0.
    """

    def __init__(self, camera: Camera, coefficients: tuple[float, ...]):
        # OpenCV's pixel centres are at whole numbers, ours at +0.5.
        matrix = np.array([[camera.fx, 0, camera.cx - 0.5], [0, camera.fy, camera.cy - 0.5], [0, 0, 1]])
        size = (camera.width, camera.height)
        with np.errstate(all="ignore"):
            self._x, self._y = cv2.initUndistortRectifyMap(
                matrix, np.array(coefficients), np.eye(3), matrix, size, cv2.CV_32FC1
            )
        if not (np.isfinite(self._x).all() and np.isfinite(self._y).all()):
            raise UserError(f"distortion {coefficients} leads to no finite pixel; expected coefficients near zero")

    def image(self, pixels: np.ndarray) -> np.ndarray:
        """[H, W, 3] uint8, bilinear."""
        return cv2.remap(pixels, self._x, self._y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

    def mask(self, pixels: np.ndarray) -> np.ndarray:
        """[H, W] uint8, nearest pixel, 0 outside the photograph."""
        return cv2.remap(pixels, self._x, self._y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
