"""`grendel` equals `single` on any number of ranks, and its traffic is the closed form."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.gaussian_exchange import BACKWARD_BYTES, FORWARD_BYTES
from strategies.distribution.virtual import VirtualWorld
from strategies.grendel.info import GrendelOptions
from strategies.grendel.strategy import Grendel
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.views import ViewQueue

REFERENCE = KernelSet("reference", precision="float64", t_stop=0.0)
PORTABLE = KernelSet("portable", t_stop=0.0)
SMOOTH = Training(sh_every=0, epsilon=1e-8)
"""Adam's usual epsilon of 1e-15 turns a last-bit difference of a gradient into a visible one of a parameter."""


def oracle(scene, kernels=REFERENCE, training=SMOOTH, batch=1) -> Single:
    strategy = Single()
    strategy.setup(scene.context(kernels, training, batch), scene.source, scene.images, SingleOptions())
    return strategy


def grendel(scene, comm: Communicator, kernels=REFERENCE, training=SMOOTH, batch=1, **options) -> Grendel:
    strategy = Grendel()
    context = scene.context(kernels, training, batch, comm)
    strategy.setup(context, scene.source, scene.images, GrendelOptions(**options))
    return strategy


def queue(scene) -> ViewQueue:
    return ViewQueue(range(len(scene.cameras)), seed=3)


def by_id(strategies, column: str = "parameters") -> torch.Tensor:
    """All ranks' rows of a table in the order of ids; each id once."""
    shards = [s for strategy in strategies for s in strategy.shards()]
    ids = torch.cat([s.ids for s in shards])
    assert sorted(ids.tolist()) == list(range(len(ids)))
    return torch.cat([getattr(s, column) for s in shards])[torch.argsort(ids)]


def train(scene, ranks: int, steps: int, **settings):
    """Strategies by rank after some steps on the virtual engine, the loss of each step and the last render."""
    losses = torch.zeros(steps, dtype=torch.float64)

    def rank_main(comm: Communicator):
        strategy = grendel(scene, comm, **settings)
        order = queue(scene)
        for step in range(steps):
            losses[step] += strategy.step(order).loss.double()
        return strategy, strategy.render(scene.cameras[0])

    results = VirtualWorld(ranks).run(rank_main)
    return [s for s, _ in results], losses, results[0][1]


def train_oracle(scene, steps: int, **settings):
    strategy = oracle(scene, **settings)
    order = queue(scene)
    losses = torch.tensor([strategy.step(order).loss.item() for _ in range(steps)], dtype=torch.float64)
    return strategy, losses, strategy.render(scene.cameras[0])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("unit", ["block", "row", "image"])
def test_free_running_float64_grendel_equals_single(scene, ranks, unit):
    steps = 20
    strategies, losses, image = train(scene, ranks, steps, unit=unit)
    single, expected, truth = train_oracle(scene, steps)
    assert torch.allclose(losses, expected, atol=1e-10)
    assert torch.allclose(by_id(strategies), by_id([single]), atol=1e-8)
    assert torch.allclose(image, truth, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["dense", "visible", "touched"])
@pytest.mark.parametrize(("ranks", "batch"), [(2, 4), (3, 2), (5, 2), (2, 2)])
def test_batches_equal_single_at_the_same_batch(scene, optimizer, ranks, batch):
    training = Training(sh_every=0, epsilon=1e-8, optimizer=optimizer)
    strategies, losses, _ = train(scene, ranks, 3, training=training, batch=batch)
    single, expected, _ = train_oracle(scene, 3, training=training, batch=batch)
    assert torch.allclose(losses, expected, atol=1e-10)
    assert torch.allclose(by_id(strategies), by_id([single]), atol=1e-8)


@pytest.mark.parametrize("ownership", ["morton_blocks", "contiguous", "random", "kdtree"])
@pytest.mark.parametrize("balance", ["work", "off", "measured"])
def test_neither_ownership_nor_balance_changes_the_result(scene, ownership, balance):
    strategies, _, _ = train(scene, 3, 5, ownership=ownership, balance=balance)
    single, _, _ = train_oracle(scene, 5)
    assert torch.allclose(by_id(strategies), by_id([single]), atol=1e-8)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_float32_gradients_and_images_equal_single_from_the_same_parameters(scene, ranks):
    """Design's definition (a): every step starts from the oracle's parameters. With beta1 = 0 Adam's first moment is
    the gradient itself."""
    training = Training(sh_every=0, beta1=0.0)
    steps = 20
    single = oracle(scene, PORTABLE, training)
    order, starts, gradients, images = queue(scene), [], [], []
    for step in range(steps):
        starts.append(by_id([single]))
        images.append(single.render(scene.cameras[step % 4]).clone())
        single.step(order)
        gradients.append(by_id([single], "moment1"))

    def rank_main(comm: Communicator):
        strategy = grendel(scene, comm, PORTABLE, training)
        mine, found = queue(scene), []
        for step in range(steps):
            ids = strategy.gaussians.ids
            strategy.gaussians.parameters.copy_(starts[step][ids])
            image = strategy.render(scene.cameras[step % 4])
            strategy.step(mine)
            found.append((ids, strategy.gaussians.moment1.clone(), None if image is None else image.clone()))
        return found

    by_rank = VirtualWorld(ranks).run(rank_main)
    for step in range(steps):
        assert (by_rank[0][step][2] - images[step]).abs().max() <= 1e-5
        for group in layout.PARAMETER_GROUPS.values():
            largest = gradients[step][:, group].abs().max()
            for ids, gradient, _ in (found[step] for found in by_rank):
                error = (gradient[:, group] - gradients[step][ids][:, group]).abs()
                assert error.numel() == 0 or error.max() <= 1e-5 * largest


def test_free_running_float32_loss_agrees_with_single(scene):
    training = Training(sh_every=0)
    _, losses, _ = train(scene, 3, 12, kernels=PORTABLE, training=training)
    _, expected, _ = train_oracle(scene, 12, kernels=PORTABLE, training=training)
    assert torch.allclose(losses, expected, rtol=1e-4)


def test_rank_that_owns_nothing_and_one_that_renders_nothing_take_part(make_scene):
    scene = make_scene(count=3, views=2)
    for camera in scene.cameras:
        assert camera.tiles < 30
    strategies, losses, _ = train(scene, 5, 3, unit="image")
    single, expected, _ = train_oracle(scene, 3)
    assert 0 in [sum(len(s.ids) for s in strategy.shards()) for strategy in strategies]
    assert torch.allclose(losses, expected, atol=1e-10)
    assert torch.allclose(by_id(strategies), by_id([single]), atol=1e-8)


def test_views_that_see_nothing_are_trained_on_without_traffic(scene):
    scene.source.parameters[:, layout.MEAN] += 1000.0

    def rank_main(comm: Communicator):
        strategy = grendel(scene, comm)
        strategy.step(queue(scene))
        return comm.ledger.payload["exchange_forward"].sum().item()

    assert VirtualWorld(3).run(rank_main) == [0, 0, 0]


@pytest.mark.parametrize(("ranks", "batch", "unit"), [(2, 1, "block"), (4, 3, "row"), (3, 2, "image")])
def test_ledger_payload_is_the_closed_form(scene, ranks, batch, unit):
    """Bytes = sum over views and destinations of n(view, destination) x (44 + 36), the diagonal included."""

    def rank_main(comm: Communicator):
        strategy = grendel(scene, comm, kernels=PORTABLE, batch=batch, unit=unit)
        order = queue(scene)
        views = order.peek(batch)
        regions = strategy.balance.cut(views, [scene.cameras[v] for v in views])
        strategy.step(order)
        return strategy, regions, comm.ledger

    results = VirtualWorld(ranks).run(rank_main)
    regions = results[0][1]
    views = queue(scene).peek(batch)
    expected = torch.zeros(ranks, dtype=torch.int64)
    work = Workspace()
    ids = torch.arange(scene.source.count)
    for number, view in enumerate(views):
        camera = scene.cameras[view]
        splats = op.project(PORTABLE, scene.source.parameters, ids, camera, 3, work)
        bins = op.bin_splats(PORTABLE, splats, camera, work)
        tile = bins.tiles.long().repeat_interleave(bins.starts.diff())
        met = torch.zeros((splats.count, ranks), dtype=torch.bool)
        met[bins.splat.long(), regions.owner(number)[tile]] = True
        expected += met.sum(dim=0)
    forward = sum(ledger.payload["exchange_forward"] for _, _, ledger in results)
    backward = sum(ledger.payload["exchange_backward"] for _, _, ledger in results)
    assert torch.equal(forward.sum(0), expected * FORWARD_BYTES)
    assert torch.equal(backward, (forward // FORWARD_BYTES * BACKWARD_BYTES).T)


def test_padded_records_move_the_same_payload_and_say_what_is_padding(scene):
    def ledger_of(record: str):
        def rank_main(comm: Communicator):
            strategy = grendel(scene, comm, kernels=PORTABLE, record=record)
            strategy.step(queue(scene))
            return comm.ledger, by_id

        return [ledger for ledger, _ in VirtualWorld(2).run(rank_main)]

    packed, padded = ledger_of("packed"), ledger_of("64")
    for a, b in zip(packed, padded, strict=True):
        assert torch.equal(a.payload["exchange_forward"], b.payload["exchange_forward"])
        records = a.payload["exchange_forward"] // FORWARD_BYTES
        # An id of 8 B is metadata in either, and lies in the padding of 20 B.
        assert torch.equal(b.metadata["exchange_forward"], a.metadata["exchange_forward"] + 12 * records)


def test_gaussians_whose_ids_compiled_records_have_no_room_for_are_refused(scene, monkeypatch):
    strategy, compiled = grendel(scene, LocalCommunicator()), KernelSet("compiled")
    saved = [replace(shard, ids=shard.ids + 2**31 - 1) for shard in strategy.shards()]
    strategy.ctx = replace(strategy.ctx, kernels=compiled)
    largest = 2**31 + scene.source.count - 2
    with pytest.raises(ValueError, match=f"Gaussian id {largest}: .* ids from 0 to 2147483647"):
        strategy.load(SimpleNamespace(count=len(saved[0].ids), shards=lambda: iter(saved)))
    monkeypatch.setattr("strategies.distribution.gaussian_pictures.owned_ids", lambda *of: torch.tensor([0, 2**31]))
    with pytest.raises(ValueError, match=r"Gaussian id 2147483648: .* ids from 0 to 2147483647"):
        grendel(scene, LocalCommunicator(), compiled)


def test_halo_none_changes_the_gradient_only_where_a_border_runs(scene):
    exact, _, _ = train(scene, 2, 1, ssim_halo="exact")
    cut, _, _ = train(scene, 2, 1, ssim_halo="none")
    alone, _, _ = train(scene, 1, 1, ssim_halo="none")
    single, _, _ = train_oracle(scene, 1)
    assert torch.allclose(by_id(exact), by_id([single]), atol=1e-10)
    assert torch.allclose(by_id(alone), by_id([single]), atol=1e-10)
    assert not torch.allclose(by_id(cut), by_id([single]), atol=1e-10)


def test_opacity_threshold_sends_less_and_renders_wrongly(scene):
    def rank_main(least: float):
        def main(comm: Communicator):
            strategy = grendel(scene, comm, kernels=PORTABLE, min_opacity=least)
            image = strategy.render(scene.cameras[0])
            return comm.ledger.payload["exchange_forward"].sum().item(), image

        return main

    (all_sent, image), _ = VirtualWorld(2).run(rank_main(0.0))
    (fewer, wrong), _ = VirtualWorld(2).run(rank_main(0.5))
    assert fewer < 0.8 * all_sent
    assert (image - wrong).abs().max() > 0.05


@pytest.mark.parametrize("redistribute", ["random", "morton_blocks"])
def test_redistribution_moves_gaussians_with_their_optimizer_state_and_changes_nothing_else(scene, redistribute):
    settings = {"ownership": "contiguous", "redistribute": redistribute, "redistribute_images": 2}
    strategies, losses, _ = train(scene, 3, 7, **settings)
    single, expected, _ = train_oracle(scene, 7)
    owned = [torch.cat([s.ids for s in strategy.shards()]) for strategy in strategies]
    assert not torch.equal(owned[0], torch.arange(len(owned[0])))
    assert torch.allclose(losses, expected, atol=1e-10)
    assert torch.allclose(by_id(strategies), by_id([single]), atol=1e-8)


def test_equal_depths_are_blended_by_id_wherever_their_owners_are(make_scene):
    scene = make_scene(count=12, views=1)
    scene.source.parameters[:, layout.MEAN] = torch.tensor([0.0, 0.0, 0.0])
    scene.source.parameters[:, layout.OPACITY_LOGIT] = 2.0
    scene.source.parameters[:, layout.LOG_SCALE] = -1.0
    _, _, truth = train_oracle(scene, 0)
    for ownership in ("random", "contiguous"):
        _, _, image = train(scene, 3, 0, ownership=ownership)
        assert torch.allclose(image, truth, atol=1e-12)
