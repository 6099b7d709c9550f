"""`single` is the oracle: it must equal plain autograd and Adam, and its kernels must agree with float64."""

from __future__ import annotations

import pytest
import torch

from cuda_src import layout
from cuda_src.autograd import l1_ssim_loss, render
from cuda_src.operators import KernelSet
from strategies.base import Shard
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.training.schedule import column_rates
from strategies.views import ViewQueue

REFERENCE = KernelSet("reference", precision="float64", t_stop=0.0)
PORTABLE = KernelSet("portable", t_stop=0.0)


def single(scene, kernels: KernelSet, training: Training | None = None, batch: int = 1) -> Single:
    strategy = Single()
    strategy.setup(scene.context(kernels, training, batch), scene.source, scene.images, SingleOptions())
    return strategy


def queue(scene) -> ViewQueue:
    return ViewQueue(range(len(scene.cameras)), seed=3)


def parameters(strategy: Single) -> torch.Tensor:
    """In the order of ids."""
    shards = list(strategy.shards())
    return torch.cat([s.parameters for s in shards])[torch.argsort(torch.cat([s.ids for s in shards]))]


def test_single_equals_autograd_and_torch_adam_when_every_gaussian_moves(scene):
    training = Training(optimizer="dense", epsilon=1e-8, sh_every=0)
    strategy = single(scene, REFERENCE, training)
    own = queue(scene)
    model = scene.source.parameters.double().requires_grad_()
    moments = torch.optim.Adam([model], lr=1.0, betas=(training.beta1, training.beta2), eps=training.epsilon)
    theirs = queue(scene)
    for step in range(1, 6):
        report = strategy.step(own)
        view = theirs.take(theirs.peek(1))[0]
        image = render(REFERENCE, model, scene.cameras[view], 3, torch.zeros(3, dtype=torch.float64))
        loss = l1_ssim_loss(REFERENCE, image, scene.images.images[view])
        moments.zero_grad()
        loss.backward()
        before = model.detach().clone()
        moments.step()
        with torch.no_grad():
            # torch's Adam has one rate; the groups' rates scale its unit update.
            model.copy_(before + (model - before) * column_rates(training, 1.0, step))
        assert report.loss.item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.allclose(parameters(strategy), model.detach(), atol=1e-10)


@pytest.mark.parametrize("optimizer", ["dense", "visible", "touched"])
@pytest.mark.parametrize("batch", [1, 3])
def test_portable_follows_the_reference_when_both_start_each_step_from_the_same_parameters(scene, optimizer, batch):
    training = Training(optimizer=optimizer, epsilon=1e-3, sh_every=0, rate_scale=0.1)
    ours = single(scene, PORTABLE, training, batch)
    oracle = single(scene, REFERENCE, training, batch)
    mine, theirs = queue(scene), queue(scene)
    for _ in range(4):
        for name in ("parameters", "moment1", "moment2"):
            getattr(ours.gaussians, name).copy_(getattr(oracle.gaussians, name))
        before = oracle.gaussians.parameters.clone()
        a, b = ours.step(mine), oracle.step(theirs)
        assert a.visible_gaussians == b.visible_gaussians
        assert a.loss.item() == pytest.approx(b.loss.item(), rel=1e-5)
        for group in layout.PARAMETER_GROUPS.values():
            step = (oracle.gaussians.parameters - before)[:, group].abs().max()
            error = (ours.gaussians.parameters.double() - oracle.gaussians.parameters)[:, group].abs().max()
            # Beside the step's own size there is float32's rounding of the parameters it is added to.
            assert error <= 1e-3 * step + 1e-6


def test_free_running_loss_of_portable_and_reference_agrees(scene):
    training = Training(sh_every=0)
    ours, oracle = single(scene, PORTABLE, training), single(scene, REFERENCE, training)
    mine, theirs = queue(scene), queue(scene)
    for _ in range(12):
        loss, expected = ours.step(mine).loss.item(), oracle.step(theirs).loss.item()
        assert loss == pytest.approx(expected, rel=1e-4)


def test_training_lowers_the_loss_of_every_view(make_scene):
    scene = make_scene(count=200, views=3)
    target = single(make_scene(count=200, views=3, seed=9), PORTABLE)
    scene.images.images = [(target.render(c) * 255).to(torch.uint8) for c in scene.cameras]
    strategy = single(scene, PORTABLE)
    order = ViewQueue(range(3), shuffle=False)
    first = [strategy.step(order).loss.item() for _ in range(3)]
    for _ in range(60):
        strategy.step(order)
    last = [strategy.step(order).loss.item() for _ in range(3)]
    assert all(b < 0.8 * a for a, b in zip(first, last, strict=True))


@pytest.mark.parametrize("optimizer", ["visible", "touched"])
def test_gaussians_outside_every_view_of_the_step_do_not_move(scene, optimizer):
    scene.source.parameters[:30, layout.MEAN] += 1000.0
    strategy = single(scene, PORTABLE, Training(optimizer=optimizer, sh_every=0))
    before = parameters(strategy).clone()
    strategy.step(queue(scene))
    moved = (parameters(strategy) != before).any(dim=1)
    assert not moved[:30].any()
    assert moved[30:].any()


def test_dense_adam_keeps_moving_a_gaussian_that_left_the_view(scene):
    strategy = single(scene, PORTABLE, Training(optimizer="dense", sh_every=0))
    order = queue(scene)
    strategy.step(order)
    number = int(strategy.gaussians.ids[0])
    strategy.gaussians.parameters[0, layout.MEAN] += 1000.0
    strategy.gaussians.moment1[0] = 1.0
    before = parameters(strategy)[number].clone()
    strategy.step(order)
    assert (parameters(strategy)[number] != before).any()


@pytest.mark.parametrize("count", [0, 1])
def test_a_scene_of_no_gaussian_or_one_trains_and_renders(make_scene, count):
    scene = make_scene(count=count)
    strategy = single(scene, PORTABLE)
    report = strategy.step(queue(scene))
    assert report.loss.isfinite()
    image = strategy.render(scene.cameras[0])
    assert image.shape == (scene.cameras[0].height, scene.cameras[0].width, 3)
    assert image.isfinite().all()


def test_a_view_that_sees_nothing_leaves_all_parameters_alone(scene):
    scene.source.parameters[:, layout.MEAN] += 1000.0
    strategy = single(scene, PORTABLE)
    before = parameters(strategy).clone()
    report = strategy.step(queue(scene))
    assert (report.visible_gaussians, report.tile_instances) == (0, 0)
    assert torch.equal(parameters(strategy), before)


def test_a_model_saved_and_loaded_continues_bit_for_bit(scene):
    strategy = single(scene, PORTABLE)
    order = queue(scene)
    for _ in range(3):
        strategy.step(order)
    saved = [
        Shard(*(getattr(s, n).clone() for n in ("ids", "parameters", "moment1", "moment2"))) for s in strategy.shards()
    ]

    class Saved:
        count = scene.source.count

        def shards(self):
            for shard in reversed(saved):
                back = torch.arange(len(shard.ids)).flip(0)
                yield Shard(shard.ids[back], shard.parameters[back], shard.moment1[back], shard.moment2[back])

    restored = single(scene, PORTABLE)
    restored.load(Saved())
    restored._images_seen = strategy.images_seen
    again = queue(scene)
    again.take(again.peek(3))
    strategy.step(order)
    restored.step(again)
    assert torch.equal(parameters(strategy), parameters(restored))


def test_steady_state_takes_no_more_tensor_memory(scene):
    strategy = single(scene, PORTABLE, Training(sh_every=0, rate_scale=0.0))
    order = queue(scene)
    for _ in range(8):
        strategy.step(order)
    held = strategy.tensor_bytes
    for _ in range(4):
        strategy.step(order)
    assert strategy.tensor_bytes == held
