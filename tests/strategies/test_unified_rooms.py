"""`unified` with kernels that take rooms: what a view needed at its last visit tells how much to ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.training import rooms as rooms_module
from strategies.training.config import Training
from strategies.unified.info import ROW_BYTES, UnifiedOptions
from strategies.unified.strategy import Unified
from strategies.views import ViewQueue

PLACES, STEPS = 3, 8


def train(scene, kernels: KernelSet, batch: int, spoil=lambda strategy: None, occlusion: str = "off", **options):
    """The strategy, and by step loss, visible Gaussians and instances. spoil: called once all views have been seen."""
    comm, devices = LocalCommunicator(places=PLACES), (torch.device("cpu"),) * PLACES
    training = Training(sh_every=2, occlusion=occlusion)
    context = replace(scene.context(kernels, training, batch, comm), world=World(0, 1, devices, PLACES))
    strategy, order, told = Unified(), ViewQueue(range(4), shuffle=False), []
    strategy.setup(context, scene.source, scene.images, UnifiedOptions(stripe_bytes=3 * ROW_BYTES, **options))
    for step in range(STEPS):
        if step * batch == 4:
            spoil(strategy)
        report = strategy.step(order)
        told.append((report.loss.item(), report.visible_gaussians, report.tile_instances))
    return strategy, torch.tensor(told, dtype=torch.float64)


def short(strategy: Unified) -> None:
    """One place expects fewer splats of a view than it has."""
    strategy.places[1].rooms.learn(2, 1, 0)


@pytest.mark.parametrize("occlusion", ["off", "history"])
@pytest.mark.parametrize("exchange", ["push", "remote_atomic", "local_reduce"])
@pytest.mark.parametrize(("batch", "spoil"), [(1, None), (2, None), (1, short), (2, short)])
def test_rooms_change_nothing_but_who_waits(
    kernels_with_rooms, make_scene, monkeypatch, batch, spoil, exchange, occlusion
):
    monkeypatch.setattr(rooms_module, "MARGIN", 4)
    given = {"exchange": exchange, "occlusion": occlusion}
    exact, expected = train(make_scene(), KernelSet("portable"), batch, **given)
    module = kernels_with_rooms("roomy")
    roomy, told = train(make_scene(), KernelSet("roomy"), batch, spoil or (lambda strategy: None), **given)
    assert torch.allclose(told, expected, rtol=1e-5)
    assert torch.equal(told[:, 1:], expected[:, 1:])
    for ours, theirs in zip(roomy.shards(), exact.shards(), strict=True):
        assert torch.equal(ours.ids, theirs.ids)
        assert torch.allclose(ours.parameters, theirs.parameters, atol=1e-4)
    for stage, payload in exact.ctx.comm.ledger.payload.items():
        assert torch.equal(roomy.ctx.comm.ledger.payload[stage], payload)
    # Four views are first visits; what was too small is projected once more.
    assert module.exact == 4 * PLACES + (spoil is not None)
    assert module.roomy == (STEPS * batch - 4) * PLACES
