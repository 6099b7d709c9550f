"""Occlusion history leaves out what a wall hides, finds it again when the wall opens, and is the same on all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace
from harness.suite.machine import Machine
from harness.suite.plan import plan
from strategies.base import Shard, World
from strategies.bytesplat.info import BytesplatOptions
from strategies.bytesplat.strategy import ByteSplat
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.virtual import VirtualWorld
from strategies.grendel.info import GrendelOptions
from strategies.grendel.strategy import Grendel
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.training.occlusion import OcclusionHistory, with_instances
from strategies.unified.info import ROW_BYTES, UnifiedOptions
from strategies.unified.strategy import Unified
from strategies.views import ViewQueue

REFERENCE = KernelSet("reference", precision="float64")
PORTABLE = KernelSet("portable")
WALL = 5
"""The first ids are a wall of so many layers, each of which leaves 2 to 4 % of the light: the third one stops."""
STILL = Training(sh_every=0, rate_scale=0.0, occlusion="history")


@pytest.fixture
def walled(make_scene):
    """Before view 0 stands a wall that fills the image; the other views see it edge on and what is behind it."""
    scene = make_scene(count=70, views=3, seed=4)
    wall = scene.source.parameters[:WALL]
    wall[:, layout.MEAN] = torch.tensor([0.0, 0.0, -1.5])
    # Of a view that looks at it from the front, the wall's layers lie 2 % of their depth apart.
    wall[:, layout.MEAN.start + 2] += 0.05 * torch.arange(WALL)
    wall[:, layout.LOG_SCALE] = torch.tensor([2.0, 2.0, -5.0])
    wall[:, layout.QUATERNION] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    wall[:, layout.OPACITY_LOGIT] = 4.0
    return scene


def single(scene, training: Training = STILL, kernels: KernelSet = PORTABLE, batch: int = 1) -> Single:
    strategy = Single()
    strategy.setup(scene.context(kernels, training, batch), scene.source, scene.images, SingleOptions())
    return strategy


def parameters(strategy) -> torch.Tensor:
    """In the order of ids."""
    shards = list(strategy.shards())
    return torch.cat([s.parameters for s in shards])[torch.argsort(torch.cat([s.ids for s in shards]))]


def set_wall(strategy: Single, logit: float) -> None:
    """Give all layers of the wall that opacity."""
    strategy.gaussians.parameters[strategy.gaussians.ids < WALL, layout.OPACITY_LOGIT] = logit


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(-10 * torch.log10(((a - b).double() ** 2).mean()))


def image_with(strategy: Single, view: int, limits: torch.Tensor | None) -> torch.Tensor:
    """The view's image as a step composites it under these limits."""
    camera, kernels, work = strategy.ctx.cameras[view], strategy.ctx.kernels, Workspace()
    splats = op.project(kernels, strategy.gaussians.parameters, strategy.gaussians.ids, camera, 3, work)
    bins = op.bin_splats(kernels, splats, camera, work, depth_limit=limits)
    raster = op.raster_forward(kernels, splats, bins, camera, work)
    return raster.colour + raster.transmittance[..., None] * strategy.background


@pytest.mark.parametrize("kernels", [PORTABLE, REFERENCE])
def test_what_a_wall_hides_is_left_out_at_the_second_visit_and_the_image_stays(walled, kernels):
    strategy, front = single(walled, kernels=kernels), ViewQueue([0])
    first = strategy.step(front)
    limits = strategy.occlusion.limits(0)
    assert limits.isfinite().all()
    second = strategy.step(front)
    assert first.visible_gaussians > 20
    # Of the wall, the two layers behind the one that stops lie beyond the drift that is allowed for.
    assert second.visible_gaussians == 3
    assert second.tile_instances == 3 * walled.cameras[0].tiles
    assert second.loss.item() == first.loss.item()
    assert torch.equal(image_with(strategy, 0, limits), image_with(strategy, 0, None))


def test_views_keep_limits_of_their_own(walled):
    strategy, order = single(walled), ViewQueue(range(3), shuffle=False)
    before = [strategy.step(order) for _ in range(3)]
    assert strategy.occlusion.limits(0).isfinite().all()
    assert strategy.occlusion.limits(1).isinf().any()
    after = [strategy.step(order) for _ in range(3)]
    assert after[0].tile_instances < 0.2 * before[0].tile_instances
    assert after[1].tile_instances > 0.8 * before[1].tile_instances
    assert [a.loss.item() for a in after] == [b.loss.item() for b in before]


def test_what_is_hidden_neither_moves_nor_counts_as_visible(walled):
    strategy, front = single(walled, Training(sh_every=0, occlusion="history")), ViewQueue([0])
    strategy.step(front)
    # Adam moves every visible row that was ever moved before.
    strategy.gaussians.moment1[:] = 1.0
    before = parameters(strategy).clone()
    report = strategy.step(front)
    moved = (parameters(strategy) != before).any(dim=1)
    assert moved[:3].all()
    assert not moved[3:].any()
    assert report.visible_gaussians == 3


def test_a_hole_in_the_wall_brings_back_what_is_behind_within_two_visits(walled):
    strategy, front = single(walled), ViewQueue([0])
    strategy.step(front)
    hidden = strategy.step(front)
    set_wall(strategy, -2.0)
    noticed = strategy.step(front)
    assert noticed.visible_gaussians == hidden.visible_gaussians
    assert strategy.occlusion.limits(0).isinf().all()
    back = strategy.step(front)
    assert back.visible_gaussians > 20
    assert torch.equal(image_with(strategy, 0, strategy.occlusion.limits(0)), image_with(strategy, 0, None))


def test_a_wall_that_stands_again_hides_again(walled):
    strategy, front = single(walled), ViewQueue([0])
    for logit in (4.0, -2.0):
        set_wall(strategy, logit)
        strategy.step(front)
        strategy.step(front)
    set_wall(strategy, 4.0)
    strategy.step(front)
    assert strategy.step(front).visible_gaussians == 3


def test_training_with_history_follows_training_without(walled):
    """The wall bleaches and its layers drift; at every visit the limited image is within 60 dB of the whole one."""
    runs = {}
    for occlusion in ("off", "history"):
        strategy = single(walled, Training(sh_every=0, occlusion=occlusion))
        order = ViewQueue(range(3), seed=1)
        losses, instances = [], 0
        for _ in range(24):
            view = order.peek(1)[0]
            limits = strategy.occlusion.limits(view)
            if limits is not None:
                assert psnr(image_with(strategy, view, limits), image_with(strategy, view, None)) > 60
            report = strategy.step(order)
            losses.append(report.loss.item())
            instances += report.tile_instances
        runs[occlusion] = torch.tensor(losses), instances
    assert torch.allclose(runs["history"][0], runs["off"][0], rtol=2e-2)
    assert runs["history"][1] < 0.85 * runs["off"][1]


def test_off_learns_nothing_and_is_bit_identical_to_a_history_that_never_hides(scene):
    """Without a tile that is opaque throughout, every limit is infinite and the operators do the same."""
    settings = {"sh_every": 0}
    off, history = (single(scene, Training(occlusion=o, **settings)) for o in ("off", "history"))
    orders = [ViewQueue(range(4), seed=3) for _ in range(2)]
    for _ in range(8):
        assert torch.equal(off.step(orders[0]).loss, history.step(orders[1]).loss)
    assert torch.equal(parameters(off), parameters(history))
    assert off.occlusion.limits(0) is None
    assert history.occlusion.limits(0).isinf().all()


def test_loading_other_gaussians_forgets_the_limits(walled):
    strategy = single(walled)
    strategy.step(ViewQueue([0]))
    saved = [
        Shard(*(getattr(s, n).clone() for n in ("ids", "parameters", "moment1", "moment2"))) for s in strategy.shards()
    ]

    class Saved:
        count = walled.source.count

        def shards(self):
            yield from saved

    strategy.load(Saved())
    assert strategy.occlusion.limits(0) is None


def test_a_little_light_that_remains_keeps_the_limit_and_more_lifts_it(walled):
    camera, history = walled.cameras[0], OcclusionHistory(STILL)
    size = (camera.height, camera.width)

    def visit(stop_depth: torch.Tensor, light: float) -> op.Raster:
        stopped = stop_depth.isfinite()
        empty = torch.zeros(size)
        return op.Raster(empty, torch.where(stopped, 5e-3, light), empty, stopped.to(torch.uint8), empty, stop_depth)

    full = torch.full(size, 2.0)
    full[3, 4] = 3.0
    history.observe(0, visit(full, 0.0), camera)
    limits = history.limits(0).clone()
    assert limits[0].item() == pytest.approx(3.03)
    assert limits[1:] == pytest.approx(torch.full((camera.tiles - 1,), 2.02))
    open_here = full.clone()
    open_here[0, 0] = torch.inf
    history.observe(0, visit(open_here, 5e-4), camera)
    assert torch.equal(history.limits(0), limits)
    history.observe(0, visit(open_here, 5e-3), camera)
    assert history.limits(0)[0].isinf()
    assert torch.equal(history.limits(0)[1:], limits[1:])
    # Without a limit the same little light may hide a surface behind the deepest stop of the others.
    history.observe(0, visit(open_here, 5e-4), camera)
    assert history.limits(0)[0].isinf()


def test_splats_without_an_instance_leave_and_the_lists_stay(walled):
    camera, work = walled.cameras[0], Workspace()
    table = walled.source.parameters
    splats = op.project(PORTABLE, table, torch.arange(len(table)), camera, 3, work)
    limit = torch.full((camera.tiles,), 4.0)
    bins = op.bin_splats(PORTABLE, splats, camera, work, depth_limit=limit)
    fewer, listed = with_instances(splats, bins)
    assert 0 < fewer.count < splats.count
    assert torch.equal(fewer.rows[listed.splat.long()], splats.rows[bins.splat.long()])
    again = op.bin_splats(PORTABLE, fewer, camera, Workspace(), depth_limit=limit)
    for name in ("tiles", "starts", "splat", "slot", "splat_starts"):
        assert torch.equal(getattr(listed, name), getattr(again, name)), name


def train_ranks(scene, ranks: int, steps: int, training: Training, batch: int, strategy=Grendel, options=None):
    losses, sent, seen = torch.zeros(steps, dtype=torch.float64), torch.zeros(steps), torch.zeros(steps, 2)

    def rank_main(comm: Communicator):
        trained, order = strategy(), ViewQueue(range(3), seed=1)
        context = scene.context(REFERENCE, training, batch, comm)
        trained.setup(context, scene.source, scene.images, options or GrendelOptions())
        for step in range(steps):
            comm.clear()
            report = trained.step(order)
            losses[step] += report.loss.double()
            seen[step] += torch.tensor([report.visible_gaussians, report.tile_instances])
            sent[step] += comm.ledger.payload["exchange_forward"].sum()
        return trained

    return VirtualWorld(ranks).run(rank_main), losses, sent, seen


def assert_equals_single(scene, training, batch: int, strategies, losses, seen) -> None:
    """Losses, parameters, limits and what was seen of every step, in float64 and free-running."""
    oracle, order = single(scene, training, REFERENCE, batch), ViewQueue(range(3), seed=1)
    reports = [oracle.step(order) for _ in losses]
    expected = torch.tensor([r.loss.item() for r in reports], dtype=torch.float64)
    assert torch.allclose(losses, expected, atol=1e-10)
    shards = [s for strategy in strategies for s in strategy.shards()]
    by_id = torch.argsort(torch.cat([s.ids for s in shards]))
    assert torch.allclose(torch.cat([s.parameters for s in shards])[by_id], parameters(oracle), atol=1e-8)
    assert seen.tolist() == [[r.visible_gaussians, r.tile_instances] for r in reports]
    # Otherwise nothing was hidden, and this would hold without a history.
    assert min(r.visible_gaussians for r in reports) < 0.9 * reports[0].visible_gaussians
    for view in range(3):
        limits = [strategy.occlusion.limits(view) for strategy in strategies]
        assert all(torch.equal(own, limits[0]) for own in limits)
        assert torch.allclose(limits[0], oracle.occlusion.limits(view))


@pytest.mark.parametrize(
    ("ranks", "batch", "strategy", "options"),
    [
        (2, 1, Grendel, GrendelOptions()),
        (3, 1, Grendel, GrendelOptions(unit="row")),
        (3, 2, Grendel, GrendelOptions(balance="off")),
        (2, 2, ByteSplat, BytesplatOptions()),
    ],
)
def test_ranks_that_exchange_gaussians_equal_single_with_occlusion_history(walled, ranks, batch, strategy, options):
    training = Training(sh_every=0, epsilon=1e-8, occlusion="history")
    strategies, losses, _, seen = train_ranks(walled, ranks, 7, training, batch, strategy, options)
    assert_equals_single(walled, training, batch, strategies, losses, seen)


@pytest.mark.parametrize(("places", "batch"), [(3, 1), (2, 2)])
def test_unified_equals_single_with_occlusion_history(walled, places, batch):
    training = Training(sh_every=0, epsilon=1e-8, occlusion="history")
    world = World(0, 1, (torch.device("cpu"),) * places, places)
    context = replace(walled.context(REFERENCE, training, batch, LocalCommunicator(places=places)), world=world)
    strategy, order = Unified(), ViewQueue(range(3), seed=1)
    strategy.setup(context, walled.source, walled.images, UnifiedOptions(stripe_bytes=3 * ROW_BYTES))
    reports = [strategy.step(order) for _ in range(7)]
    losses = torch.tensor([r.loss.item() for r in reports], dtype=torch.float64)
    seen = torch.tensor([[r.visible_gaussians, r.tile_instances] for r in reports])
    assert_equals_single(walled, training, batch, [strategy], losses, seen)


def test_fused_raster_refuses_a_history_that_it_could_not_learn(walled):
    strategy, context = ByteSplat(), walled.context(PORTABLE, STILL)
    with pytest.raises(ValueError, match="which raster fused keeps to itself"):
        strategy.setup(context, walled.source, walled.images, BytesplatOptions(raster="fused"))


@pytest.mark.parametrize(("raster", "refused"), [("fused", True), ("separate", False)])
def test_a_suite_with_a_history_that_the_fused_raster_could_not_learn_says_so_before_it_runs(tmp_path, raster, refused):
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "suite: 1\ndefaults: {strategy: bytesplat, device: cpu, training: {occlusion: history}, "
        f"options: {{raster: {raster}}}}}\n"
    )
    (cell,) = plan(suite, machine=Machine(gpus=0, cpus=2, compiled=False, nvcc=False)).cells
    assert (cell.skip is not None and "which raster fused keeps to itself" in cell.skip) == refused


def test_records_behind_the_limit_are_not_even_sent(walled):
    training = Training(sh_every=0, occlusion="history", rate_scale=0.0)
    _, losses, sent, _ = train_ranks(walled, 2, 6, training, 1)
    _, unlimited, all_sent, _ = train_ranks(walled, 2, 6, training.model_copy(update={"occlusion": "off"}), 1)
    assert torch.allclose(losses, unlimited, atol=1e-12)
    assert torch.equal(sent[:3], all_sent[:3])
    assert sent[3:].sum() < 0.9 * all_sent[3:].sum()
