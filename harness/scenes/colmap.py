"""COLMAP reconstructions: cameras, images and points, binary or text, checked as one consistent whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.scenes import colmap_binary, colmap_text
from harness.scenes.colmap_records import CameraRecord, ImageRecord, PointRecords
from harness.scenes.distortion import pinhole
from harness.scenes.photographs import Photograph, is_file, path_inside
from harness.scenes.points import point_cloud
from harness.scenes.scene import PointCloud


@dataclass(frozen=True)
class Reconstruction:
    """One COLMAP model. images: sorted by name. points: in the order of the file."""

    cameras: dict[int, CameraRecord]
    images: tuple[ImageRecord, ...]
    points: PointRecords


def find_model(folder: Path) -> Path | None:
    """The folder of a scene's model: sparse/0 or sparse; None where the scene is no COLMAP scene."""
    for model in (folder / "sparse" / "0", folder / "sparse"):
        if any(is_file(model / f"cameras.{ending}") for ending in ("bin", "txt")):
            return model
    return None


def read_reconstruction(model: Path) -> Reconstruction:
    """Read cameras, images and points3D; the binary form where both exist, as COLMAP does.

    Raises UserError for damaged or inconsistent files.
    """
    reader = colmap_binary if is_file(model / "cameras.bin") else colmap_text
    files = [model / f"{part}.{reader.ENDING}" for part in ("cameras", "images", "points3D")]
    for file in files:
        if not is_file(file):
            raise UserError(f"COLMAP file is missing; expected {', '.join(f.name for f in files)} in one folder", file)
    cameras_file, images_file, points_file = files
    cameras = reader.read_cameras(cameras_file)
    images = reader.read_images(images_file)
    points = reader.read_points(points_file)
    _check_images(images, cameras, images_file)
    _check_keypoints(images, points, images_file, points_file)
    return Reconstruction(cameras, tuple(sorted(images, key=lambda image: image.name)), points)


def read_colmap(folder: Path, model: Path) -> tuple[list[Photograph], PointCloud]:
    """The photographs, sorted by name, and the points of a COLMAP scene (images/, optional masks/)."""
    reconstruction = read_reconstruction(model)
    images = folder / "images"
    if not images.is_dir():
        raise UserError("folder of the scene's photographs is missing", images)
    masks = folder / "masks"
    photographs = []
    for image in reconstruction.images:
        record = reconstruction.cameras[image.camera_id]
        camera, coefficients = pinhole(record.width, record.height, record.parameters, image.world_to_camera)
        mask = path_inside(masks, image.name, model).with_suffix(".png")
        file = path_inside(images, image.name, model)
        photographs.append(Photograph(image.name, file, camera, coefficients, mask if is_file(mask) else None))
    points = reconstruction.points
    return photographs, point_cloud(points.positions, points.colours, model)


def _check_images(images: list[ImageRecord], cameras: dict[int, CameraRecord], file: Path) -> None:
    if not images:
        raise UserError("holds no image; expected at least one registered image", file)
    ids: set[int] = set()
    names: set[str] = set()
    for image in images:
        if image.camera_id not in cameras:
            known = ", ".join(str(i) for i in sorted(cameras)[:8]) or "none"
            raise UserError(f"image {image.name!r} has the unknown camera {image.camera_id}; known: {known}", file)
        if image.image_id in ids or image.name in names:
            raise UserError(f"image {image.name!r} (id {image.image_id}) occurs twice", file)
        ids.add(image.image_id)
        names.add(image.name)


def _check_keypoints(images: list[ImageRecord], points: PointRecords, images_file: Path, points_file: Path) -> None:
    known = np.sort(points.ids)
    if known.size and (repeated := known[1:][known[1:] == known[:-1]]).size:
        raise UserError(f"point {repeated[0]} occurs twice", points_file)
    for image in images:
        ids = image.point_ids[image.point_ids != -1]
        unknown = ids[~np.isin(ids, known)]
        if unknown.size:
            raise UserError(
                f"image {image.name!r} has a keypoint of point {unknown[0]}, which {points_file.name} lacks",
                images_file,
            )
