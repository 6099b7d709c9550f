"""Any scene, repeated over a grid: more Gaussians and views of the same kind."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from cuda_src.camera import Camera
from cuda_src.layout import MEAN
from harness.scenes.scene import PointCloud, Scene
from strategies.base import GaussianSource, ImageSource, Rect

ROBUST_PERCENTILES = (1.0, 99.0)
"""A scene's size leaves out stray points: between these percentiles of each coordinate."""
INNER_PERCENTILES = (5.0, 95.0)
"""What lies between these along every coordinate shows where the ground is."""
FLAT = 0.2
"""Largest spread across the ground, as a share of that along it: a scene that is flatter has a ground."""
LEVEL = 0.996
"""Cosine of 5 degrees: a ground that slopes less is one of the coordinate planes."""
MOST_HELD = 1 << 22
"""Gaussians of a copy that stay on the device between two reads, 1 GB: readers ask for each of them once a copy."""
_SAMPLE = 100_000
"""Gaussians looked at for the size, evenly spread over the ids."""


class TiledGaussians:
    """GaussianSource of several copies of another, copy after copy: id = copy * count + id in the copy."""

    def __init__(self, source: GaussianSource, offsets: np.ndarray):
        """offsets: [C, 3] float32, added to the means of each copy."""
        self._source = source
        self._offsets = torch.from_numpy(offsets)
        self._held: dict[torch.device, torch.Tensor] = {}

    @property
    def count(self) -> int:
        return self._source.count * len(self._offsets)

    @property
    def bounds(self) -> np.ndarray:
        """[2, 3] float32."""
        low, high = self._source.bounds
        offsets = self._offsets.numpy()
        return np.stack([low + offsets.min(axis=0), high + offsets.max(axis=0)])

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        """Means of ids lo:hi, [hi - lo, 3] float32 on the CPU."""
        out = torch.empty(hi - lo, 3)
        size = self._source.count
        at, whole = lo, None
        while at < hi:
            copy, start = divmod(at, size)
            stop = min(size, start + hi - at)
            if stop - start < size:
                own = self._source.positions(start, stop)
            else:
                own = whole = self._source.positions(0, size) if whole is None else whole
            out[at - lo : at - lo + stop - start] = own + self._offsets[copy]
            at += stop - start
        return out

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Parameters of those ids, [n, 59] float32 on the device."""
        there = indices.to(device)
        copy = torch.div(there, self._source.count, rounding_mode="floor")
        within = there - copy * self._source.count
        if self._source.count <= MOST_HELD:
            rows = self._of_a_copy(torch.device(device))[within]
        else:
            rows = self._source.read(within, device)
        rows[:, MEAN] += self._offsets.to(device)[copy]
        return rows

    def _of_a_copy(self, device: torch.device) -> torch.Tensor:
        """All Gaussians of the source, [count, 59], kept there."""
        if device not in self._held:
            self._held[device] = self._source.read(torch.arange(self._source.count), device)
        return self._held[device]


class TiledImages:
    """ImageSource of several copies of a scene: each copy's cameras see the scene's own photographs."""

    def __init__(self, source: ImageSource, views: int):
        self._source = source
        self._views = views

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        """Those pixels of the photograph that the view is a copy of, [h, w, 3] uint8."""
        return self._source.region(view % self._views, rect, device)

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        """Those pixels of its mask, [h, w] uint8, or None."""
        return self._source.mask(view % self._views, rect, device)


def tiled(scene: Scene, repeats: tuple[int, int], views: Literal["every", "once"] = "every") -> Scene:
    """The scene repeated a x b times along its two horizontal axes, copies a robust size apart.

    The horizontal axes are the two along which the scene extends furthest, laid on the ground where that slopes.
    Points, Gaussians and cameras move; images are shared. views: of every copy, or each view once, in copies spread
    evenly over the grid. The extent, which scales steps, stays that of one copy. (1, 1) is the scene itself.
    """
    if repeats == (1, 1):
        return scene
    offsets = _offsets(scene, repeats)
    count = len(scene.cameras)
    if views == "every":
        kept = [(copy, view) for copy in range(len(offsets)) for view in range(count)]
    else:
        kept = [(view * len(offsets) // count, view) for view in range(count)]
    cameras = tuple(_moved(scene.cameras[view], offsets[copy]) for copy, view in kept)
    names = tuple(f"{copy}/{scene.view_names[view]}" for copy, view in kept)
    points = scene.points
    if points is not None:
        places = points.positions[None] + offsets[:, None]
        points = PointCloud(places.reshape(-1, 3), np.tile(points.colours, (len(offsets), 1)))
    digest = hashlib.sha256(f"{scene.content_hash} tiled {repeats[0]} x {repeats[1]} {views}".encode())
    digest.update(offsets.tobytes())
    return replace(
        scene,
        name=f"{scene.name}, tiled {repeats[0]} x {repeats[1]}",
        cameras=cameras,
        view_names=names,
        images=None if scene.images is None else TiledImages(scene.images, len(scene.cameras)),
        points=points,
        gaussians=None if scene.gaussians is None else TiledGaussians(scene.gaussians, offsets),
        content_hash=digest.hexdigest(),
        facts=scene.facts | {"tile": list(repeats), "tile_offset": [float(v) for v in offsets[-1]]},
    )


def _offsets(scene: Scene, repeats: tuple[int, int]) -> np.ndarray:
    """Where the copies lie, [a * b, 3] float32; the first stays in place."""
    places = _places(scene)
    low, high = np.percentile(places, ROBUST_PERCENTILES, axis=0)
    axes = np.eye(3)[sorted(np.argsort(high - low)[-2:])]
    normal = _ground_normal(places)
    if normal is not None:
        axes = axes - (axes @ normal)[:, None] * normal
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    low, high = np.percentile(places @ axes.T, ROBUST_PERCENTILES, axis=0)
    steps = (high - low)[:, None] * axes
    offsets = np.arange(repeats[0])[:, None, None] * steps[0] + np.arange(repeats[1])[None, :, None] * steps[1]
    return offsets.reshape(-1, 3).astype(np.float32)


def _ground_normal(places: np.ndarray) -> np.ndarray | None:
    """[3], across the plane that the inner places lie near; None where there is none, or it is nearly level."""
    low, high = np.percentile(places, INNER_PERCENTILES, axis=0)
    inner = places[((places >= low) & (places <= high)).all(axis=1)].astype(np.float64)
    if len(inner) < 3:
        return None
    _, spread, directions = np.linalg.svd(inner - inner.mean(axis=0), full_matrices=False)
    normal = directions[2]
    flat = spread[2] <= FLAT * spread[1]
    return normal if flat and np.abs(normal).max() < LEVEL else None


def _places(scene: Scene) -> np.ndarray:
    """Positions that stand for the scene's size, [n, 3]: of its Gaussians, else its points, else its cameras."""
    if scene.gaussians is not None:
        count = scene.gaussians.count
        ids = torch.arange(0, count, max(1, count // _SAMPLE), dtype=torch.int64)
        return scene.gaussians.read(ids, torch.device("cpu"))[:, MEAN].numpy()
    if scene.points is not None:
        return scene.points.positions
    return np.stack([camera.centre for camera in scene.cameras])


def _moved(camera: Camera, offset: np.ndarray) -> Camera:
    """The camera carried along by the offset."""
    matrix = camera.world_to_camera.copy()
    matrix[:3, 3] -= matrix[:3, :3] @ offset
    return replace(camera, world_to_camera=matrix)
