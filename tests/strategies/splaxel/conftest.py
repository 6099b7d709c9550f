"""Small scenes with cameras anywhere, and `splaxel` beside `single` on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from strategies.base import Shard, World
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.ledger import Ledger
from strategies.distribution.virtual import VirtualWorld
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.splaxel.info import SplaxelOptions
from strategies.splaxel.strategy import Splaxel
from strategies.training.config import Training
from strategies.views import ViewQueue

REFERENCE = KernelSet("reference", precision="float64", t_stop=0.0)
SMOOTH = Training(sh_every=0, epsilon=1e-8, background=(0.3, 0.1, 0.6))
"""Adam's usual epsilon of 1e-15 turns a last-bit difference of a gradient into a visible one of a parameter."""


@dataclass
class Trained:
    """A job after some steps, and a reader of its model. parameters, moment1: in the order of ids; they, losses and
    image lie on the host. statistics, ledger: by rank."""

    parameters: torch.Tensor
    moment1: torch.Tensor
    losses: torch.Tensor
    image: torch.Tensor
    strategies: list
    reports: list
    statistics: list[dict[str, float]]
    ledgers: list[Ledger]

    @property
    def count(self) -> int:
        return len(self.parameters)

    def shards(self) -> Iterator[Shard]:
        for strategy in self.strategies:
            yield from strategy.shards()


def _by_id(strategies, name: str) -> torch.Tensor:
    shards = [s for strategy in strategies for s in strategy.shards()]
    if not shards:
        return torch.zeros(0, layout.PARAMETERS)
    ids = torch.cat([s.ids for s in shards])
    assert sorted(ids.tolist()) == list(range(len(ids)))
    return torch.cat([getattr(s, name) for s in shards])[torch.argsort(ids)].cpu()


@dataclass
class Pair:
    """Trains a scene with `splaxel`, or with `single`, where its kernels compute."""

    kernels: KernelSet = REFERENCE
    training: Training = SMOOTH
    batch: int = 1

    def splaxel(self, scene, ranks: int, images: int, **options) -> Trained:
        losses: dict[int, list[float]] = {}

        def rank_main(comm: Communicator):
            strategy = Splaxel()
            context = scene.context(self.kernels, self.training, self.batch, comm)
            strategy.setup(context, scene.source, scene.images, SplaxelOptions(**options))
            order = ViewQueue(range(len(scene.cameras)), seed=3)
            reports, own = [], losses.setdefault(comm.rank, [])
            while strategy.images_seen < images:
                reports.append(strategy.step(order))
                own.append(reports[-1].loss.item())
            ledger, counted = comm.ledger, strategy.statistics()
            with comm.off_the_record():
                image = strategy.render(scene.cameras[0])
            return strategy, image, counted, ledger, reports

        results = VirtualWorld(ranks).run(rank_main, self.kernels.device)
        strategies = [r[0] for r in results]
        return Trained(
            _by_id(strategies, "parameters"),
            _by_id(strategies, "moment1"),
            torch.tensor([losses[r] for r in range(ranks)], dtype=torch.float64).sum(dim=0),
            results[0][1].cpu(),
            strategies,
            [r[4] for r in results],
            [r[2] for r in results],
            [r[3] for r in results],
        )

    def single(self, scene, images: int) -> Trained:
        strategy = Single()
        device = self.kernels.device
        context = scene.context(self.kernels, self.training, self.batch)
        context = replace(context, world=World.alone(device), comm=LocalCommunicator(device))
        strategy.setup(context, scene.source, scene.images, SingleOptions())
        order = ViewQueue(range(len(scene.cameras)), seed=3)
        reports, losses = [], []
        for _ in range(images // self.batch):
            reports.append(strategy.step(order))
            losses.append(reports[-1].loss.item())
        return Trained(
            _by_id([strategy], "parameters"),
            _by_id([strategy], "moment1"),
            torch.tensor(losses, dtype=torch.float64),
            strategy.render(scene.cameras[0]).cpu(),
            [strategy],
            [reports],
            [{}],
            [],
        )


@pytest.fixture(scope="session")
def pair() -> Pair:
    return Pair()


@pytest.fixture
def make_pair():
    """Pair itself, for tests that choose kernels, training or batch."""
    return Pair


def assert_equal(a: Trained, b: Trained) -> None:
    assert torch.allclose(a.losses, b.losses, rtol=0, atol=1e-10)
    assert torch.allclose(a.parameters, b.parameters, rtol=0, atol=1e-8)
    assert torch.allclose(a.image, b.image, rtol=0, atol=1e-8)


@pytest.fixture(scope="session")
def assert_same():
    """Losses, parameters and image of two jobs agree as float64 lets them."""
    return assert_equal


def look_from(position, towards, width: int = 33, height: int = 25, focal: float = 24.0):
    """A camera at that place that looks there, image rows roughly downwards in y."""
    forward = np.asarray(towards, dtype=np.float64) - np.asarray(position, dtype=np.float64)
    forward /= np.linalg.norm(forward)
    up = np.array([0.0, 1.0, 0.0]) if abs(forward[1]) < 0.9 else np.array([1.0, 0.0, 0.0])
    right = np.cross(up, forward)
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = [right, np.cross(forward, right), forward]
    pose[:3, 3] = -pose[:3, :3] @ np.asarray(position, dtype=np.float64)
    return Camera(width, height, focal, focal + 1, width / 2 + 1, height / 2 - 1, pose)


@pytest.fixture(scope="session")
def look_at():
    return look_from


@pytest.fixture
def small_scene(make_scene):
    """40 Gaussians and three small views, one of them from the midst of the Gaussians."""
    scene = make_scene(count=40, views=3)
    scene.cameras = [
        look_from([0.0, 0.0, -4.0], [0, 0, 0]),
        look_from([2.0, 1.5, 2.0], [0, 0, 0]),
        look_from([0.1, 0.0, 0.2], [1, 0.3, 0.5]),
    ]
    scene.images.images = [image[:25, :33].contiguous() for image in scene.images.images]
    return scene


@pytest.fixture
def street(make_scene):
    """Walls of opaque discs, one behind the other along z, and views along the street: much is hidden."""
    scene = make_scene(count=360, views=4, seed=5)
    generator = torch.Generator().manual_seed(1)
    table = scene.source.parameters
    table[:, layout.MEAN] = torch.rand(360, 3, generator=generator) * 2 - 1
    table[:, 2] = torch.arange(360) // 60 * 2.0 + 1.0 + 0.05 * table[:, 2]
    table[:, layout.LOG_SCALE] = torch.tensor([-1.2, -1.2, -4.0])
    table[:, layout.QUATERNION] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    table[:, layout.OPACITY_LOGIT] = 4.0
    scene.cameras = [look_from([0.1 * v, 0.0, -2.0], [0.1 * v, 0.0, 5.0], 48, 32, 60.0) for v in range(4)]
    scene.images.images = [
        torch.randint(0, 256, (32, 48, 3), dtype=torch.uint8, generator=generator) for _ in scene.cameras
    ]
    return scene


@pytest.fixture
def portable_pair() -> Pair:
    """float32, with the stop that training uses."""
    return replace(Pair(), kernels=KernelSet("portable"), training=Training(sh_every=0))


@pytest.fixture(params=["portable", pytest.param("compiled", marks=pytest.mark.gpu)])
def still_pair(request) -> Pair:
    """float32 and the stop that training uses, with nothing that moves: a visit differs from the one before by its
    masks alone."""
    on_gpu = request.param == "compiled"
    if on_gpu and not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    return Pair(KernelSet(request.param, device), Training(sh_every=0, rate_scale=0.0))
