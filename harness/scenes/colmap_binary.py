"""COLMAP's binary files (its documentation, "Output Format"): little endian, no header, a count and records.

Every count is checked against what is left of the file before anything of its size is made.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.scenes.colmap_records import (
    MODELS,
    CameraRecord,
    ImageRecord,
    PointRecords,
    camera_record,
    world_to_camera,
)
from harness.scenes.distortion import PARAMETER_NAMES, check_model

ENDING = "bin"

_COUNT = struct.Struct("<Q")
_CAMERA = struct.Struct("<IiQQ")
_IMAGE = struct.Struct("<I4d3dI")
_TRACK_LENGTH_OFFSET = 43
_TRACK_ENTRY_BYTES = 8
_KEYPOINT = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
_POINT = np.dtype([("id", "<i8"), ("xyz", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("track", "<u8")])
_MAX_NAME_BYTES = 4096
_PIECE = 1 << 16
"""Points gathered at once."""


class _File:
    """A mapped file and a position in it; every read is checked against the file's end."""

    def __init__(self, path: Path):
        self.path = path
        self.size = path.stat().st_size
        if self.size < _COUNT.size:
            raise UserError(
                f"is {self.size} bytes long; expected a COLMAP file, which starts with an 8-byte count", path
            )
        with path.open("rb") as stream:
            self.data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.position = 0

    def count(self, what: str, smallest: int) -> int:
        """A count of records of at least `smallest` bytes."""
        (count,) = self.read(_COUNT, f"the number of {what}")
        if count * smallest > self.size - self.position:
            raise UserError(
                f"announces {count} {what}, {count * smallest} bytes or more, but only {self.size - self.position} "
                "are left: cut short, or no COLMAP file",
                self.path,
            )
        return count

    def read(self, record: struct.Struct, what: str) -> tuple:
        self.skip(record.size, what)
        return record.unpack_from(self.data, self.position - record.size)

    def skip(self, length: int, what: str) -> int:
        """Move past so many bytes; where they started."""
        start = self.position
        if length > self.size - start:
            raise UserError(f"ends at byte {self.size}, within {what}: cut short, or no COLMAP file", self.path)
        self.position = start + length
        return start

    def name(self) -> str:
        end = self.data.find(b"\0", self.position, self.position + _MAX_NAME_BYTES)
        if end < 0:
            raise UserError(f"byte {self.position}: expected an image's name that ends in a zero byte", self.path)
        raw = self.data[self.position : end]
        self.position = end + 1
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"image name {raw[:40]!r} is not UTF-8", self.path) from error

    def end(self) -> None:
        if self.position != self.size:
            raise UserError(
                f"{self.size - self.position} bytes follow the last record; expected the file to end at byte "
                f"{self.position}",
                self.path,
            )


def read_cameras(path: Path) -> dict[int, CameraRecord]:
    """Cameras by id."""
    file = _File(path)
    cameras: dict[int, CameraRecord] = {}
    for _ in range(file.count("cameras", _CAMERA.size)):
        camera_id, model_id, width, height = file.read(_CAMERA, "a camera")
        if camera_id in cameras:
            raise UserError(f"camera {camera_id} occurs twice", path)
        try:
            if model_id not in MODELS:
                raise UserError(f"unknown camera model {model_id}; expected one of {_known_models()}")
            model = MODELS[model_id]
            check_model(model)
            values = file.read(struct.Struct(f"<{len(PARAMETER_NAMES[model])}d"), f"camera {camera_id}")
            cameras[camera_id] = camera_record(model, width, height, values)
        except UserError as error:
            if error.file is not None:
                raise
            raise UserError(f"camera {camera_id}: {error}", path) from error
    file.end()
    return cameras


def read_images(path: Path) -> list[ImageRecord]:
    """Images in the order of the file; keypoints are views of the mapped file."""
    file = _File(path)
    images = []
    for _ in range(file.count("images", _IMAGE.size + 1 + _COUNT.size)):
        image_id, *pose, camera_id = file.read(_IMAGE, "an image")
        name = file.name()
        count = file.count(f"keypoints of image {name!r}", _KEYPOINT.itemsize)
        start = file.skip(count * _KEYPOINT.itemsize, f"the keypoints of image {name!r}")
        keypoints = np.frombuffer(file.data, _KEYPOINT, count, start)
        try:
            matrix = world_to_camera(tuple(pose[:4]), tuple(pose[4:]))
        except UserError as error:
            raise UserError(f"image {name!r}: {error}", path) from error
        images.append(ImageRecord(image_id, camera_id, name, matrix, keypoints["xy"], keypoints["point"]))
    file.end()
    return images


def read_points(path: Path) -> PointRecords:
    """Points in the order of the file; tracks are skipped."""
    file = _File(path)
    count = file.count("points", _POINT.itemsize)
    starts = np.empty(count, dtype=np.int64)
    for i in range(count):
        starts[i] = file.skip(_POINT.itemsize, f"point {i + 1} of {count}")
        (length,) = _COUNT.unpack_from(file.data, int(starts[i]) + _TRACK_LENGTH_OFFSET)
        file.skip(length * _TRACK_ENTRY_BYTES, f"the track of point {i + 1} of {count}")
    file.end()
    raw = np.frombuffer(file.data, np.uint8)
    points = np.empty(count, dtype=_POINT)
    columns = np.arange(_POINT.itemsize)
    for lo in range(0, count, _PIECE):
        piece = raw[starts[lo : lo + _PIECE, None] + columns]
        points[lo : lo + _PIECE] = piece.view(_POINT)[:, 0]
    return PointRecords(points["id"], points["xyz"], points["rgb"])


def _known_models() -> str:
    return ", ".join(f"{number} ({name})" for number, name in MODELS.items() if name in PARAMETER_NAMES)
