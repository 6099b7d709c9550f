"""A picture of a scene: its cameras and points, from above and from the side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cuda_src.layout import MEAN
from harness.scenes.scene import Scene

POINTS = 20_000
"""Points drawn, evenly chosen."""

_HEADINGS = 0.05
"""Mean square of the images' rows in their second direction from which the cameras' headings differ."""

_CANCELLED = 0.5
"""Length of a mean direction of the cameras below which it says nothing."""

_NEARLY = 0.996
"""Cosine from which a direction counts as an axis of the world (5 degrees)."""

_TRIM = (0.05, 0.95)
"""Shares of the points between which the panels' ranges lie: a few stray points would shrink all others."""


def plot_scene(scene: Scene, path: Path) -> None:
    """Draw cameras (position and viewing direction) and points into an image file."""
    frame, labels = viewing_frame(scene)
    centres = np.stack([c.centre for c in scene.cameras]) @ frame.T
    directions = np.stack([c.world_to_camera[2, :3] for c in scene.cameras]) @ frame.T
    points, colours, shown = _points(scene)
    points = points @ frame.T
    held_out = np.zeros(len(centres), dtype=bool)
    held_out[list(scene.test_views)] = True

    figure = Figure(figsize=(13, 6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{scene.name}: {len(centres)} cameras, {shown}")
    middle, half = _range(points, centres)
    length = 0.12 * half
    longer = int(np.argmax(np.ptp(centres[:, :2], axis=0)))
    for axes, (across, up), title in zip(
        figure.subplots(1, 2), ((0, 1), (longer, 2)), ("from above", "from the side"), strict=True
    ):
        axes.scatter(points[:, across], points[:, up], s=1.5, c=colours, linewidths=0, rasterized=True)
        _cameras(axes, centres[:, (across, up)], directions[:, (across, up)] * length, held_out)
        axes.set_xlim(middle[across] - half, middle[across] + half)
        axes.set_ylim(middle[up] - half, middle[up] + half)
        axes.set_aspect("equal", adjustable="box")
        axes.set_xlabel(f"{labels[across]} (world units)")
        axes.set_ylabel(f"{labels[up]} (world units)")
        axes.set_title(title)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(loc="best", framealpha=0.9)
    figure.savefig(path, dpi=130)


def viewing_frame(scene: Scene) -> tuple[np.ndarray, tuple[str, str, str]]:
    """Rows: two horizontal directions and up, [3, 3], with their names.

    Reconstructions stand in any pose, but photographers hold the horizon level: up is at right angles to the images'
    rows. Where all cameras fly along one line, that leaves a plane: up is then the images' upper side, or the cameras'
    back in nadir views, along which they spread less. Axes of the world are taken as they are when up is nearly one.
    """
    centres = np.stack([c.centre for c in scene.cameras])
    rotations = np.stack([c.world_to_camera[:3, :3] for c in scene.cameras])
    image_up, backwards = -rotations[:, 1].mean(axis=0), -rotations[:, 2].mean(axis=0)
    spread, directions = np.linalg.eigh(np.einsum("ni,nj->ij", rotations[:, 0], rotations[:, 0]) / len(rotations))
    if spread[1] > _HEADINGS:
        up = directions[:, 0] * (1 if directions[:, 0] @ (image_up + backwards) > 0 else -1)
    else:
        sides = [side / length for side in (image_up, backwards) if (length := np.linalg.norm(side)) > _CANCELLED]
        up = min(sides, key=lambda side: float(np.ptp(centres @ side)), default=directions[:, 0])
    nearest = int(np.argmax(np.abs(up)))
    if abs(up[nearest]) > _NEARLY:
        axes = {0: (1, 2, 0), 1: (0, 2, 1), 2: (0, 1, 2)}[nearest]
        return np.eye(3)[list(axes)] * np.array([[1], [1], [np.sign(up[nearest])]]), _names(axes, up[nearest])
    level = centres - centres.mean(axis=0)
    level = level - np.outer(level @ up, up)
    along = np.linalg.svd(np.vstack([level, 1e-9 * (np.eye(3) - np.outer(up, up))]))[2][0]
    return np.stack([along, np.cross(up, along), up]), ("along the path", "across it", "height")


def _names(axes: tuple[int, ...], sign: float) -> tuple[str, str, str]:
    a, b, c = ("xyz"[i] for i in axes)
    return a, b, c if sign > 0 else f"-{c}"


def _cameras(axes: Axes, positions: np.ndarray, arrows: np.ndarray, held_out: np.ndarray) -> None:
    for chosen, colour, label in ((~held_out, "tab:red", "training camera"), (held_out, "tab:blue", "held-out camera")):
        (x, y), (dx, dy) = positions[chosen].T, arrows[chosen].T
        axes.quiver(x, y, dx, dy, color=colour, angles="xy", scale_units="xy", scale=1, width=0.003)
        axes.scatter(x, y, s=18, color=colour, edgecolors="white", linewidths=0.5, label=label, zorder=3)


def _points(scene: Scene) -> tuple[np.ndarray, np.ndarray, str]:
    """At most POINTS positions [P, 3], colours [P, 3] in [0, 1], and what they are."""
    if scene.points is not None:
        count = len(scene.points.positions)
        rows = _evenly(count)
        positions, colours, what = scene.points.positions[rows], scene.points.colours[rows] / 255.0, "points"
    elif scene.gaussians is not None:
        count = scene.gaussians.count
        rows = _evenly(count)
        positions = scene.gaussians.read(torch.from_numpy(rows), torch.device("cpu"))[:, MEAN].numpy()
        colours, what = np.full(positions.shape, 0.5), "Gaussians"
    else:
        return np.empty((0, 3)), np.empty((0, 3)), "no points"
    shown = f"{count:,} {what}" if count <= POINTS else f"{len(rows):,} of {count:,} {what}"
    return positions.astype(np.float64), colours, shown


def _evenly(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(POINTS, count)).astype(np.int64))


def _range(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    """Centre [3] and half side of a cube that holds all cameras and most points, with a margin."""
    corners = [centres.min(axis=0), centres.max(axis=0)]
    if len(points):
        corners += list(np.quantile(points, _TRIM, axis=0))
    lower, upper = np.min(corners, axis=0), np.max(corners, axis=0)
    return (lower + upper) / 2, 0.55 * max(float((upper - lower).max()), 1e-6)
