"""Scenes small enough for exactness tests."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from strategies.base import Context, Rect, World
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.training.config import Training


@dataclass
class TinyGaussians:
    """A GaussianSource over a table in memory."""

    parameters: torch.Tensor

    @property
    def count(self) -> int:
        return len(self.parameters)

    @property
    def bounds(self) -> np.ndarray:
        means = self.parameters[:, layout.MEAN]
        if not len(means):
            return np.zeros((2, 3), np.float32)
        return torch.stack([means.amin(0), means.amax(0)]).numpy()

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        return self.parameters[lo:hi, layout.MEAN]

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        return self.parameters[indices].to(device)


@dataclass
class TinyImages:
    """An ImageSource over images in memory."""

    images: list[torch.Tensor]

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        return self.images[view][rect.y0 : rect.y1, rect.x0 : rect.x1].to(device)

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        return None


@dataclass
class TinyScene:
    """Gaussians in front of a ring of cameras, with images of mixed sizes that are no multiple of a tile."""

    source: TinyGaussians
    images: TinyImages
    cameras: list[Camera]

    def context(
        self, kernels: KernelSet, training: Training | None = None, batch: int = 1, comm: Communicator | None = None
    ) -> Context:
        return Context(
            world=World.alone() if comm is None else World(comm.rank, comm.ranks, (comm.device,), comm.ranks),
            comm=comm or LocalCommunicator(),
            kernels=kernels,
            clock=NoClock(),
            training=training or Training(sh_every=0),
            cameras=self.cameras,
            batch=batch,
            seed=0,
            bounds=self.source.bounds,
            extent=1.0,
        )


class NoClock:
    """A clock that measures nothing."""

    def __call__(self, stage: str):
        return nullcontext()


def tiny_scene(count: int = 60, views: int = 4, seed: int = 0) -> TinyScene:
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.zeros(count, layout.PARAMETERS)
    parameters[:, layout.MEAN] = torch.rand(count, 3, generator=generator) * 2 - 1
    parameters[:, layout.LOG_SCALE] = torch.randn(count, 3, generator=generator) * 0.4 - 2.0
    parameters[:, layout.QUATERNION] = torch.randn(count, 4, generator=generator)
    parameters[:, layout.OPACITY_LOGIT] = torch.randn(count, generator=generator)
    parameters[:, layout.SH] = torch.randn(count, 48, generator=generator) * 0.2
    cameras, images = [], []
    for view in range(views):
        width, height = 40 + 7 * view, 33 + 5 * view
        angle = 2 * np.pi * view / views
        c, s = np.cos(angle), np.sin(angle)
        pose = np.eye(4)
        pose[:3, :3] = [[c, 0, -s], [0, 1, 0], [s, 0, c]]
        pose[:3, 3] = [0, 0, 4.0]
        cameras.append(Camera(width, height, 45.0, 46.0, width / 2 + 1, height / 2 - 1, pose))
        images.append(torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator))
    return TinyScene(TinyGaussians(parameters), TinyImages(images), cameras)


@pytest.fixture
def scene() -> TinyScene:
    return tiny_scene()


@pytest.fixture
def make_scene():
    """The builder itself, for tests that choose counts, views or seeds."""
    return tiny_scene
