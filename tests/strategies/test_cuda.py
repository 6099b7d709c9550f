"""Strategies on a GPU train as they do on the CPU, with compiled kernels and with portable ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src import layout
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
        pytest.skip("needs a GPU")


def set_up(scene, name: str, kernels: KernelSet, training: Training, batch: int):
    context = scene.context(kernels, training, batch)
    context = replace(context, world=World.alone(kernels.device.type), comm=LocalCommunicator(kernels.device))
    info = strategy_info(name)
    strategy = info.load()()
    strategy.setup(context, scene.source, scene.images, info.options())
    return strategy


def trained(scene, name: str, backend: str, device: str, training: Training, batch: int):
    """Losses of a few steps, and the first camera's image after them."""
    strategy = set_up(scene, name, KernelSet(backend, device=torch.device(device)), training, batch)
    queue = ViewQueue(range(len(scene.cameras)), seed=3)
    losses = [strategy.step(queue).loss.item() for _ in range(STEPS)]
    image = strategy.render(scene.cameras[0])
    assert image is not None
    assert image.device.type == device
    assert sum(len(shard.ids) for shard in strategy.shards()) == scene.source.count
    return losses, image.cpu()


@pytest.mark.parametrize("backend", ["compiled", "portable"])
@pytest.mark.parametrize("name", ["single", "grendel"])
@pytest.mark.parametrize(("optimizer", "batch"), [("visible", 1), ("visible", 3), ("dense", 2), ("touched", 1)])
def test_losses_and_images_are_those_of_the_cpu(scene, name, backend, optimizer, batch):
    training = Training(optimizer=optimizer, sh_every=0, background=(0.1, 0.2, 0.3))
    losses, image = trained(scene, name, backend, "cuda", training, batch)
    expected, exact = trained(scene, name, "reference", "cpu", training, batch)
    assert losses == pytest.approx(expected, rel=1e-4)
    # Adam's first steps are as long as the rate wherever the gradient is, so rounding may turn a tiny one around.
    assert (image - exact).abs().mean() < 1e-3


def test_portable_gradients_and_images_on_a_gpu_equal_the_oracles_from_the_same_parameters(scene):
    """Design's definition (a) of exact: every step starts from the oracle's parameters. With beta1 = 0 Adam's first
    moment is the gradient itself."""
    training, steps = Training(sh_every=0, beta1=0.0), 20
    oracle = set_up(scene, "single", KernelSet("reference", precision="float64", t_stop=0.0), training, 1)
    ours = set_up(scene, "single", KernelSet("portable", device=torch.device("cuda"), t_stop=0.0), training, 1)
    queues = [ViewQueue(range(len(scene.cameras)), seed=3) for _ in range(2)]
    for step in range(steps):
        ours.gaussians.parameters.copy_(oracle.gaussians.parameters)
        # The oracle too: what float32 cannot hold is not what is compared.
        oracle.gaussians.parameters.copy_(ours.gaussians.parameters)
        images = [strategy.render(scene.cameras[step % 4]).cpu().double() for strategy in (ours, oracle)]
        assert (images[0] - images[1]).abs().max() <= 1e-5
        for strategy, queue in zip((ours, oracle), queues, strict=True):
            strategy.step(queue)
        gradient, exact = ours.gaussians.moment1.cpu().double(), oracle.gaussians.moment1
        for group in layout.PARAMETER_GROUPS.values():
            assert (gradient[:, group] - exact[:, group]).abs().max() <= 1e-5 * exact[:, group].abs().max()
