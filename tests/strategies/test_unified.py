"""`unified` equals `single` on any number of places, whatever the placement and the exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.unified.info import ROW_BYTES, UnifiedOptions
from strategies.unified.strategy import Unified
from strategies.views import ViewQueue

REFERENCE = KernelSet("reference", precision="float64", t_stop=0.0)
PORTABLE = KernelSet("portable", t_stop=0.0)
SMOOTH = Training(sh_every=0, epsilon=1e-8)
"""Adam's usual epsilon of 1e-15 turns a last-bit difference of a gradient into a visible one of a parameter."""
THREE_ROWS = 3 * ROW_BYTES + 100
"""A stripe so small that a tiny scene has many, and that rows span its borders."""


def single(scene, kernels=REFERENCE, training=SMOOTH, batch=1) -> Single:
    strategy = Single()
    strategy.setup(scene.context(kernels, training, batch), scene.source, scene.images, SingleOptions())
    return strategy


def unified(scene, places: int, kernels=REFERENCE, training=SMOOTH, batch=1, **options) -> Unified:
    context = scene.context(kernels, training, batch)
    world = World(0, 1, (torch.device("cpu"),) * places, places)
    context = replace(context, world=world, comm=LocalCommunicator(places=places))
    strategy = Unified()
    options = {"stripe_bytes": THREE_ROWS} | options
    strategy.setup(context, scene.source, scene.images, UnifiedOptions(**options))
    return strategy


def trained(strategy, scene, steps: int) -> torch.Tensor:
    """The loss of each step."""
    order = ViewQueue(range(len(scene.cameras)), seed=3)
    return torch.tensor([strategy.step(order).loss.item() for _ in range(steps)], dtype=torch.float64)


def by_id(strategy, column: str = "parameters") -> torch.Tensor:
    """A table in the order of ids; each id once."""
    shards = list(strategy.shards())
    ids = torch.cat([s.ids for s in shards])
    assert sorted(ids.tolist()) == list(range(len(ids)))
    return torch.cat([getattr(s, column) for s in shards])[torch.argsort(ids)]


@pytest.mark.parametrize("exchange", ["push", "remote_atomic", "local_reduce"])
@pytest.mark.parametrize(("places", "placement"), [(1, "striped"), (2, "round_robin"), (3, "striped"), (8, "round_robin")])
def test_free_running_float64_unified_equals_single(scene, places, placement, exchange):
    strategy, oracle = unified(scene, places, exchange=exchange, placement=placement), single(scene)
    assert torch.allclose(trained(strategy, scene, 12), trained(oracle, scene, 12), atol=1e-10)
    assert torch.allclose(by_id(strategy), by_id(oracle), atol=1e-8, rtol=0)
    image, truth = strategy.render(scene.cameras[0]), oracle.render(scene.cameras[0])
    assert torch.allclose(image, truth, atol=1e-8)
