"""`splaxel` with compiled kernels, several ranks on one GPU: equal to `single` where it says so, else to the CPU."""

from __future__ import annotations

import pytest
import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from strategies.distribution.virtual import VirtualWorld
from strategies.splaxel.info import SplaxelOptions
from strategies.splaxel.strategy import Splaxel
from strategies.training.config import Training

pytestmark = pytest.mark.gpu

EXACT = {"boundary": "exact", "saturation": "off"}
STILL = Training(sh_every=0, rate_scale=0.0, background=(0.3, 0.1, 0.6))
"""Nothing moves, so that moments gather the gradients of many steps and no rounding grows."""
COUNT = 3000


@pytest.fixture(autouse=True)
def _a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")


@pytest.fixture
def on_gpu(make_pair):
    """Jobs with compiled kernels that stop nowhere."""
    return lambda training=STILL, batch=1: make_pair(compiled(t_stop=0.0), training, batch)


def compiled(**settings) -> KernelSet:
    return KernelSet("compiled", torch.device("cuda", 0), **settings)


def assert_equal(job, oracle) -> None:
    """Losses, gradients and image, as float32 lets sums in another order agree."""
    assert torch.allclose(job.losses, oracle.losses, rtol=1e-5)
    assert (job.image - oracle.image).abs().max() <= 1e-5
    assert job.moment1.shape == oracle.moment1.shape
    for group in layout.PARAMETER_GROUPS.values():
        largest = oracle.moment1[:, group].abs().max() if len(oracle.moment1) else 0.0
        assert bool(((job.moment1 - oracle.moment1)[:, group].abs() <= 1e-5 * largest).all())


def assert_near(job, oracle) -> None:
    """The same work, in another precision: a splat may have or miss a pixel at which it is all but invisible."""
    assert torch.allclose(job.losses, oracle.losses, rtol=1e-3)
    difference = (job.image - oracle.image).abs()
    assert difference.mean() <= 5e-5
    assert difference.max() <= 1e-2
    for group in layout.PARAMETER_GROUPS.values():
        error = (job.moment1 - oracle.moment1)[:, group].norm()
        assert error <= 1e-2 * oracle.moment1[:, group].norm()


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (1, {"boxes_per_rank": 3, "order": "depth"}),
        (2, {}),
        (2, {"compose": "owner", "boxes_per_rank": 2}),
        (2, {"regions": "whole"}),
        (3, {"order": "depth"}),
        (3, {"compose": "owner", "order": "depth", "boxes_per_rank": 4}),
        (3, {"repartition_images": 3, "repartition_imbalance": 0.0, "boxes_per_rank": 2}),
        (5, {"boxes_per_rank": 2}),
    ],
)
def test_losses_gradients_and_image_equal_single(make_scene, on_gpu, ranks, options):
    scene = make_scene(count=COUNT)
    assert_equal(on_gpu().splaxel(scene, ranks, 8, **EXACT, **options), on_gpu().single(scene, 8))


@pytest.mark.parametrize("optimizer", ["dense", "visible", "touched"])
@pytest.mark.parametrize(("ranks", "batch", "compose"), [(2, 3, "all"), (3, 2, "owner")])
def test_batches_equal_single_at_the_same_batch(make_scene, on_gpu, optimizer, ranks, batch, compose):
    scene, pair = make_scene(count=COUNT), on_gpu(STILL.model_copy(update={"optimizer": optimizer}), batch)
    assert_equal(pair.splaxel(scene, ranks, 2 * batch, compose=compose, **EXACT), pair.single(scene, 2 * batch))


def test_a_step_moves_gaussians_as_single_does(make_scene, on_gpu):
    """Adam's usual epsilon would turn a gradient's last bit into a step of full length."""
    scene, pair = make_scene(count=COUNT), on_gpu(Training(sh_every=0, epsilon=1e-4))
    job, oracle = pair.splaxel(scene, 3, 1, **EXACT), pair.single(scene, 1)
    start = scene.source.parameters
    assert (oracle.parameters - start).abs().max() > 1e-3
    assert (job.parameters - oracle.parameters).abs().max() <= 2e-5


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("options", "training"),
    [
        (EXACT, STILL),
        ({"boundary": "drop", "saturation": "off"}, STILL),
        ({"boundary": "keep", "saturation": "off", "boxes_per_rank": 2}, STILL),
        ({"boundary": "drop", "saturation_eps": 1e-2, "compose": "owner"}, STILL),
        ({"boundary": "exact", "saturation_eps": 1e-2, "reactivate": "every_k", "every": 3}, STILL),
        ({"boundary": "drop", "order": "depth", "window": 4}, STILL),
        ({"boundary": "drop", "saturation": "off"}, STILL.model_copy(update={"occlusion": "history"})),
    ],
)
def test_every_mechanism_does_on_a_gpu_what_it_does_on_the_cpu(street, make_pair, ranks, options, training):
    """Walls one behind the other: with production's stop, boxes hide one another."""
    street.source.parameters[:, layout.OPACITY_LOGIT] = 2.0
    on_gpu, on_cpu = make_pair(compiled(), training), make_pair(KernelSet("portable"), training)
    job, oracle = (pair.splaxel(street, ranks, 12, **options) for pair in (on_gpu, on_cpu))
    assert_near(job, oracle)
    assert job.statistics[0].keys() == oracle.statistics[0].keys()
    for name in (name for name in oracle.statistics[0] if name.endswith("share")):
        assert job.statistics[0][name] == pytest.approx(oracle.statistics[0][name], rel=0.05, abs=0.02), name
    for rank, ledger in enumerate(oracle.ledgers):
        for stage, payload in ledger.payload.items():
            moved = job.ledgers[rank].payload[stage]
            assert bool(((moved - payload).abs() <= 0.02 * payload.sum() + 64).all()), stage


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_ranks_without_gaussians_take_part(make_scene, on_gpu, count, ranks):
    scene = make_scene(count=count, views=2)
    assert_equal(on_gpu().splaxel(scene, ranks, 4, boxes_per_rank=2, **EXACT), on_gpu().single(scene, 4))


@pytest.mark.parametrize("options", [{}, {"compose": "owner"}, {"saturation": "off"}, {"boundary": "exact"}])
def test_views_that_see_nothing_count_their_loss_once(small_scene, on_gpu, options):
    small_scene.source.parameters[:, layout.MEAN] += torch.tensor([0.0, 0.0, -500.0])
    small_scene.cameras = small_scene.cameras[:1]
    job = on_gpu().splaxel(small_scene, 2, 2, **options)
    assert_equal(job, on_gpu().single(small_scene, 2))


def test_a_model_saved_on_two_ranks_and_loaded_on_three_renders_the_same(make_scene, on_gpu):
    scene, pair = make_scene(count=COUNT), on_gpu()
    job = pair.splaxel(scene, 2, 3, **EXACT)

    def main(comm):
        strategy = Splaxel()
        context = scene.context(pair.kernels, pair.training, 1, comm)
        strategy.setup(context, scene.source, scene.images, SplaxelOptions(**EXACT))
        strategy.load(job)
        return strategy.render(scene.cameras[0])

    assert (VirtualWorld(3).run(main, pair.kernels.device)[0].cpu() - job.image).abs().max() <= 1e-5
