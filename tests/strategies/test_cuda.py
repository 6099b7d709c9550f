"""Strategies on a GPU with compiled kernels train as they do on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.registry import strategy as strategy_info
from strategies.training.config import Training
from strategies.views import ViewQueue

pytestmark = pytest.mark.gpu

STEPS = 6


@pytest.fixture(autouse=True)
def _a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")


def trained(scene, name: str, device: str, training: Training, batch: int):
    """Losses of a few steps, and the first camera's image after them."""
    backend = "compiled" if device == "cuda" else "reference"
    place = torch.device(device)
    context = scene.context(KernelSet(backend, device=place), training, batch)
    context = replace(context, world=World.alone(device), comm=LocalCommunicator(place))
    info = strategy_info(name)
    strategy = info.load()()
    strategy.setup(context, scene.source, scene.images, info.options())
    queue = ViewQueue(range(len(scene.cameras)), seed=3)
    losses = [strategy.step(queue).loss.item() for _ in range(STEPS)]
    image = strategy.render(scene.cameras[0])
    assert image is not None
    assert image.device.type == device
    assert sum(len(shard.ids) for shard in strategy.shards()) == scene.source.count
    return losses, image.cpu()


@pytest.mark.parametrize("name", ["single", "grendel"])
@pytest.mark.parametrize(("optimizer", "batch"), [("visible", 1), ("visible", 3), ("dense", 2), ("touched", 1)])
def test_losses_and_images_are_those_of_the_cpu(scene, name, optimizer, batch):
    training = Training(optimizer=optimizer, sh_every=0, background=(0.1, 0.2, 0.3))
    losses, image = trained(scene, name, "cuda", training, batch)
    expected, exact = trained(scene, name, "cpu", training, batch)
    assert losses == pytest.approx(expected, rel=1e-4)
    # Adam's first steps are as long as the rate wherever the gradient is, so rounding may turn a tiny one around.
    assert (image - exact).abs().mean() < 1e-3
