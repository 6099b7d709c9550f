"""The contracts between harness and strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from strategies.distribution.communicator import Communicator
from strategies.info import Options
from strategies.training.config import Training
from strategies.views import ViewQueue


@dataclass(frozen=True)
class World:
    """Who computes: `rank` of `ranks` processes, the devices of this one, and all `places` of the job.

    The ledger, memory and clocks index places: ranks for a strategy with a process a device, devices for one
    whose single process drives them all.
    """

    rank: int
    ranks: int
    devices: tuple[torch.device, ...]
    places: int

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> World:
        return cls(0, 1, (torch.device(device),), 1)


@dataclass(frozen=True)
class Rect:
    """Pixels x0 <= x < x1, y0 <= y < y1."""

    x0: int
    y0: int
    x1: int
    y1: int

    @classmethod
    def whole(cls, camera: Camera) -> Rect:
        return cls(0, 0, camera.width, camera.height)


class GaussianSource(Protocol):
    """Initial Gaussians that any rank can read in part, so that none need ever hold all.

    count: how many. bounds: [2, 3] float32, lower and upper corner of the means. Row i is Gaussian id i.
    """

    @property
    def count(self) -> int: ...

    @property
    def bounds(self) -> np.ndarray: ...

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        """Means of ids lo:hi, [hi - lo, 3] float32 on the CPU."""
        ...

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Parameters of those ids (int64), [n, 59] float32 on the device, columns as in cuda_src/layout.py."""
        ...


class ImageSource(Protocol):
    """Ground-truth images, read lazily and in part."""

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        """Those pixels of the view's photograph, [h, w, 3] uint8."""
        ...

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        """Those pixels of the view's mask, [h, w] uint8 (255 counts fully, 0 not at all); None without a mask."""
        ...


@dataclass(frozen=True)
class Shard:
    """A bounded piece of the Gaussians a rank owns: ids [n] int64, and parameters and moments [n, 59] float32."""

    ids: torch.Tensor
    parameters: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor


class ShardReader(Protocol):
    """Saved Gaussians, read in bounded pieces in any order of ids; each id occurs once."""

    @property
    def count(self) -> int: ...

    def shards(self) -> Iterator[Shard]: ...


class StepReport:
    """What a step did.

    images, optimizer_steps: of the whole job. The rest is this rank's share, and the job's is the sum over ranks: loss,
    a 0-d tensor, of the mean over the step's images; visible_gaussians it owns; tile_instances it rendered. A share may
    be given as a function, or a count as a 0-d tensor, where the host would have to wait for it: asking waits.
    """

    def __init__(
        self,
        images: int,
        optimizer_steps: int,
        loss: torch.Tensor | Callable[[], torch.Tensor],
        visible_gaussians: int | torch.Tensor | Callable[[], int],
        tile_instances: int | torch.Tensor | Callable[[], int],
    ) -> None:
        self.images = images
        self.optimizer_steps = optimizer_steps
        self._loss = loss
        self._visible_gaussians = visible_gaussians
        self._tile_instances = tile_instances

    @property
    def loss(self) -> torch.Tensor:
        return self._loss if isinstance(self._loss, torch.Tensor) else self._loss()

    @property
    def visible_gaussians(self) -> int:
        return _number(self._visible_gaussians)

    @property
    def tile_instances(self) -> int:
        return _number(self._tile_instances)


def _number(count: int | torch.Tensor | Callable[[], int]) -> int:
    return int(count) if isinstance(count, int | torch.Tensor) else count()


@dataclass(frozen=True)
class ExchangeTrial:
    """The rows that cross in one stage of a step, to be sent again and again by themselves.

    row_bytes: of a row on the wire. counts: by turn, rows to and from each rank, none for the rank itself. run: packs,
    exchanges and unpacks them once; the host waits for nothing in it. Collective.
    """

    stage: str
    row_bytes: int
    counts: tuple[tuple[list[int], list[int]], ...]
    run: Callable[[], None]


class Clock(Protocol):
    """Names the stages of a step; measures them only when the harness asks for a breakdown."""

    @property
    def watched(self) -> bool:
        """Whether anybody looks at the stages, each of which is then to be entered and left."""
        ...

    def __call__(self, stage: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Context:
    """What a strategy is given: where it runs, with which kernels, on what.

    cameras: by view number, the same for all strategies. bounds: [2, 3] of the initial Gaussians. extent: scene
    extent that scales the mean's learning rate, world units (radius of the training cameras, Kerbl et al. 2023).
    """

    world: World
    comm: Communicator
    kernels: KernelSet
    clock: Clock
    training: Training
    cameras: Sequence[Camera]
    batch: int
    seed: int
    bounds: np.ndarray
    extent: float


class Strategy(ABC):
    """One way to train on many devices. Every method is called on all ranks alike."""

    @abstractmethod
    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        """Take the Gaussians this rank owns from the source."""

    @abstractmethod
    def step(self, queue: ViewQueue) -> StepReport:
        """Train on the next views of the queue; densify, migrate and rebalance when due."""

    def settle(self) -> None:
        """Bring what steps have begun to where it can no longer change, for a clock that is about to stop.

        Only a strategy whose steps end before it knows that they were right has something to do here.
        """
        return None

    @abstractmethod
    def render(self, camera: Camera) -> torch.Tensor | None:
        """The image of that camera, [H, W, 3] in [0, 1], on rank 0; None elsewhere. Collective."""

    def pictures(self, cameras: Iterable[Camera]) -> Iterator[torch.Tensor | None]:
        """What `render` gives for each of these cameras, in their order, with no step in between. Collective.

        A strategy may begin a picture before it gives the one before, but gives none that may still turn out wrong.
        """
        for camera in cameras:
            yield self.render(camera)

    @property
    def visits_to_settle(self) -> int:
        """Passes over the same views until further ones are alike, for one that learns from them how to do them faster;
        warm-up is at least two."""
        return 0

    @abstractmethod
    def shards(self) -> Iterator[Shard]:
        """The Gaussians this rank owns, in bounded pieces."""

    @abstractmethod
    def load(self, reader: ShardReader) -> None:
        """Replace all Gaussians by the saved ones; each rank keeps those it owns."""

    def statistics(self) -> dict[str, float]:
        """What the strategy's mechanisms did since the last call: metric name to the whole job's value. Collective.

        Names are metrics of the harness; every rank returns the same. Empty for a strategy that counts nothing.
        """
        return {}

    def exchange_trials(self, views: Sequence[int]) -> list[ExchangeTrial]:
        """The exchanges of a step on those views, as many as a batch has, for a clock of their own. Collective.

        They last until the next step, and change no Gaussian. Empty for a strategy that cannot do this alone.
        """
        return []

    @property
    @abstractmethod
    def images_seen(self) -> int:
        """Images the job has trained on: the clock of every schedule."""

    @property
    @abstractmethod
    def tensor_bytes(self) -> list[int]:
        """Most bytes of tensors held at once, by place of this process: parameters, moments and workspaces."""

    @property
    def mapped_bytes(self) -> list[int]:
        """Of these, by place, those that PyTorch's allocator knows nothing of."""
        return [0] * len(self.tensor_bytes)
