"""The row `gsplat` on one place: its own logic on the CPU with a stand-in of the package, the package on a GPU.

The stand-in computes with `reference` under gsplat's convention, so that what the strategy adds to the package
(conversion, rates, batch rules, rows) is held to `single` in float64.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch

from cuda_src.conventions import CONVENTIONS
from cuda_src.layout import PARAMETERS
from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.gsplat_peer import info as peer
from strategies.gsplat_peer.info import INFO, GsplatOptions
from strategies.gsplat_peer.strategy import GsplatPeer
from strategies.registry import strategy as strategy_info
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.views import ViewQueue

EXACT = KernelSet("reference", precision="float64", convention=CONVENTIONS["gsplat153"])
SMOOTH = Training(convention="gsplat153", sh_every=0, epsilon=1e-8)
"""Adam's usual epsilon of 1e-15 turns a last-bit difference of a gradient into a visible one of a parameter."""


def trained(kind: type, options, scene, steps: int, training: Training = SMOOTH, batch: int = 1, kernels=EXACT):
    """The strategy after some steps, and the reports of all."""
    strategy = kind()
    strategy.setup(scene.context(kernels, training, batch), scene.source, scene.images, options)
    queue = ViewQueue(range(len(scene.cameras)), seed=3)
    return strategy, [strategy.step(queue) for _ in range(steps)]


def table(strategy, name: str = "parameters") -> torch.Tensor:
    """That table of all Gaussians, by id."""
    shards = list(strategy.shards())
    ids = torch.cat([s.ids for s in shards])
    return torch.cat([getattr(s, name) for s in shards])[torch.argsort(ids)]


def assert_trained_alike(strategy, reports, single, expected) -> None:
    losses, exact = ([r.loss.item() for r in some] for some in (reports, expected))
    assert losses == pytest.approx(exact, abs=1e-10)
    for name in ("parameters", "moment1", "moment2"):
        assert torch.allclose(table(strategy, name), table(single, name), atol=1e-8), name


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("options", [{}, {"packed": True}, {"order": "morton"}, {"harmonics": "joined"}])
@pytest.mark.parametrize("optimizer", ["visible", "touched", "dense"])
def test_training_with_one_view_a_step_equals_single(scene, options, optimizer):
    training = SMOOTH.model_copy(update={"optimizer": optimizer, "background": (0.1, 0.3, 0.2)})
    found = trained(GsplatPeer, GsplatOptions(**options), scene, 6, training)
    expected = trained(Single, SingleOptions(), scene, 6, training)
    assert_trained_alike(*found, *expected)
    for report, exact in zip(found[1], expected[1], strict=True):
        assert int(report.visible_gaussians) == int(exact.visible_gaussians)
        assert report.tile_instances == exact.tile_instances


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("batch_rule", ["rows", "batch", "none"])
@pytest.mark.parametrize("optimizer", ["visible", "touched", "dense"])
@pytest.mark.parametrize("harmonics", ["split", "joined"])
def test_batches_follow_the_rule_of_single(make_scene, batch_rule, optimizer, harmonics):
    scene = make_scene(count=40, views=3)
    scene.source.parameters[::3, 0] += 2.5  # Some are seen by one view of the step, some by two.
    training = SMOOTH.model_copy(update={"optimizer": optimizer, "batch_rule": batch_rule})
    found = trained(GsplatPeer, GsplatOptions(harmonics=harmonics), scene, 3, training, batch=3)
    assert_trained_alike(*found, *trained(Single, SingleOptions(), scene, 3, training, batch=3))
    assert found[0].images_seen == 9


@pytest.mark.usefixtures("stand_in")
def test_the_active_degree_and_the_rates_follow_the_schedule(scene):
    training = SMOOTH.model_copy(update={"sh_every": 2, "rate_images": 5, "rate_scale": 0.5})
    assert_trained_alike(
        *trained(GsplatPeer, GsplatOptions(), scene, 7, training), *trained(Single, SingleOptions(), scene, 7, training)
    )


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("packed", [False, True])
def test_rows_out_of_sight_do_not_move(scene, packed):
    scene.source.parameters[10:20, :3] += 1000.0
    strategy, (report,) = trained(GsplatPeer, GsplatOptions(packed=packed), scene, 1)
    before, after = scene.source.parameters.double(), table(strategy)
    assert torch.equal(after[10:20], before[10:20])
    moved = (after != before).any(dim=1)
    assert int(moved.sum()) == int(report.visible_gaussians) > 20


@pytest.mark.usefixtures("stand_in")
def test_render_is_the_image_of_single_and_leaves_no_tape(scene):
    training = SMOOTH.model_copy(update={"background": (0.2, 0.9, 0.4)})
    strategy, _ = trained(GsplatPeer, GsplatOptions(), scene, 0, training)
    single, _ = trained(Single, SingleOptions(), scene, 0, training)
    for camera in scene.cameras:
        image = strategy.render(camera)
        assert image.shape == (camera.height, camera.width, 3)
        assert not image.requires_grad
        assert torch.allclose(image, single.render(camera), atol=1e-10)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("harmonics", ["split", "joined"])
def test_saved_gaussians_go_on_as_if_nothing_had_been_saved(scene, harmonics):
    strategy, _ = trained(GsplatPeer, GsplatOptions(order="morton", harmonics=harmonics), scene, 3)
    saved = list(strategy.shards())
    other, _ = trained(GsplatPeer, GsplatOptions(), scene, 0)
    other.load(SimpleNamespace(count=scene.source.count, shards=lambda: iter(saved)))
    other._images_seen = strategy.images_seen
    first, second = (ViewQueue(range(4), seed=8) for _ in range(2))
    for _ in range(3):
        strategy.step(first), other.step(second)
    for name in ("parameters", "moment1", "moment2"):
        assert torch.allclose(table(strategy, name), table(other, name), atol=1e-12), name


@pytest.mark.usefixtures("stand_in")
def test_columns_come_back_as_they_were_read_in_pieces_of_any_size(scene, monkeypatch):
    monkeypatch.setattr("strategies.gsplat_peer.parameters.SHARD_ROWS", 7)
    strategy, _ = trained(GsplatPeer, GsplatOptions(), scene, 0)
    assert [len(s.ids) for s in strategy.shards()] == [7] * 8 + [4]
    assert torch.equal(table(strategy), scene.source.parameters.double())
    assert strategy.tensor_bytes == [60 * (8 + 4 * PARAMETERS * 8)]


@pytest.mark.usefixtures("stand_in")
def test_more_gaussians_than_its_optimizer_can_count_are_refused_before_any_is_read(scene):
    many = SimpleNamespace(count=100_000_000)
    with pytest.raises(ValueError, match="at most 95,443,717 Gaussians a GPU, the scene has 100,000,000 for 1"):
        GsplatPeer().setup(scene.context(EXACT, SMOOTH), many, scene.images, GsplatOptions())


@pytest.mark.parametrize(
    ("installed", "device", "reason"),
    [
        ("1.5.3", "cuda", None),
        ("1.5.3", "cpu", "computes on GPUs only"),
        (None, "cpu", "computes on GPUs only"),
        (None, "cuda", "needs the package gsplat 1.5.3, which `pip install 'splat-harness[peer]'` brings"),
        ("1.4.0", "cuda", "needs gsplat 1.5.3, found 1.4.0"),
    ],
)
def test_what_is_missing_is_said_in_one_reason(monkeypatch, installed, device, reason):
    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(peer, "version", version)
    found = INFO.lacks(GsplatOptions(), device)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({}, None),
        ({"convention": "standard", "optimizer": "touched"}, None),
        ({"occlusion": "history"}, "no occlusion history"),
        ({"footprint": "square"}, "no footprint square"),
        ({"t_stop": 0.0}, "stops at transmittance 0.0001, not 0.0"),
        ({"sh_rest_rate": 0.0}, "joined harmonics all move by sh_rest_rate"),
    ],
)
def test_training_that_its_kernels_cannot_do_is_refused(training, reason):
    found = INFO.refuses_training(GsplatOptions(harmonics="joined"), Training(**training))
    assert found is None if reason is None else reason in found


def _on_gpu(scene, name: str, training: Training, batch: int, **options):
    """Losses of a few steps with compiled kernels, and the first camera's image after them."""
    device = torch.device("cuda")
    kernels = KernelSet("compiled", device, CONVENTIONS[training.convention])
    context = scene.context(kernels, training, batch)
    context = replace(context, world=World.alone(device), comm=LocalCommunicator(device))
    info = strategy_info(name)
    strategy = info.load()()
    strategy.setup(context, scene.source, scene.images, info.options(**options))
    queue = ViewQueue(range(len(scene.cameras)), seed=3)
    losses = [strategy.step(queue).loss.item() for _ in range(6)]
    return losses, strategy.render(scene.cameras[0]).cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("harmonics", ["split", "joined"])
@pytest.mark.parametrize(("optimizer", "batch"), [("visible", 1), ("touched", 1), ("dense", 1), ("visible", 3)])
def test_the_package_trains_on_a_gpu_as_single_does(make_scene, packed, harmonics, optimizer, batch):
    pytest.importorskip("gsplat")
    if not torch.cuda.is_available():
        pytest.skip("gsplat computes on GPUs only")
    scene = make_scene(count=300)
    training = Training(convention="gsplat153", sh_every=0, optimizer=optimizer, background=(0.1, 0.2, 0.3))
    losses, image = _on_gpu(scene, "gsplat", training, batch, packed=packed, harmonics=harmonics)
    expected, exact = _on_gpu(scene, "single", training, batch)
    assert losses == pytest.approx(expected, rel=1e-4)
    # Adam's first steps are as long as the rate wherever the gradient is, so rounding may turn a tiny one around.
    assert (image - exact).abs().mean() < 1e-3
    assert math.isfinite(image.sum())
