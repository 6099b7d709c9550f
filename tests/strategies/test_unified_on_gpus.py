"""`unified` with compiled kernels equals `single`: one place, places that share a GPU, and places on two GPUs."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from cuda_src import layout
from cuda_src.compiled.memory import SharedMemory
from cuda_src.operators import KernelSet
from strategies.base import Shard, World
from strategies.distribution.communicator import LocalCommunicator
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.unified.info import UnifiedOptions
from strategies.unified.strategy import Unified
from strategies.views import ViewQueue

pytestmark = pytest.mark.gpu

EXACT = Training(sh_every=0, beta1=0.0)
"""With beta1 = 0 Adam's first moment is the gradient itself."""
COUNT = 30_000
"""Four stripes of 2 MiB."""
PLACES = [
    (0,),
    (0, 0),
    (0, 0, 0, 0, 0),
    pytest.param((0, 1), marks=pytest.mark.multigpu),
    pytest.param((1, 0, 1), marks=pytest.mark.multigpu),
]
PLACEMENTS = ["round_robin", "striped", "managed"]
EXCHANGES = ["push", "remote_atomic", "local_reduce"]


@pytest.fixture(autouse=True)
def _a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")


@pytest.fixture
def crowd(make_scene):
    """Small Gaussians, so that lists stay short, in numbers that make several stripes."""

    def make(count: int = COUNT):
        scene = make_scene(count=count)
        scene.source.parameters[:, layout.LOG_SCALE] -= 1.5
        scene.source.parameters[:, layout.OPACITY_LOGIT] -= 2.0
        return scene

    return make


def single(scene, training: Training, batch: int) -> Single:
    device, strategy = torch.device("cuda", 0), Single()
    context = scene.context(KernelSet("compiled", device), training, batch, LocalCommunicator(device))
    strategy.setup(context, scene.source, scene.images, SingleOptions())
    return strategy


def unified(scene, gpus: tuple[int, ...], training: Training, batch: int, **options) -> Unified:
    if torch.cuda.device_count() <= max(gpus):
        pytest.skip("needs two GPUs")
    devices = tuple(torch.device("cuda", gpu) for gpu in gpus)
    comm = LocalCommunicator(devices[0], places=len(gpus))
    context = scene.context(KernelSet("compiled", devices[0]), training, batch, comm)
    context = replace(context, world=World(0, 1, devices, len(gpus)))
    strategy = Unified()
    strategy.setup(context, scene.source, scene.images, UnifiedOptions(**options))
    return strategy


def by_id(strategy, column: str) -> torch.Tensor:
    """A table in the order of ids, on the host; each id once."""
    shards = list(strategy.shards())
    ids = torch.cat([s.ids.cpu() for s in shards])
    assert torch.equal(ids.sort().values, torch.arange(len(ids)))
    return torch.cat([getattr(s, column).cpu() for s in shards])[torch.argsort(ids)]


class Saved:
    """A ShardReader over what a strategy held: on the host, as readers of files are."""

    def __init__(self, kept):
        self.kept = [Shard(s.ids.cpu(), s.parameters.cpu(), s.moment1.cpu(), s.moment2.cpu()) for s in kept]
        self.count = sum(len(s.ids) for s in self.kept)

    def shards(self):
        yield from self.kept


def set_parameters(strategy: Unified, values: torch.Tensor) -> None:
    """Every row of the table as in values, by id, each written by its owner."""
    for place in strategy.places:
        arena = place.arena
        arena.gaussians.parameters[arena.at] = values[arena.rows.cpu()].to(arena.gaussians.parameters.device)
    for gpu in {place.arena.device for place in strategy.places}:
        torch.cuda.synchronize(gpu)


def check(scene, gpus, steps: int = 6, batch: int = 1, training: Training = EXACT, **options) -> Unified:
    """Each step starts from the parameters of `single` beside it, and has its gradients, image and loss."""
    strategy, oracle = unified(scene, gpus, training, batch, **options), single(scene, training, batch)
    orders = [ViewQueue(range(len(scene.cameras)), seed=3) for _ in range(2)]
    for step in range(steps):
        set_parameters(strategy, by_id(oracle, "parameters"))
        camera = scene.cameras[step % len(scene.cameras)]
        image, truth = strategy.render(camera), oracle.render(camera)
        assert image is not None
        assert image.device == torch.device("cuda", gpus[0])
        assert (image.cpu() - truth.cpu()).abs().max() <= 1e-5, step
        loss, expected = strategy.step(orders[0]).loss.item(), oracle.step(orders[1]).loss.item()
        assert loss == pytest.approx(expected, rel=1e-5)
        gradients, exact = by_id(strategy, "moment1"), by_id(oracle, "moment1")
        for group in layout.PARAMETER_GROUPS.values():
            largest = exact[:, group].abs().max()
            assert (gradients[:, group] - exact[:, group]).abs().max() <= 1e-5 * largest, (step, group)
        # Adam's second step hides the size of what it moves by; that it moves the same rows is seen all the same.
        moved, rows = by_id(strategy, "moment2").any(dim=1), by_id(oracle, "moment2").any(dim=1)
        assert (moved != rows).sum() <= 1e-3 * rows.sum()
    return strategy


@pytest.mark.parametrize("gpus", PLACES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_steady_step_makes_the_host_wait_for_counts_alone(crowd, gpus, exchange, waits_are_errors):
    """Counts come in pinned memory behind an event; whatever else PyTorch would wait for is an error."""
    scene, order = crowd(), ViewQueue(range(4), shuffle=False)
    strategy = unified(scene, gpus, EXACT, 2, exchange=exchange)
    kept = {
        (view, torch.device("cuda", gpu)): image.to(f"cuda:{gpu}")
        for gpu in set(gpus)
        for view, image in enumerate(scene.images.images)
    }
    scene.images.region = lambda view, rect, device: kept[view, device]
    for _ in range(4):
        strategy.step(order)
    with waits_are_errors():
        for _ in range(4):
            strategy.step(order)


@pytest.mark.parametrize("gpus", PLACES)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("exchange", "batch"), [(exchange, 1 + k % 2) for k, exchange in enumerate(EXCHANGES)])
def test_gradients_images_and_losses_equal_single_from_the_same_parameters(crowd, gpus, placement, exchange, batch):
    strategy = check(crowd(), gpus, batch=batch, placement=placement, exchange=exchange)
    owned = [place.arena.count for place in strategy.places]
    assert sum(owned) == COUNT
    assert len(gpus) > 4 or min(owned) > 0
    assert (strategy.ctx.comm.ledger.wire_bytes() > 0) == (len(gpus) > 1)


@pytest.mark.parametrize("gpus", PLACES[1:])
@pytest.mark.parametrize("optimizer", ["touched", "dense"])
def test_other_rules_of_rows_hold_as_well(crowd, gpus, optimizer):
    check(crowd(), gpus, 4, batch=2, training=EXACT.model_copy(update={"optimizer": optimizer}))


@pytest.mark.parametrize("gpus", PLACES[1:])
def test_slots_of_48_bytes_a_background_and_masks(crowd, gpus):
    scene = crowd()
    generator = torch.Generator().manual_seed(1)
    sizes = [image.shape[:2] for image in scene.images.images]
    masks = [torch.randint(0, 256, size, dtype=torch.uint8, generator=generator) for size in sizes]
    scene.images.mask = lambda view, rect, device: masks[view][rect.y0 : rect.y1, rect.x0 : rect.x1].to(device)
    check(scene, gpus, 4, training=EXACT.model_copy(update={"background": (0.2, 0.5, 0.9)}), record=48)


@pytest.mark.parametrize("gpus", PLACES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_places_that_own_nothing_or_render_nothing_take_part(crowd, gpus, exchange):
    scene = crowd(count=40)  # A part of one stripe.
    strategy = check(scene, gpus, 3, exchange=exchange)
    assert [place.arena.count for place in strategy.places] == [40] + [0] * (len(gpus) - 1)
    small = replace(scene.cameras[0], width=17, height=16)  # Two tiles.
    scene.cameras[:] = [small, small]
    scene.images.images[:] = [image[:16, :17] for image in scene.images.images]
    check(scene, gpus, 3, exchange=exchange)


@pytest.mark.parametrize("gpus", PLACES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_views_that_see_nothing_are_trained_on(crowd, gpus, exchange):
    scene = crowd()
    scene.source.parameters[:, layout.MEAN] += 1000.0
    strategy, oracle = unified(scene, gpus, EXACT, 2, exchange=exchange), single(scene, EXACT, 2)
    orders = [ViewQueue(range(4), seed=3) for _ in range(2)]
    for _ in range(3):
        assert strategy.step(orders[0]).loss.item() == pytest.approx(oracle.step(orders[1]).loss.item(), rel=1e-6)
    assert torch.equal(by_id(strategy, "parameters"), scene.source.parameters)
    assert strategy.ctx.comm.ledger.payload["exchange_forward"].sum() == 0


@pytest.mark.parametrize("gpus", PLACES[1:])
def test_occlusion_history_leaves_out_the_same(crowd, gpus):
    scene = crowd()
    scene.source.parameters[:, layout.OPACITY_LOGIT] += 6.0
    training = Training(sh_every=0, occlusion="history", epsilon=1e-3, rate_scale=0.1)
    strategy, oracle = unified(scene, gpus, training, 1), single(scene, training, 1)
    losses = []
    for one in (strategy, oracle):
        order = ViewQueue(range(4), seed=3)
        losses.append([one.step(order).loss.item() for _ in range(12)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("gpus", PLACES[1:])
def test_saved_gaussians_replace_those_of_another_layout(crowd, gpus):
    first = unified(crowd(), gpus, EXACT, 1)
    order = ViewQueue(range(4), seed=3)
    first.step(order)
    saved, expected = Saved(list(first.shards())), by_id(first, "parameters")
    first.load(saved)
    assert torch.equal(by_id(first, "parameters"), expected)
    second = unified(crowd(), gpus, EXACT, 1, placement="striped")
    second.load(saved)
    for column in ("parameters", "moment1", "moment2"):
        assert torch.equal(by_id(second, column), by_id(first, column))
    losses = [one.step(ViewQueue(range(4), seed=5)).loss.item() for one in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_tables_are_given_back_with_the_strategy_and_when_others_are_loaded(crowd, monkeypatch):
    closed, close = [], SharedMemory.close
    monkeypatch.setattr(SharedMemory, "close", lambda memory: (closed.append(memory), close(memory)))
    strategy = unified(crowd(), (0, 0), EXACT, 1)
    strategy.step(ViewQueue(range(4)))
    strategy.load(Saved(list(strategy.shards())))
    assert len(closed) == 3
    strategy.step(ViewQueue(range(4)))
    del strategy
    gc.collect()
    assert len(set(closed)) == 6


def test_kernels_that_look_at_every_row_are_refused(crowd):
    scene = crowd(40)
    context = scene.context(KernelSet("reference", torch.device("cuda", 0)), EXACT, 1, LocalCommunicator("cuda:0"))
    with pytest.raises(ValueError, match="needs kernels compiled, not reference"):
        Unified().setup(context, scene.source, scene.images, UnifiedOptions())
