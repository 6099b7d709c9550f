"""The anchor: a fixed stand-in city and fixed cameras that reference timings were taken on.

Unlike the city of this package it is drawn in sequence from one generator on the CPU, so that all rows exist at
once; the same number of Gaussians and seed give the same numbers for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from cuda_src.camera import Camera
from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, PARAMETERS, QUATERNION, SH_COEFFICIENTS, SH_DC, SH_REST
from harness.scenes.kept import kept_table
from harness.scenes.paths import look
from strategies.base import Rect
from strategies.randomness import uniform

_BLOCK = 30.0
_FOOTPRINT = 18.0
_SIDE_PER_MILLION = 120.0
_FOCAL, _WIDTH, _HEIGHT = 1000.0, 1920, 1080
_CAMERA_SEED = 1
CAMERA_SHARE = 0.8
"""Of the anchor's side, that of the square above which cameras stand."""
_STREAM_PATTERN = 400


def anchor_blocks(count: int) -> int:
    """Blocks along a side of the anchor of so many Gaussians."""
    return max(2, int(_SIDE_PER_MILLION * math.sqrt(count / 1e6) / _BLOCK))


def anchor_side(count: int) -> float:
    """Side of the anchor of so many Gaussians, metres."""
    return anchor_blocks(count) * _BLOCK


class AnchorGaussians:
    """GaussianSource of the anchor; all [count, 59] are drawn on the CPU when first needed."""

    def __init__(self, count: int, seed: int):
        self._count = count
        self._seed = seed

    @property
    def count(self) -> int:
        return self._count

    @cached_property
    def bounds(self) -> np.ndarray:
        """[2, 3] float32."""
        return torch.stack([self._means.amin(0), self._means.amax(0)]).numpy()

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        """Means of ids lo:hi, [hi - lo, 3] float32 on the CPU."""
        return self._means[lo:hi].clone()

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Parameters of those ids, [n, 59] float32 on the device."""
        return self._parameters.index_select(0, indices.cpu()).to(device)  # Copies rows; an index copies numbers.

    @cached_property
    def _parameters(self) -> torch.Tensor:
        return kept_table(self._name, (self._count, PARAMETERS), lambda: _drawn(self._count, self._seed))

    @cached_property
    def _means(self) -> torch.Tensor:
        # By themselves: among the parameters they lie on all pages of these, 20 times as many.
        return kept_table(f"{self._name}-means", (self._count, 3), lambda: self._parameters[:, MEAN].contiguous())

    @property
    def _name(self) -> str:
        # What torch draws from a seed is the same in every release so far, but promised within one.
        return f"anchor-{self._count}-{self._seed}-torch-{torch.__version__}"


def _drawn(n: int, seed: int) -> torch.Tensor:
    """All parameters, [n, 59]. The order and shapes of the draws are the definition: none may move."""
    random = torch.Generator(device="cpu").manual_seed(seed)
    blocks = anchor_blocks(n)
    side = anchor_side(n)
    height = torch.rand(blocks, blocks, generator=random) * 30 + 6

    roof_area = torch.full_like(height, _FOOTPRINT * _FOOTPRINT)
    ground_area = torch.full_like(height, _BLOCK * _BLOCK - _FOOTPRINT * _FOOTPRINT)
    areas = torch.stack([4 * _FOOTPRINT * height, roof_area, ground_area], -1).reshape(-1)
    counts = (areas / areas.sum() * n).floor().long()
    counts[-1] += n - counts.sum()
    surface = torch.repeat_interleave(torch.arange(areas.numel()), counts)
    kind, block = surface % 3, surface // 3
    wall, roof, ground = kind == 0, kind == 1, kind == 2
    u, v = torch.rand(n, generator=random), torch.rand(n, generator=random)
    facing = torch.randint(0, 4, (n,), generator=random)

    out = torch.empty(n, PARAMETERS)
    half = _FOOTPRINT / 2
    across, upward = (u * 2 - 1) * half, v * height.reshape(-1)[block]
    wall_x = torch.where(facing == 0, -half, torch.where(facing == 1, half, across))
    wall_y = torch.where(facing == 2, -half, torch.where(facing == 3, half, across))
    x = torch.where(wall, wall_x, torch.where(roof, across, (u * 2 - 1) * _BLOCK / 2))
    y = torch.where(wall, wall_y, torch.where(roof, (v * 2 - 1) * half, (v * 2 - 1) * _BLOCK / 2))
    z = torch.where(wall, upward, torch.where(roof, height.reshape(-1)[block], 0.0))
    centre_x = (block % blocks).float() * _BLOCK - side / 2 + _BLOCK / 2
    centre_y = (block // blocks).float() * _BLOCK - side / 2 + _BLOCK / 2
    out[:, MEAN] = torch.stack([x + centre_x, y + centre_y, z], -1)

    spacing = math.sqrt(float(areas.sum()) / n)
    size = torch.full((n, 3), spacing * 0.6) * torch.exp(torch.randn(n, 3, generator=random) * 0.4)
    thin = torch.where(wall & (facing < 2), 0, torch.where(ground | roof, 2, 1))
    log_scale = torch.log(size)
    log_scale[torch.arange(n), thin] -= 2.0
    out[:, LOG_SCALE] = log_scale
    quaternion = torch.randn(n, 4, generator=random) * 0.05
    quaternion[:, 0] += 1
    out[:, QUATERNION] = quaternion
    opacity = (0.35 + 0.64 * torch.rand(n, generator=random)).clamp(1e-3, 1 - 1e-3)
    out[:, OPACITY_LOGIT] = torch.logit(opacity)
    harmonics = torch.randn(n, SH_COEFFICIENTS, 3, generator=random).mul_(0.05)
    out[:, SH_REST] = harmonics[:, 1:].flatten(1)
    out[:, SH_DC] = torch.rand(n, 3, generator=random) * 2 - 1
    return out


def anchor_cameras(side: float, views: int, path: str, size: tuple[int, int], far: float) -> tuple[Camera, ...]:
    """The anchor's cameras, drawn in sequence: the first of many are those of few.

    side: of the anchor, metres; cameras stand above its middle four fifths. path: `aerial` (100 m up, 50 degrees down)
    or `street` (2 m up). The focal length is 1000 px at 1920 x 1080 and scales with the size.
    """
    random = torch.Generator().manual_seed(_CAMERA_SEED)
    cameras = []
    for _ in range(views):
        position = (torch.rand(2, generator=random) * 2 - 1) * side * (CAMERA_SHARE / 2)
        yaw = torch.rand(1, generator=random).item() * 2 * math.pi
        if path == "aerial":
            height, pitch = 100.0, math.radians(50)
        else:
            height, pitch = 2.0, math.radians(-5)
            position = (position / _BLOCK).round() * _BLOCK + _BLOCK / 2
        centre = np.array([float(position[0]), float(position[1]), height])
        whole = Camera(_WIDTH, _HEIGHT, _FOCAL, _FOCAL, _WIDTH / 2, _HEIGHT / 2, look(centre, yaw, pitch), far)
        cameras.append(whole.resized(*size))
    return tuple(cameras)


class AnchorImages:
    """ImageSource of the anchor: a fixed smooth pattern a view, since its timings depend on no photograph."""

    def __init__(self, cameras: Sequence[Camera], seed: int):
        self._cameras = tuple(cameras)
        self._seed = seed

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        """Those pixels, [h, w, 3] uint8: triangle waves of a direction and phase drawn for (view, colour)."""
        camera = self._cameras[view]
        y = (torch.arange(rect.y0, rect.y1, device=device) / camera.height)[:, None]
        x = (torch.arange(rect.x0, rect.x1, device=device) / camera.width)[None, :]
        planes = []
        for colour in range(3):
            waves = [
                float(uniform(self._seed, _STREAM_PATTERN + k, torch.tensor([3 * view + colour]))) for k in range(3)
            ]
            phase = x * (1.0 + 4.0 * waves[0]) + y * (1.0 + 4.0 * waves[1]) + waves[2]
            planes.append((2.0 * (phase - torch.floor(phase)) - 1.0).abs())
        return (torch.stack(planes, dim=2) * 255.0 + 0.5).to(torch.uint8)

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        """None: every pixel counts."""
        return None
