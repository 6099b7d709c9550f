"""The procedural city as a scene."""

from __future__ import annotations

import hashlib
import json
import math

import torch

from cuda_src.camera import Camera
from harness.errors import UserError
from harness.scenes.anchor import (
    CAMERA_SHARE,
    AnchorGaussians,
    AnchorImages,
    anchor_blocks,
    anchor_cameras,
    anchor_side,
)
from harness.scenes.blocks import city_blocks
from harness.scenes.city_gaussians import CityGaussians, city_points
from harness.scenes.paths import aerial_cameras, street_cameras
from harness.scenes.presets import PRESETS, Preset
from harness.scenes.raycast import CityImages
from harness.scenes.scene import Scene, camera_extent
from harness.suite.cell import SceneSpec

GENERATOR_VERSION = 1
"""Raised whenever the same spec gives other pixels, cameras, points or Gaussians."""


def city_scene(spec: SceneSpec, size: tuple[int, int], device: torch.device) -> Scene:
    """The city of a suite's scene, images of size (width, height) pixels; not yet tiled.

    Gaussians are computed and images cast when they are read, on the reader's device; `device` decides nothing, and
    is there because every kind of scene is made by the same call.
    """
    preset, gaussians, points, views = resolved(spec)
    far = math.inf if spec.far is None else spec.far
    if preset.generator == "anchor":
        return _anchor_scene(spec, preset, gaussians, views, size, far)
    assert points is not None
    city = city_blocks(gaussians, spec.seed)
    make = street_cameras if preset.path == "street" else aerial_cameras
    cameras = make(city, views, size, far)
    source = CityGaussians(city, gaussians)
    open_blocks = int((city.boxes[4] == 0).sum())
    return Scene(
        name=f"city {spec.city} {gaussians:,} Gaussians",
        cameras=cameras,
        view_names=_view_names(preset, cameras),
        images=CityImages(city, cameras),
        points=city_points(city, points),
        gaussians=source,
        extent=camera_extent(cameras),
        content_hash=_content_hash(preset, gaussians, points, views, spec, size),
        facts={
            "side_metres": city.side,
            "blocks": city.blocks**2,
            "open_blocks": open_blocks,
            "tallest_metres": round(city.tallest, 1),
            "spacing_metres": round(source.spacing, 4),
            "path": preset.path,
            "far_metres": spec.far,
        },
    )


def resolved(spec: SceneSpec) -> tuple[Preset, int, int | None, int]:
    """The preset of a city and its numbers of Gaussians, points and views, after what the suite replaces."""
    preset = PRESETS.get(spec.city or "")
    if preset is None:
        raise UserError(f"scene.city: value {spec.city!r}; expected one of {', '.join(PRESETS)}")
    if preset.points is None and spec.points is not None:
        raise UserError(f"scene.points: value {spec.points}; the city {spec.city!r} has no initial points to choose")
    if preset.generator != "anchor" and spec.camera_side is not None:
        raise UserError(
            f"scene.camera_side: value {spec.camera_side}; the cameras of city {spec.city!r} follow its streets"
        )
    points = preset.points if spec.points is None else spec.points
    return preset, spec.gaussians or preset.gaussians, points, spec.views or preset.views


def _anchor_scene(
    spec: SceneSpec, preset: Preset, gaussians: int, views: int, size: tuple[int, int], far: float
) -> Scene:
    side = anchor_side(gaussians) if spec.camera_side is None else spec.camera_side / CAMERA_SHARE
    cameras = anchor_cameras(side, views, preset.path, size, far)
    return Scene(
        name=f"city {spec.city} {gaussians:,} Gaussians",
        cameras=cameras,
        view_names=_view_names(preset, cameras),
        images=AnchorImages(cameras, spec.seed),
        points=None,
        gaussians=AnchorGaussians(gaussians, spec.seed),
        extent=camera_extent(cameras),
        content_hash=_content_hash(preset, gaussians, None, views, spec, size),
        facts={
            "side_metres": anchor_side(gaussians),
            "blocks": anchor_blocks(gaussians) ** 2,
            "path": preset.path,
            "far_metres": spec.far,
            "camera_side_metres": round(CAMERA_SHARE * side, 1),
            "images": "a fixed smooth pattern: the anchor is for timing, not for training",
        },
    )


def _view_names(preset: Preset, cameras: tuple[Camera, ...]) -> tuple[str, ...]:
    return tuple(f"{preset.path}_{view:04d}" for view in range(len(cameras)))


def _content_hash(
    preset: Preset, gaussians: int, points: int | None, views: int, spec: SceneSpec, size: tuple[int, int]
) -> str:
    """Of everything that decides pixels, cameras, points and Gaussians, but for the code behind the version."""
    decides = {
        "version": GENERATOR_VERSION,
        "generator": preset.generator,
        "path": preset.path,
        "gaussians": gaussians,
        "points": points,
        "views": views,
        "seed": spec.seed,
        "far": spec.far,
        "size": list(size),
    } | ({} if spec.camera_side is None else {"camera_side": spec.camera_side})
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
