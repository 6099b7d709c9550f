"""One scene type for photographs, saved models and the procedural city."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cuda_src.camera import Camera
from strategies.base import GaussianSource, ImageSource

HOLD_OUT = 8
"""Every 8th view is held out for testing (Barron et al. 2022, and 3DGS after it)."""


@dataclass(frozen=True)
class PointCloud:
    """Initial points. positions: [P, 3] float32, world units. colours: [P, 3] uint8."""

    positions: np.ndarray
    colours: np.ndarray


@dataclass(frozen=True)
class Scene:
    """What a cell trains on.

    name: for people. cameras and view_names: by view number. images: by view number, lazily read; None where a
    scene has Gaussians only. points: where training starts. gaussians: ready Gaussians for throughput, with
    trained-like sizes and opacities; None where only points exist. extent: scales the mean's learning rate.
    content_hash: of everything that decides pixels, cameras and Gaussians. credit: of photographs. facts: anything
    worth a line in `scene info`.
    """

    name: str
    cameras: tuple[Camera, ...]
    view_names: tuple[str, ...]
    images: ImageSource | None
    points: PointCloud | None
    gaussians: GaussianSource | None
    extent: float
    content_hash: str
    credit: str = ""
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def train_views(self) -> tuple[int, ...]:
        return tuple(v for v in range(len(self.cameras)) if v % HOLD_OUT != 0)

    @property
    def test_views(self) -> tuple[int, ...]:
        return tuple(range(0, len(self.cameras), HOLD_OUT))


def camera_extent(cameras: tuple[Camera, ...]) -> float:
    """1.1 times the largest distance of a camera from their mean position (Kerbl et al. 2023, released code)."""
    centres = np.stack([c.centre for c in cameras])
    radius = float(np.linalg.norm(centres - centres.mean(axis=0), axis=1).max())
    return 1.1 * radius if radius > 0 else 1.0
