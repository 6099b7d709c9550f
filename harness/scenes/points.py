"""Initial points, and the Gaussians that training starts from."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from cuda_src.camera import Camera
from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, PARAMETERS, QUATERNION, SH_DC
from harness.errors import UserError
from harness.scenes.scene import PointCloud, camera_extent
from strategies.randomness import permutation, uniform

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

SH_C0 = 0.28209479177387814
"""The constant spherical harmonic, 1 / (2 sqrt(pi)): colour = 0.5 + SH_C0 dc."""

INITIAL_OPACITY = 0.1
NEIGHBOURS = 3
SMALLEST_SCALE = 1e-7
"""World units: what coinciding points get, so that no scale is zero."""

_STREAM_CHOICE = 201
_STREAM_VIEW = 202
"""Streams 202 to 205 place random points: their view, pixel x, pixel y and depth; 206 to 208 their colours."""
_STREAM_SCATTER = 209
"""Streams 209 to 211 scatter copies around their originals: x, y, z."""


def point_cloud(positions: np.ndarray, colours: np.ndarray, file: Path) -> PointCloud:
    """Checked initial points ([P, 3] positions, [P, 3] uint8 colours) read from `file`."""
    if len(positions) == 0:
        raise UserError("holds no point; expected at least one initial point", file)
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.ascontiguousarray(positions, dtype=np.float32)
    bad = ~np.isfinite(single).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise UserError(f"point {row + 1} lies at {tuple(positions[row].tolist())}; expected finite numbers", file)
    return PointCloud(single, np.ascontiguousarray(colours, dtype=np.uint8))


def chosen_points(points: PointCloud, count: int | None, seed: int) -> PointCloud:
    """At most `count` of the points, evenly chosen by the seed, in their order."""
    total = len(points.positions)
    if count is None or count >= total:
        return points
    rows = np.sort(permutation(seed, _STREAM_CHOICE, total)[:count].numpy())
    return PointCloud(points.positions[rows], points.colours[rows])


def scattered_points(points: PointCloud, count: int, seed: int) -> PointCloud:
    """Exactly `count` points: some of these, evenly chosen, or all of them and copies scattered around them.

    Every point has as many copies as any other, or one more, in an order that the seed decides. A copy lies within the
    mean distance to its original's nearest neighbours of it along each axis, and has its colour.
    """
    own = len(points.positions)
    if count <= own:
        return chosen_points(points, count, seed)
    copies = torch.arange(count - own, dtype=torch.int64)
    originals = permutation(seed, _STREAM_CHOICE, own)[copies % own].numpy()
    reach = neighbour_distances(tree_of(points.positions), points.positions)[originals]
    offsets = np.stack([uniform(seed, _STREAM_SCATTER + axis, copies).numpy() for axis in range(3)], axis=1)
    scattered = points.positions[originals] + (2 * offsets - 1) * reach[:, None]
    return PointCloud(
        np.concatenate([points.positions, scattered.astype(np.float32)]),
        np.concatenate([points.colours, points.colours[originals]]),
    )


def tree_of(positions: np.ndarray) -> cKDTree:
    """For nearest neighbours, of points [n, 3]."""
    from scipy.spatial import cKDTree  # It takes long to import, and most scenes bring no points.

    return cKDTree(positions)


def neighbour_distances(tree: cKDTree, positions: np.ndarray) -> np.ndarray:
    """Mean distance of points of the tree, [n, 3], to their nearest neighbours in it, [n] float64."""
    neighbours = min(NEIGHBOURS, tree.n - 1)
    if neighbours == 0 or len(positions) == 0:
        return np.full(len(positions), SMALLEST_SCALE)
    # The first neighbour found is the point itself.
    distances, _ = tree.query(positions, k=neighbours + 1)
    return np.maximum(distances[:, 1:].mean(axis=1), SMALLEST_SCALE)


class PointSource:
    """GaussianSource of initial points (Kerbl et al. 2023, section 5.1).

    Isotropic Gaussians as large as the mean distance to the three nearest points, opacity 0.1, the point's colour.
    """

    def __init__(self, points: PointCloud):
        self._positions = points.positions
        self._colours = points.colours

    @property
    def count(self) -> int:
        return len(self._positions)

    @property
    def bounds(self) -> np.ndarray:
        return np.stack([self._positions.min(axis=0), self._positions.max(axis=0)])

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        """Means of ids lo:hi, [hi - lo, 3] float32 on the CPU."""
        return torch.from_numpy(self._positions[lo:hi].copy())

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Parameters of those ids (int64), [n, 59] float32 on the device."""
        rows = indices.cpu().numpy()
        sizes = neighbour_distances(self._tree, self._positions[rows])
        parameters = torch.zeros((len(rows), PARAMETERS), dtype=torch.float32)
        parameters[:, MEAN] = torch.from_numpy(self._positions[rows])
        parameters[:, LOG_SCALE] = torch.from_numpy(np.log(sizes).astype(np.float32))[:, None]
        parameters[:, QUATERNION.start] = 1.0
        parameters[:, OPACITY_LOGIT] = math.log(INITIAL_OPACITY / (1.0 - INITIAL_OPACITY))
        parameters[:, SH_DC] = (torch.from_numpy(self._colours[rows]).to(torch.float32) / 255.0 - 0.5) / SH_C0
        return parameters.to(device)

    @cached_property
    def _tree(self) -> cKDTree:
        # Only the rows a rank reads are looked up; the tree itself must hold all points.
        return tree_of(self._positions)


def points_in_view(cameras: tuple[Camera, ...], count: int, seed: int) -> PointCloud:
    """Random points of random colours in front of the cameras, for scenes that bring none.

    Each lies in a random pixel of a random camera at 2/3 to 4/3 of the depth at which the cameras look: the median
    depth of the point nearest to all optical axes, or the cameras' extent where the axes are nearly parallel.
    """
    counters = torch.arange(count, dtype=torch.int64)
    view, x, y, z, *colour = (uniform(seed, _STREAM_VIEW + k, counters).numpy().astype(np.float64) for k in range(7))
    chosen = np.minimum((view * len(cameras)).astype(np.int64), len(cameras) - 1)
    size, focal, centre, rotation, origin = (
        np.array(values)[chosen]
        for values in (
            [(c.width, c.height) for c in cameras],
            [(c.fx, c.fy) for c in cameras],
            [(c.cx, c.cy) for c in cameras],
            [c.world_to_camera[:3, :3] for c in cameras],
            [c.centre for c in cameras],
        )
    )
    depth = viewing_depth(cameras) * (2 + 2 * z) / 3
    ray = np.concatenate([(np.stack([x, y], axis=1) * size - centre) / focal, np.ones((count, 1))], axis=1)
    positions = origin + np.einsum("nji,nj->ni", rotation, ray * depth[:, None])
    colours = (np.stack(colour, axis=1) * 256).astype(np.uint8)
    return PointCloud(positions.astype(np.float32), colours)


def viewing_depth(cameras: tuple[Camera, ...]) -> float:
    """Median depth, over the cameras, of the point nearest to all optical axes; world units."""
    axes = np.stack([c.world_to_camera[2, :3] for c in cameras])
    centres = np.stack([c.centre for c in cameras])
    # Distance to axis d through c: |(I - d d^T)(p - c)|; its least squares over all cameras.
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    normal = across.mean(axis=0)
    if np.linalg.eigvalsh(normal)[0] > 1e-2:
        focus = np.linalg.solve(normal, np.einsum("nij,nj->i", across, centres) / len(cameras))
        depth = float(np.median(np.einsum("ni,ni->n", focus - centres, axes)))
        if depth > 0:
            return depth
    return camera_extent(cameras)
