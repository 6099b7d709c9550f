"""Pinhole cameras, OpenCV style: x right, y down, z forward; pixel centres at +0.5."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

TILE = 16
"""Side of a raster tile, pixels (Kerbl et al. 2023, section 6)."""

SUBTILE_WIDTH = 8
SUBTILE_HEIGHT = 4
"""A sub-tile, pixels: the unit of masks. A tile has 4 rows of 2, bit row * 2 + column of a uint8."""


@dataclass(frozen=True, eq=False)
class Camera:
    """One calibrated view.

    width, height: pixels. fx, fy: focal lengths, pixels. cx, cy: principal point, pixels, anywhere.
    world_to_camera: [4, 4] float64, rigid. far: view depth beyond which nothing is seen, world units.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    world_to_camera: np.ndarray
    far: float = math.inf

    @property
    def tiles_x(self) -> int:
        return -(-self.width // TILE)

    @property
    def tiles_y(self) -> int:
        return -(-self.height // TILE)

    @property
    def tiles(self) -> int:
        return self.tiles_x * self.tiles_y

    @property
    def centre(self) -> np.ndarray:
        """Position of the camera in the world, [3] float64."""
        rotation = self.world_to_camera[:3, :3]
        return -rotation.T @ self.world_to_camera[:3, 3]

    def resized(self, width: int, height: int) -> Camera:
        """The same view on a pixel grid of another size."""
        sx, sy = width / self.width, height / self.height
        return replace(
            self,
            width=width,
            height=height,
            fx=self.fx * sx,
            fy=self.fy * sy,
            cx=self.cx * sx,
            cy=self.cy * sy,
        )
