"""`unified` equals `single` on any number of places, whatever the placement and the exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from harness.suite.machine import Machine
from harness.suite.plan import plan
from strategies.base import Shard, World
from strategies.distribution.communicator import LocalCommunicator
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.unified.info import INFO, ROW_BYTES, UnifiedOptions
from strategies.unified.strategy import Unified
from strategies.views import ViewQueue

REFERENCE = KernelSet("reference", precision="float64", t_stop=0.0)
PORTABLE = KernelSet("portable", t_stop=0.0)
SMOOTH = Training(sh_every=0, epsilon=1e-8)
"""Adam's usual epsilon of 1e-15 turns a last-bit difference of a gradient into a visible one of a parameter."""
FEW_ROWS = 3 * ROW_BYTES + 100
"""A stripe so small that a tiny scene has many, and that rows span its borders."""
ABLATION = Path(__file__).parents[2] / "suites" / "ablation_unified.yaml"
EXCHANGES = ["push", "remote_atomic", "local_reduce"]
PLACEMENTS = ["round_robin", "striped"]


def single(scene, kernels=REFERENCE, training=SMOOTH, batch=1) -> Single:
    strategy = Single()
    strategy.setup(scene.context(kernels, training, batch), scene.source, scene.images, SingleOptions())
    return strategy


def unified(scene, places: int, kernels=REFERENCE, training=SMOOTH, batch=1, **options) -> Unified:
    comm, devices = LocalCommunicator(places=places), (torch.device("cpu"),) * places
    context = replace(scene.context(kernels, training, batch, comm), world=World(0, 1, devices, places))
    strategy = Unified()
    strategy.setup(context, scene.source, scene.images, UnifiedOptions(**{"stripe_bytes": FEW_ROWS} | options))
    return strategy


def trained(strategy, scene, steps: int) -> torch.Tensor:
    """The loss of each step, float64."""
    order = ViewQueue(range(len(scene.cameras)), seed=3)
    return torch.tensor([strategy.step(order).loss.item() for _ in range(steps)], dtype=torch.float64)


def by_id(strategy, column: str = "parameters") -> torch.Tensor:
    """A table in the order of ids; each id once."""
    shards = list(strategy.shards())
    ids = torch.cat([s.ids for s in shards])
    assert sorted(ids.tolist()) == list(range(len(ids)))
    return torch.cat([getattr(s, column) for s in shards])[torch.argsort(ids)]


@pytest.fixture(scope="module")
def oracle_of():
    """Losses, parameters and render of `single` after some steps, computed once for each setting."""

    @cache
    def of(scene_of: Callable, steps: int, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scene = scene_of()
        strategy = single(scene, batch=batch)
        losses = trained(strategy, scene, steps)
        return losses, by_id(strategy), strategy.render(scene.cameras[0])

    return of


@pytest.mark.parametrize(
    ("places", "batch", "placement", "exchange"),
    [
        (1, 1, "striped", "push"),
        (2, 1, "round_robin", "push"),
        (3, 1, "striped", "remote_atomic"),
        (5, 1, "round_robin", "local_reduce"),
        (6, 1, "striped", "local_reduce"),
        (8, 1, "round_robin", "remote_atomic"),
        (2, 3, "striped", "local_reduce"),
        (4, 3, "round_robin", "remote_atomic"),
        (7, 3, "striped", "push"),
    ],
)
def test_free_running_float64_unified_equals_single(make_scene, oracle_of, places, batch, placement, exchange):
    scene = make_scene()
    strategy = unified(scene, places, batch=batch, placement=placement, exchange=exchange)
    losses, parameters, truth = oracle_of(make_scene, 10, batch)
    assert torch.allclose(trained(strategy, scene, 10), losses, atol=1e-10, rtol=0)
    assert torch.allclose(by_id(strategy), parameters, atol=1e-8, rtol=0)
    assert torch.allclose(strategy.render(scene.cameras[0]), truth, atol=1e-8, rtol=0)
    assert strategy.images_seen == 10 * batch


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("batch", [1, 3])
def test_float32_gradients_equal_single_when_both_start_alike(scene, batch, placement, exchange):
    """Design's definition (a), on 2 to 8 places; moments are compared, for Adam's step hides a gradient's length."""
    expected = single(scene, PORTABLE, batch=batch)
    trained(expected, scene, 1)
    moments = by_id(expected, "moment1")
    for places in (2, 3, 8):
        strategy = unified(scene, places, PORTABLE, batch=batch, placement=placement, exchange=exchange)
        trained(strategy, scene, 1)
        moment = by_id(strategy, "moment1")
        for group in layout.PARAMETER_GROUPS.values():
            largest = moments[:, group].abs().max()
            assert largest > 0
            assert (moment[:, group] - moments[:, group]).abs().max() <= 1e-5 * largest


@pytest.mark.parametrize("optimizer", ["dense", "touched"])
def test_every_optimizer_moves_the_rows_that_single_moves(scene, optimizer):
    training = SMOOTH.model_copy(update={"optimizer": optimizer})
    strategy, oracle = unified(scene, 3, training=training, batch=2), single(scene, training=training, batch=2)
    assert torch.allclose(trained(strategy, scene, 3), trained(oracle, scene, 3), atol=1e-10, rtol=0)
    assert torch.allclose(by_id(strategy), by_id(oracle), atol=1e-8, rtol=0)


def test_free_running_float32_loss_agrees_with_single(scene):
    losses = trained(unified(scene, 4, PORTABLE, Training(sh_every=0)), scene, 12)
    assert torch.allclose(losses, trained(single(scene, PORTABLE, Training(sh_every=0)), scene, 12), rtol=1e-4, atol=0)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_two_runs_have_the_same_bits(scene, exchange):
    one, other = (unified(scene, 4, PORTABLE, batch=2, exchange=exchange) for _ in range(2))
    assert torch.equal(trained(one, scene, 6), trained(other, scene, 6))
    for column in ("parameters", "moment1", "moment2"):
        assert torch.equal(by_id(one, column), by_id(other, column))
    assert torch.equal(one.render(scene.cameras[1]), other.render(scene.cameras[1]))


def test_slots_of_48_bytes_carry_the_same_records_as_slots_of_64(scene):
    wide, narrow = (unified(scene, 3, PORTABLE, record=record) for record in (64, 48))
    assert torch.equal(trained(wide, scene, 3), trained(narrow, scene, 3))
    assert torch.equal(by_id(wide), by_id(narrow))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_places_that_own_or_render_nothing_take_part(make_scene, exchange):
    scene = make_scene(count=3, views=2)
    strategy, oracle = unified(scene, 8, exchange=exchange, stripe_bytes=2 * ROW_BYTES), single(scene)
    assert [place.arena.gaussians.count for place in strategy.places] == [2, 1, 0, 0, 0, 0, 0, 0]
    assert torch.allclose(trained(strategy, scene, 3), trained(oracle, scene, 3), atol=1e-10, rtol=0)
    assert torch.allclose(by_id(strategy), by_id(oracle), atol=1e-8, rtol=0)
    # More places than tiles: some range is empty.
    small = replace(scene.cameras[0], width=17, height=16)
    scene.cameras[:] = [small, small]
    scene.images.images[:] = [image[:16, :17] for image in scene.images.images]
    strategy, oracle = unified(scene, 8, exchange=exchange), single(scene)
    regions = strategy._cut([0], [small])
    assert 0 in [len(regions.of(place, 0)) for place in range(8)]
    assert torch.allclose(trained(strategy, scene, 2), trained(oracle, scene, 2), atol=1e-10, rtol=0)
    assert torch.allclose(strategy.render(small), oracle.render(small), atol=1e-10)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_views_that_see_nothing_are_trained_on(scene, exchange):
    scene.source.parameters[:, layout.MEAN] += 1000.0
    strategy = unified(scene, 3, PORTABLE, exchange=exchange)
    assert torch.equal(trained(strategy, scene, 2), trained(single(scene, PORTABLE), scene, 2))
    ledger = strategy.ctx.comm.ledger
    assert ledger.payload["exchange_forward"].sum() == 0
    assert (ledger.payload["exchange_backward"].sum() == 0) == (exchange != "local_reduce")


def test_equal_depths_are_blended_by_id_wherever_their_owners_are(make_scene):
    scene = make_scene(count=12, views=1)
    scene.source.parameters[:, layout.MEAN] = 0.0
    scene.source.parameters[:, layout.OPACITY_LOGIT] = 2.0
    scene.source.parameters[:, layout.LOG_SCALE] = -1.0
    truth = single(scene).render(scene.cameras[0])
    for placement in PLACEMENTS:
        image = unified(scene, 3, placement=placement, stripe_bytes=ROW_BYTES).render(scene.cameras[0])
        assert torch.allclose(image, truth, atol=1e-12)


def test_images_have_a_background_and_masks_count(scene):
    """A mask and a background reach every place."""
    training = SMOOTH.model_copy(update={"background": (0.2, 0.5, 0.9)})
    generator = torch.Generator().manual_seed(1)
    masks = [
        torch.randint(0, 256, image.shape[:2], dtype=torch.uint8, generator=generator) for image in scene.images.images
    ]
    scene.images.mask = lambda view, rect, device: masks[view][rect.y0 : rect.y1, rect.x0 : rect.x1]
    strategy, oracle = unified(scene, 3, training=training), single(scene, training=training)
    assert torch.allclose(trained(strategy, scene, 3), trained(oracle, scene, 3), atol=1e-10, rtol=0)
    assert torch.allclose(by_id(strategy), by_id(oracle), atol=1e-8, rtol=0)


def test_ranges_of_tiles_follow_the_work_of_the_last_visit(make_scene):
    scene = make_scene(count=4000, views=1)
    scene.source.parameters[:, layout.MEAN] += torch.tensor([0.0, 1.0, 0.0])
    scene.source.parameters[:, layout.LOG_SCALE] -= 1.0
    camera = scene.cameras[0] = scene.cameras[0].resized(112, 96)
    scene.images.images[0] = torch.zeros(96, 112, 3, dtype=torch.uint8)
    work, off = unified(scene, 4, PORTABLE), unified(scene, 4, PORTABLE, balance="off")
    assert work._cut([0], [camera]).cuts == off._cut([0], [camera]).cuts
    trained(work, scene, 1)
    trained(off, scene, 1)
    by_work = work._cut([0], [camera])
    cost = work.cuts._costs.of([0], [camera])[0]

    def largest(regions) -> float:
        return max(float(cost[regions.of(place, 0).long()].sum()) for place in range(4))

    evenly = off._cut([0], [camera])
    assert sorted(len(evenly.of(place, 0)) for place in range(4)) == [10, 10, 11, 11]
    assert largest(by_work) < 0.7 * largest(evenly)


@dataclass
class Saved:
    """A ShardReader over what a strategy holds."""

    kept: list[Shard]

    @property
    def count(self) -> int:
        return sum(len(s.ids) for s in self.kept)

    def shards(self) -> Iterator[Shard]:
        yield from self.kept


def test_saved_gaussians_go_on_training_on_another_number_of_places(scene):
    first = unified(scene, 3)
    trained(first, scene, 2)
    saved = Saved(list(first.shards()))
    second, oracle = unified(scene, 5, placement="striped"), single(scene)
    second.load(saved)
    oracle.load(saved)
    for column in ("parameters", "moment1", "moment2"):
        assert torch.equal(by_id(second, column), by_id(first, column))
    assert torch.allclose(trained(second, scene, 2), trained(oracle, scene, 2), atol=1e-10, rtol=0)
    assert torch.allclose(by_id(second), by_id(oracle), atol=1e-8, rtol=0)


def test_tensor_bytes_tell_each_place_its_own_share(scene):
    strategy = unified(scene, 4, PORTABLE, placement="striped")
    tables = 3 * ROW_BYTES + 8 + 8  # Parameters, moments, id and row of the table.
    assert strategy.tensor_bytes == [15 * tables] * 4
    trained(strategy, scene, 1)
    assert all(held > 15 * tables for held in strategy.tensor_bytes)


def test_an_exception_in_one_place_ends_the_step_with_that_exception(scene):
    strategy = unified(scene, 3, PORTABLE)

    def broken(*_):
        raise MemoryError("arena 1 is full")

    strategy.places[1].composite = broken
    with pytest.raises(MemoryError, match="arena 1 is full"):
        trained(strategy, scene, 1)


def test_managed_memory_is_refused_where_there_is_no_cuda(scene):
    with pytest.raises(ValueError, match="placement managed: needs cudaMallocManaged, device is cpu"):
        unified(scene, 2, placement="managed")


@pytest.mark.parametrize(
    ("options", "device", "lacking"),
    [
        ({"placement": "managed"}, "cpu", "placement managed"),
        ({"placement": "managed"}, "cuda", None),
        ({"stripe_bytes": 65536}, "cuda", "stripe_bytes 65536"),
        ({"stripe_bytes": 65536}, "cpu", None),
        ({"stripe_bytes": 65536, "placement": "striped"}, "cuda", None),
        ({"stripe_bytes": 2**25}, "cuda", None),
    ],
)
def test_a_plan_can_say_which_memory_a_device_lacks(options, device, lacking):
    reason = INFO.lacks(UnifiedOptions(**options), device)
    assert reason is None if lacking is None else lacking in reason


def test_the_ablation_runs_whole_but_for_what_the_device_lacks():
    cells = plan(ABLATION, machine=Machine(gpus=0, cpus=2, compiled=False, nvcc=False)).cells
    assert {c.cell.options.get("exchange", "push") for c in cells} == set(EXCHANGES)
    (skipped,) = [c for c in cells if c.skip is not None]
    assert (skipped.cell.name, "device is cpu" in (skipped.skip or "")) == ("managed", True)
    assert all(c.cell.engine == "local" for c in cells)


def test_the_ablation_runs_on_gpus_but_for_stripes_that_cannot_be_mapped():
    cells = plan(ABLATION, machine=Machine(gpus=8, cpus=8, compiled=True, nvcc=True)).cells
    (skipped,) = [c for c in cells if c.skip is not None]
    assert (skipped.cell.name, "multiples of 2 MiB" in (skipped.skip or "")) == ("stripe 512 KiB", True)


def test_one_process_drives_any_number_of_places():
    assert (INFO.processes, INFO.engines, INFO.max_ranks) == ("one", ("local",), None)
    assert INFO.load() is Unified
