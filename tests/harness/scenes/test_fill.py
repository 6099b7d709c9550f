"""Photographs brought to a size that they do not have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.camera import Camera
from harness.scenes.fill import FilledImages, filled, filling
from harness.scenes.scene import Scene
from strategies.base import Rect

CPU = torch.device("cpu")


def camera(width: int, height: int) -> Camera:
    return Camera(width, height, 0.9 * width, 0.8 * width, 0.4 * width, 0.6 * height, np.eye(4))


class Gradient:
    """Images that grow brighter to the right; a mask of their left half."""

    def __init__(self, own: Camera):
        x = torch.linspace(0, 255, own.width)
        self._pixels = x.expand(3, own.height, own.width).permute(1, 2, 0).to(torch.uint8)

    def region(self, view, rect, device):
        return self._pixels[rect.y0 : rect.y1, rect.x0 : rect.x1]

    def mask(self, view, rect, device):
        if view == 0:
            return None
        return (self._pixels[..., 0] < 128).to(torch.uint8)[rect.y0 : rect.y1, rect.x0 : rect.x1] * 255


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 900), st.integers(1, 900))
def test_rays_through_the_middle_stay_and_the_size_is_exact(width, height, to_width, to_height):
    own = camera(width, height)
    new = filling(own, (to_width, to_height))
    assert (new.width, new.height) == (to_width, to_height)
    # A pixel of the new image lies in the old one: nothing is made up beyond its border.
    left, right = (0 - new.cx) / new.fx, (to_width - new.cx) / new.fx
    assert left >= (0 - own.cx) / own.fx - 1e-9
    assert right <= (width - own.cx) / own.fx + 1e-9


def test_one_direction_is_cropped_evenly_and_the_other_kept():
    new = filling(camera(100, 80), (200, 100))
    assert (new.fx, new.cx) == (180.0, 80.0)
    assert (new.fy, new.cy) == (160.0, 2 * 48 - 30.0)


def test_images_and_masks_follow_their_cameras():
    own = camera(64, 48)
    new = filling(own, (128, 64))
    images = FilledImages(Gradient(own), [own, own], [new, new])
    whole = images.region(1, Rect.whole(new), CPU)
    assert whole.shape == (64, 128, 3)
    assert whole.dtype == torch.uint8
    assert (whole[:, 1:].int() >= whole[:, :-1].int()).all()
    assert abs(int(whole[0, 64, 0]) - 128) <= 3
    assert torch.equal(images.region(1, Rect(3, 5, 40, 60), CPU), whole[5:60, 3:40])
    mask = images.mask(1, Rect.whole(new), CPU)
    assert mask is not None
    assert (int(mask[0, 10]), int(mask[0, 120])) == (255, 0)
    assert images.mask(0, Rect.whole(new), CPU) is None


@pytest.mark.parametrize("images", [True, False])
def test_a_filled_scene_has_all_views_at_the_size_and_another_hash(images):
    own = camera(64, 48)
    scene = Scene("s", (own, own), ("a", "b"), Gradient(own) if images else None, None, None, 1.0, "feed")
    found = filled(scene, (30, 30))
    assert {(c.width, c.height) for c in found.cameras} == {(30, 30)}
    assert found.content_hash != scene.content_hash
    assert (found.images is None) == (not images)
    if found.images is not None:
        assert found.images.region(0, Rect.whole(found.cameras[0]), CPU).shape == (30, 30, 3)
