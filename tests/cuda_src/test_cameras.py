"""Cameras: tiles, centre, resizing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cuda_src.camera import Camera


def camera(width: int, height: int) -> Camera:
    """Turned by 90 degrees about z and moved."""
    transform = np.array([[0.0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]])
    return Camera(width, height, 100.0, 120.0, 0.25 * width, 0.75 * height, transform)


@pytest.mark.parametrize(
    ("width", "height", "tiles_x", "tiles_y"), [(1, 1, 1, 1), (16, 16, 1, 1), (17, 33, 2, 3), (1920, 1080, 120, 68)]
)
def test_tiles_cover_the_image(width, height, tiles_x, tiles_y):
    view = camera(width, height)
    assert (view.tiles_x, view.tiles_y, view.tiles) == (tiles_x, tiles_y, tiles_x * tiles_y)


def test_the_centre_maps_to_the_cameras_origin():
    view = camera(10, 10)
    assert view.world_to_camera @ [*view.centre, 1.0] == pytest.approx([0, 0, 0, 1])


def test_resizing_keeps_what_is_seen_where():
    view = camera(100, 80)
    half = view.resized(50, 20)
    assert (half.width, half.height) == (50, 20)
    assert (half.fx, half.fy, half.cx, half.cy) == (50.0, 30.0, 12.5, 15.0)
    # Fields of view, and the principal point's share of the image, are those of before.
    assert half.width / half.fx == view.width / view.fx
    assert half.cy / half.height == view.cy / view.height
    assert half.world_to_camera is view.world_to_camera


def test_nothing_is_too_far_unless_said_so():
    assert camera(4, 4).far == math.inf
