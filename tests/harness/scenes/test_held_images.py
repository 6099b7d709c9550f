"""Images kept on a device: read once, cut as asked, dropped in the order of use."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_src.camera import Camera
from harness.scenes.held import HeldImages
from strategies.base import Rect

CPU = torch.device("cpu")
CAMERAS = [Camera(8, 6, 5.0, 5.0, 4.0, 3.0, np.eye(4))] * 3
IMAGE_BYTES = 8 * 6 * 3


class Counted:
    """An ImageSource that counts what it is asked; view v is filled with v, and view 1 has a mask."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        self.read.append(view)
        rows = torch.arange(rect.y0, rect.y1, dtype=torch.uint8)[:, None, None]
        return (rows + 10 * view).expand(-1, rect.x1 - rect.x0, 3).contiguous()

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        return torch.full((rect.y1 - rect.y0, rect.x1 - rect.x0), 255, dtype=torch.uint8) if view == 1 else None


@pytest.fixture
def source() -> Counted:
    return Counted()


def test_an_image_is_read_once_whatever_its_regions(source):
    held = HeldImages(source, CAMERAS)
    part = held.region(2, Rect(1, 2, 5, 6), CPU)
    assert part.shape == (4, 4, 3)
    assert part[:, 0, 0].tolist() == [22, 23, 24, 25]
    assert held.region(2, Rect.whole(CAMERAS[2]), CPU).shape == (6, 8, 3)
    assert source.read == [2]


def test_masks_are_kept_beside_their_images(source):
    held = HeldImages(source, CAMERAS)
    assert held.mask(0, Rect.whole(CAMERAS[0]), CPU) is None
    assert held.mask(1, Rect(0, 0, 3, 2), CPU).shape == (2, 3)
    held.region(1, Rect.whole(CAMERAS[1]), CPU)
    assert source.read == [0, 1]


def test_what_was_used_longest_ago_is_dropped_beyond_the_limit(source):
    held = HeldImages(source, CAMERAS, limit=2 * IMAGE_BYTES)
    for view in (0, 2, 0):
        held.region(view, Rect.whole(CAMERAS[view]), CPU)
    held.region(1, Rect.whole(CAMERAS[1]), CPU)  # With its mask there is room for this one alone.
    assert held.bytes <= 2 * IMAGE_BYTES
    held.region(0, Rect.whole(CAMERAS[0]), CPU)
    assert source.read == [0, 2, 1, 0]


def test_each_device_is_told_what_it_keeps(source):
    held = HeldImages(source, CAMERAS)
    for view, device in ((0, CPU), (1, CPU), (0, torch.device("meta"))):
        held.region(view, Rect.whole(CAMERAS[view]), device)
    assert held.bytes_on(CPU) == 2 * IMAGE_BYTES + IMAGE_BYTES // 3, "two images and a mask"
    assert held.bytes_on(torch.device("meta")) == IMAGE_BYTES


def test_an_image_that_views_have_in_common_counts_once(source):
    shared = torch.zeros((CAMERAS[0].height, CAMERAS[0].width, 3), dtype=torch.uint8)
    source.region = lambda view, rect, device: shared[rect.y0 : rect.y1, rect.x0 : rect.x1]
    held = HeldImages(source, CAMERAS)
    for view in (0, 2):
        held.region(view, Rect.whole(CAMERAS[0]), CPU)
    assert held.bytes == held.bytes_on(CPU) == shared.numel()


def test_one_image_beyond_the_limit_is_still_kept(source):
    held = HeldImages(source, CAMERAS, limit=1)
    for _ in range(2):
        held.region(0, Rect.whole(CAMERAS[0]), CPU)
    assert source.read == [0]
