"""Camera paths through and over the procedural city, spread evenly and the same for the same seed."""

from __future__ import annotations

import math

import numpy as np
import torch

from cuda_src.camera import Camera
from harness.scenes.blocks import BLOCK, CityBlocks
from strategies.randomness import uniform

STREET_FOCAL = 0.62
"""Focal length in image widths: 78 degrees across, as of a phone's wide camera."""
AERIAL_FOCAL = 0.75
"""67 degrees across, as of a survey drone."""
STREET_STEP = 10.0
"""Views along a street lie at most about so many metres apart, so that held-out views are seen by others."""
AERIAL_PITCH = math.radians(50.0)

_STREAM_YAW, _STREAM_LIFT, _STREAM_ASIDE = 150, 151, 152


def look(centre: np.ndarray, yaw: float, pitch: float) -> np.ndarray:
    """World-to-camera matrix, [4, 4] float64, of a level camera.

    yaw: radians from x towards y. pitch: radians below the horizon, less than a right angle.
    """
    forward = np.array([math.cos(yaw) * math.cos(pitch), math.sin(yaw) * math.cos(pitch), -math.sin(pitch)])
    right = np.array([math.sin(yaw), -math.cos(yaw), 0.0])
    matrix = np.eye(4)
    matrix[:3, :3] = np.stack([right, np.cross(forward, right), forward])
    matrix[:3, 3] = -matrix[:3, :3] @ centre
    return matrix


def street_cameras(city: CityBlocks, views: int, size: tuple[int, int], far: float) -> tuple[Camera, ...]:
    """Cameras at eye height along the streets, first those along x, then those along y, looking ahead.

    Not all streets are driven if that would spread the views further apart than STREET_STEP.
    """
    route = _route(city, 1)
    stride = 1
    while _length(route) > STREET_STEP * views and stride < city.blocks - 1:
        stride += 1
        route = _route(city, stride)
    length = _length(route)
    ids = torch.arange(views, dtype=torch.int64)
    yaw = 0.6 * (uniform(city.seed, _STREAM_YAW, ids).numpy() - 0.5)
    lift = 0.3 * uniform(city.seed, _STREAM_LIFT, ids).numpy()
    aside = 3.0 * (uniform(city.seed, _STREAM_ASIDE, ids).numpy() - 0.5)
    cameras = []
    for view in range(views):
        at = (view + 0.5) * length / views
        position = _along(route, at)
        # The direction from a little behind to a little ahead turns smoothly at corners.
        dx, dy = _along(route, min(at + 4.0, length)) - _along(route, max(at - 4.0, 0.0))
        heading = math.atan2(dy, dx)
        x = position[0] - aside[view] * math.sin(heading)
        y = position[1] + aside[view] * math.cos(heading)
        centre = np.array([x, y, 1.7 + lift[view]])
        cameras.append(_camera(size, STREET_FOCAL, look(centre, heading + float(yaw[view]), math.radians(-3.0)), far))
    return tuple(cameras)


def aerial_cameras(city: CityBlocks, views: int, size: tuple[int, int], far: float) -> tuple[Camera, ...]:
    """Oblique cameras on flight lines: half of the views fly along x, half along y, to and fro, looking ahead."""
    height = aerial_height(city)
    back = height / math.tan(AERIAL_PITCH)
    reach = 0.5 * city.side - 0.45 * height
    lines = max(2, round(math.sqrt(views / 2)))
    first = views - views // 2
    lift = uniform(city.seed, _STREAM_LIFT, torch.arange(views, dtype=torch.int64)).numpy()
    cameras = []
    for view in range(views):
        along_x = view < first
        number, total = (view, first) if along_x else (view - first, views - first)
        # A serpentine over a square, in line lengths: which line, and how far along it.
        line, share = divmod((number + 0.5) * lines / total, 1.0)
        ahead = line % 2 == 0
        s = (2.0 * share - 1.0) * (1.0 if ahead else -1.0) * reach
        t = (2.0 * (line + 0.5) / lines - 1.0) * reach
        yaw = (0.0 if ahead else math.pi) + (0.0 if along_x else 0.5 * math.pi)
        target = np.array([s, t] if along_x else [t, s])
        centre = np.array(
            [*(target - back * np.array([math.cos(yaw), math.sin(yaw)])), height * (0.95 + 0.1 * lift[view])]
        )
        cameras.append(_camera(size, AERIAL_FOCAL, look(centre, yaw, AERIAL_PITCH), far))
    return tuple(cameras)


def aerial_height(city: CityBlocks) -> float:
    """Flying height, metres: 60-100 over big cities, lower over small ones so that they fill the image."""
    return max(min(0.4 * city.side, 100.0), city.tallest + 12.0)


def _camera(size: tuple[int, int], focal: float, world_to_camera: np.ndarray, far: float) -> Camera:
    width, height = size
    f = focal * width
    return Camera(width, height, f, f, width / 2, height / 2, world_to_camera, far)


def _route(city: CityBlocks, stride: int) -> np.ndarray:
    """Corners of a serpentine through every stride-th inner street, [K, 2], that never leaves for the ring road."""
    inner = np.arange(1, city.blocks)[(stride - 1) // 2 :: stride]
    lines = (inner - city.blocks / 2) * BLOCK
    edge = 0.5 * city.side - BLOCK
    corners: list[tuple[float, float]] = []
    side = -edge
    for y in lines:
        corners += [(side, y), (-side, y)]
        side = -side
    corners.append((side, edge))
    top = edge
    for x in lines if side < 0 else lines[::-1]:
        corners += [(x, top), (x, -top)]
        top = -top
    return np.array(corners)


def _length(route: np.ndarray) -> float:
    return float(np.linalg.norm(np.diff(route, axis=0), axis=1).sum())


def _along(route: np.ndarray, at: float) -> np.ndarray:
    """The point so many metres along the route, [2]."""
    ends = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(route, axis=0), axis=1))])
    return np.array([np.interp(at, ends, route[:, 0]), np.interp(at, ends, route[:, 1])])
