"""COLMAP's text files (its documentation, "Output Format"): one record a line, two an image, `#` for comments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.scenes.colmap_records import CameraRecord, ImageRecord, PointRecords, camera_record, world_to_camera

ENDING = "txt"


def read_cameras(path: Path) -> dict[int, CameraRecord]:
    """Cameras by id."""
    cameras: dict[int, CameraRecord] = {}
    for number, line in _records(path):
        fields = line.split()
        try:
            if len(fields) < 4:
                raise UserError(f"{len(fields)} fields; expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS[]")
            camera_id = _integer(fields[0], "camera id")
            if camera_id in cameras:
                raise UserError(f"camera {camera_id} occurs twice")
            width, height = _integer(fields[2], "width"), _integer(fields[3], "height")
            values = tuple(_real(field, "camera parameter") for field in fields[4:])
            cameras[camera_id] = camera_record(fields[1], width, height, values)
        except UserError as error:
            raise UserError(str(error), path, number) from error
    return cameras


def read_images(path: Path) -> list[ImageRecord]:
    """Images in the order of the file. The line of keypoints may be empty, and missing after the last image."""
    images = []
    lines = _lines(path)
    for number, line in lines:
        if not line or line.startswith("#"):
            continue
        fields = line.split(maxsplit=9)
        try:
            if len(fields) != 10:
                raise UserError(f"{len(fields)} fields; expected IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME")
            pose = [_real(field, "pose") for field in fields[1:8]]
            matrix = world_to_camera(tuple(pose[:4]), tuple(pose[4:]))
            image_id, camera_id = _integer(fields[0], "image id"), _integer(fields[8], "camera id")
        except UserError as error:
            raise UserError(str(error), path, number) from error
        number, line = next(lines, (number + 1, ""))
        keypoints, ids = _keypoints(line.split(), path, number)
        images.append(ImageRecord(image_id, camera_id, fields[9], matrix, keypoints, ids))
    return images


def read_points(path: Path) -> PointRecords:
    """Points in the order of the file; errors and tracks are skipped."""
    ids, positions, colours = [], [], []
    for number, line in _records(path):
        fields = line.split(maxsplit=8)
        try:
            if len(fields) < 8:
                raise UserError(f"{len(fields)} fields; expected POINT3D_ID X Y Z R G B ERROR TRACK[]")
            ids.append(_integer(fields[0], "point id"))
            positions.append([_real(field, "position") for field in fields[1:4]])
            colours.append([_integer(field, "colour", 255) for field in fields[4:7]])
        except UserError as error:
            raise UserError(str(error), path, number) from error
    return PointRecords(
        np.array(ids, dtype=np.int64),
        np.array(positions, dtype=np.float64).reshape(-1, 3),
        np.array(colours, dtype=np.uint8).reshape(-1, 3),
    )


def _keypoints(fields: list[str], path: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    """[K, 2] float64 and [K] int64 of one line."""
    try:
        if len(fields) % 3:
            raise UserError(f"{len(fields)} fields; expected X Y POINT3D_ID for each keypoint")
        xy = [_real(field, "keypoint") for i, field in enumerate(fields) if i % 3 != 2]
        ids = [-1 if field == "-1" else _integer(field, "point id") for field in fields[2::3]]
    except UserError as error:
        raise UserError(str(error), path, number) from error
    return np.array(xy, dtype=np.float64).reshape(-1, 2), np.array(ids, dtype=np.int64)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers, from 1, and stripped lines."""
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            try:
                yield number, raw.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise UserError("is not UTF-8 text", path, number) from error


def _records(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in _lines(path):
        if line and not line.startswith("#"):
            yield number, line


def _integer(field: str, what: str, largest: int = 2**63 - 1) -> int:
    try:
        value = int(field)
    except ValueError:
        value = -1
    if not 0 <= value <= largest:
        raise UserError(f"{what} is {field[:40]!r}; expected a whole number from 0 to {largest}")
    return value


def _real(field: str, what: str) -> float:
    try:
        value = float(field)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise UserError(f"{what} is {field[:40]!r}; expected a finite number")
    return value
