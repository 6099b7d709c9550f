"""From a scene's specification to the Scene: the one entry for photographs, saved models and the city."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from cuda_src.camera import Camera
from harness.errors import UserError
from harness.scenes.city import city_scene
from harness.scenes.colmap import find_model, read_colmap
from harness.scenes.fill import filled
from harness.scenes.photographs import Photograph, PhotographSource, check_ends, check_sizes, hash_file, reduced
from harness.scenes.ply import read_gaussians
from harness.scenes.points import chosen_points, points_in_view, scattered_points
from harness.scenes.scene import HOLD_OUT, PointCloud, Scene, camera_extent
from harness.scenes.tile import tiled
from harness.scenes.transforms import find_transforms, read_transforms
from harness.suite.cell import SceneSpec

RANDOM_POINTS = 100_000
"""Initial points of a scene that brings none (Kerbl et al. 2023, released code, for NeRF's synthetic scenes)."""

_MAX_CREDIT = 200


def load_scene(
    spec: SceneSpec, size: tuple[int, int] | None, device: torch.device, prepared: Path | None = None
) -> Scene:
    """The scene of a cell.

    size: width and height in pixels of the city's images; photographs are reduced to fit inside, None leaves them as
    they are. device: where the city is generated. prepared: a Gaussian PLY in the place of the scene's own Gaussians.
    Raises UserError for what is missing, damaged or inconsistent.
    """
    if spec.city is not None:
        if size is None:
            raise UserError("size is null; expected [width, height], since the city's images have no size of their own")
        scene = city_scene(spec, size, device)
    elif spec.fill:
        if size is None:
            raise UserError("size is null; expected [width, height], which scene.fill brings photographs to")
        scene = filled(_photograph_scene(spec, None), size)
    else:
        scene = _photograph_scene(spec, size)
    if prepared is not None:
        scene = with_model(scene, prepared)
    elif spec.model is not None:
        scene = with_model(scene, Path(spec.model).expanduser())
    if spec.tile != (1, 1):
        scene = tiled(scene, spec.tile, spec.tile_views)
    return scene


def with_model(scene: Scene, file: Path) -> Scene:
    """The scene with the Gaussians of a PLY in place of its own, its content hash following."""
    gaussians = read_gaussians(file)
    digest = hashlib.sha256(f"{scene.content_hash} model {hash_file(file)}".encode())
    return replace(scene, gaussians=gaussians, content_hash=digest.hexdigest())


def check_scene(spec: SceneSpec) -> None:
    """Raise the UserError that `load_scene` would for the scene's files, without making anything of them."""
    if spec.path is not None:
        path = Path(spec.path).expanduser()
        photographs, _ = _checked_photographs(path, spec.views)
        _extent(tuple(photograph.camera for photograph in photographs), path)
    if spec.model is not None:
        read_gaussians(Path(spec.model).expanduser())


def _photograph_scene(spec: SceneSpec, size: tuple[int, int] | None) -> Scene:
    path = Path(spec.path or "").expanduser()
    folder = path.parent if path.is_file() else path
    photographs, points = _checked_photographs(path, spec.views)
    cameras = tuple(reduced(photograph.camera, size) for photograph in photographs)
    facts: dict[str, object] = {}
    if points is None:
        points = points_in_view(cameras, RANDOM_POINTS, spec.seed)
        facts["points_from"] = f"{RANDOM_POINTS:,} random places in view, since the scene brings none"
    if spec.points is not None:
        points = scattered_points(points, spec.points, spec.seed)
    points = chosen_points(points, spec.gaussians, spec.seed)
    distorted = sum(bool(photograph.coefficients) for photograph in photographs)
    if distorted:
        facts["undistorted"] = f"{distorted} of {len(photographs)} photographs"
    masks = sum(photograph.mask is not None for photograph in photographs)
    if masks:
        facts["masks"] = f"{masks} of {len(photographs)} photographs"
    return Scene(
        name=folder.resolve().name,
        cameras=cameras,
        view_names=tuple(photograph.name for photograph in photographs),
        images=PhotographSource(photographs, cameras),
        points=points,
        gaussians=None,
        extent=_extent(cameras, path),
        content_hash=_content_hash(photographs, cameras, points),
        credit=_credit(folder),
        facts=facts,
    )


def _checked_photographs(path: Path, views: int | None) -> tuple[list[Photograph], PointCloud | None]:
    """The photographs in use, their files looked at, and the points where the scene has them."""
    photographs, points = _read_folder(path)
    photographs = _evenly(photographs, views)
    if len(photographs) < 2:
        raise UserError(f"scene has {len(photographs)} photograph; expected at least 2, since one is held out", path)
    check_sizes(photographs)
    check_ends(photographs)
    return photographs, points


def _read_folder(path: Path) -> tuple[list[Photograph], PointCloud | None]:
    """Photographs sorted by name, and points where the scene has them."""
    if path.is_file():
        if path.suffix != ".json":
            raise UserError("is no scene; expected a folder or a transforms.json", path)
        return read_transforms([path])
    if not path.is_dir():
        raise UserError("scene is missing; expected a COLMAP folder or one with transforms.json", path)
    if (model := find_model(path)) is not None:
        return read_colmap(path, model)
    if files := find_transforms(path):
        return read_transforms(files)
    raise UserError(
        "holds no scene; expected sparse/0/cameras.bin or .txt beside images/, transforms.json, or "
        "transforms_train.json and transforms_test.json",
        path,
    )


def _evenly(photographs: list[Photograph], count: int | None) -> list[Photograph]:
    if count is None or count >= len(photographs):
        return photographs
    return [photographs[i] for i in np.linspace(0, len(photographs) - 1, count).round().astype(int)]


def _extent(cameras: tuple[Camera, ...], path: Path) -> float:
    with np.errstate(all="ignore"):
        extent = camera_extent(tuple(c for v, c in enumerate(cameras) if v % HOLD_OUT != 0))
    if not np.isfinite(extent):
        raise UserError("the cameras lie too far apart for a number to hold", path)
    return extent


def _content_hash(photographs: Sequence[Photograph], cameras: Sequence[Camera], points: PointCloud) -> str:
    """sha256 of everything that decides pixels, cameras and initial points."""
    digest = hashlib.sha256(b"photographs 1")
    files = [f for photograph in photographs for f in (photograph.file, photograph.mask) if f is not None]
    # hashlib lets go of the interpreter lock: photographs are hashed as fast as they can be read.
    with ThreadPoolExecutor(max_workers=4) as pool:
        hashes = dict(zip(files, pool.map(hash_file, files), strict=True))
    for photograph, camera in zip(photographs, cameras, strict=True):
        numbers = (camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy, photograph.coefficients)
        digest.update(repr((photograph.name, photograph.file.stat().st_size, hashes[photograph.file])).encode())
        digest.update(repr((numbers, photograph.mask and hashes[photograph.mask])).encode())
        digest.update(np.ascontiguousarray(camera.world_to_camera, dtype=np.float64).tobytes())
    digest.update(points.positions.tobytes())
    digest.update(points.colours.tobytes())
    return digest.hexdigest()


def _credit(folder: Path) -> str:
    """The first sentence after "Origin:" in README.md, without markup; the folder's name where it says nothing."""
    readme = folder / "README.md"
    if readme.is_file():
        for line in readme.read_text(encoding="utf-8", errors="replace").splitlines():
            plain = re.sub(r"[*`>#\[\]]|^\s*[-+]\s", "", line).strip()
            if plain.lower().startswith("origin:"):
                sentence = re.split(r"\.\s+(?=[A-Z])", plain[len("origin:") :])[0]
                return sentence.strip(" ,;.")[:_MAX_CREDIT]
    return folder.resolve().name
