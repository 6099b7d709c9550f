"""Photographs at a size that they do not have: enlarged or reduced until they fill it, and cropped evenly."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from cuda_src.camera import Camera
from harness.scenes.held import HeldImages
from harness.scenes.scene import Scene
from strategies.base import ImageSource, Rect


def filled(scene: Scene, size: tuple[int, int]) -> Scene:
    """The scene with images and cameras of exactly `size` (width, height): what a timing at that size needs.

    Enlarging adds no detail, so that quality at such a size is no quality.
    """
    cameras = tuple(filling(camera, size) for camera in scene.cameras)
    images = None if scene.images is None else HeldImages(FilledImages(scene.images, scene.cameras, cameras), cameras)
    digest = hashlib.sha256(f"{scene.content_hash} filled {size[0]} x {size[1]}".encode())
    return replace(scene, cameras=cameras, images=images, content_hash=digest.hexdigest())


def filling(camera: Camera, size: tuple[int, int]) -> Camera:
    """The same view through an image of that size, cropped in the direction in which the shapes differ."""
    whole = _covering(camera, size)
    left, top = _margins(whole, size)
    return replace(whole, width=size[0], height=size[1], cx=whole.cx - left, cy=whole.cy - top)


def _covering(camera: Camera, size: tuple[int, int]) -> Camera:
    """The camera at the least size that keeps its shape and covers `size`."""
    scale = max(size[0] / camera.width, size[1] / camera.height)
    return camera.resized(max(size[0], math.ceil(camera.width * scale)), max(size[1], math.ceil(camera.height * scale)))


def _margins(whole: Camera, size: tuple[int, int]) -> tuple[int, int]:
    """Pixels cropped on the left and at the top."""
    return (whole.width - size[0]) // 2, (whole.height - size[1]) // 2


class FilledImages:
    """ImageSource of another's whole images, resampled bilinearly and cropped; computed at every call."""

    def __init__(self, images: ImageSource, cameras: Sequence[Camera], filling_cameras: Sequence[Camera]):
        """cameras: of the images as they are. filling_cameras: what `filling` made of them."""
        self._images = images
        self._cameras = tuple(cameras)
        self._sizes = tuple((camera.width, camera.height) for camera in filling_cameras)

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        """Those pixels, [h, w, 3] uint8."""
        image = self._images.region(view, Rect.whole(self._cameras[view]), device)
        return self._resampled(view, image)[rect.y0 : rect.y1, rect.x0 : rect.x1]

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        """Those pixels of the mask, [h, w] uint8; None without one."""
        mask = self._images.mask(view, Rect.whole(self._cameras[view]), device)
        if mask is None:
            return None
        return self._resampled(view, mask[..., None])[rect.y0 : rect.y1, rect.x0 : rect.x1, 0]

    def _resampled(self, view: int, image: torch.Tensor) -> torch.Tensor:
        """[h, w, c] of the view's own size to [H, W, c] of the filled one."""
        size = self._sizes[view]
        whole = _covering(self._cameras[view], size)
        left, top = _margins(whole, size)
        planes = image.permute(2, 0, 1)[None].to(torch.float32)
        resized = F.interpolate(planes, (whole.height, whole.width), mode="bilinear", antialias=True)[0]
        cropped = resized[:, top : top + size[1], left : left + size[0]]
        return (cropped + 0.5).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()
