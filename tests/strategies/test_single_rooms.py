"""`single` with rooms, on a stand-in for kernels that take them: whatever overflows, Gaussians are the exact ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cuda_src import portable
from cuda_src.operators import Bins, KernelSet, Room, Splats
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training import rooms as rooms_module
from strategies.training.config import Training
from strategies.views import ViewQueue


def padded(values: torch.Tensor, rows: int) -> torch.Tensor:
    """The first `rows` rows, with garbage where there are fewer."""
    out = torch.full((rows, *values.shape[1:]), 7, dtype=values.dtype)
    out[: len(values)] = values[:rows]
    return out


class WithRooms:
    """`portable`, with rooms as the compiled kernels take them. Counts the views that were exact and that had rooms."""

    TAKES_ROOMS, READS_BOUNDS = True, False

    def __init__(self) -> None:
        self.exact = self.roomy = 0

    def __getattr__(self, name: str):
        return getattr(portable, name)

    def project(self, kernels, parameters, ids, camera, sh_degree, workspace, room: Room | None = None) -> Splats:
        splats = portable.project(kernels, parameters, ids, camera, sh_degree, workspace)
        if room is None:
            self.exact += 1
            return splats
        self.roomy += 1
        if splats.count > room.splats:
            room.overflow.fill_(1)
        columns = (padded(getattr(splats, name), room.splats) for name in ("rows", "ids", "records"))
        return Splats(*columns, torch.tensor([splats.count, 0]), room.overflow)

    def bin_splats(
        self, kernels, splats, camera, workspace, tiles, subtiles, depth_limit, room: Room | None = None
    ) -> Bins:
        live = self.live(splats)
        bins = portable.bin_splats(kernels, live, camera, workspace, tiles, subtiles, depth_limit)
        if room is None:
            return bins
        if bins.instances > room.instances:
            room.overflow.fill_(1)
        needed = torch.tensor([int(splats.live[0]), 0, bins.instances, int(room.overflow)])
        if room.overflow:  # Lists that are cut off somewhere.
            bins = replace(bins, starts=bins.starts.clamp(max=0), splat_starts=torch.zeros_like(bins.splat_starts))
        ends = bins.splat_starts[-1:].expand(splats.count - live.count)
        return replace(
            bins,
            splat=padded(bins.splat, room.instances),
            slot=padded(bins.slot, room.instances),
            splat_starts=torch.cat([bins.splat_starts, ends]),
            needed=needed,
        )

    def project_backward_adam(
        self, kernels, parameters, moment1, moment2, views, sh_degree, workspace, rates, images_seen, beta1, beta2,
        epsilon, rows, batch_rule, bounds,
    ) -> None:  # fmt: skip
        """Of the visible rows, averaged over the views that see them."""
        assert (rows, batch_rule, bounds) == ("visible", "rows", None)
        if any(seen.splats.overflow is not None and seen.splats.overflow for seen in views):
            return
        summed = torch.zeros_like(parameters)
        times = torch.zeros(len(parameters), dtype=torch.int32)
        for seen in views:
            live = self.live(seen.splats)
            gradients = seen.gradients[: live.count].contiguous()
            summed[live.rows] += portable.project_backward(
                kernels, parameters, live, seen.camera, sh_degree, gradients, workspace
            )
            times[live.rows] += 1
        moved = times.nonzero()[:, 0]
        portable.adam_rows(
            kernels, parameters, moment1, moment2, moved, summed[moved], times[moved], rates.float(), images_seen,
            beta1, beta2, epsilon,
        )  # fmt: skip

    @staticmethod
    def live(splats: Splats) -> Splats:
        if splats.live is None:
            return splats
        live = min(int(splats.live[0]), splats.count)
        return Splats(splats.rows[:live], splats.ids[:live], splats.records[:live].contiguous())


class WithoutRooms(WithRooms):
    TAKES_ROOMS = False


@pytest.fixture(autouse=True)
def _small_margins(monkeypatch):
    """Views of these tests are small: a margin that a test can exceed."""
    monkeypatch.setattr(rooms_module, "MARGIN", 4)


@pytest.fixture
def trained(monkeypatch, make_scene):
    """Two strategies on equal scenes, with rooms and without; and the stand-in that the first runs on."""

    def build(batch: int = 1, **scene_facts) -> SimpleNamespace:
        made = {}
        for name, kind in (("roomy", WithRooms), ("exact", WithoutRooms)):
            module = kind()
            monkeypatch.setitem(sys.modules, f"cuda_src.{name}", module)
            scene = make_scene(**scene_facts)
            strategy = Single()
            training = Training(sh_every=2)
            strategy.setup(scene.context(KernelSet(name), training, batch), scene.source, scene.images, SingleOptions())
            made[name] = SimpleNamespace(strategy=strategy, module=module, queue=ViewQueue(range(4), shuffle=False))
        return SimpleNamespace(**made)

    return build


def both(pair: SimpleNamespace, steps: int = 1) -> list:
    return [tuple(side.strategy.step(side.queue) for side in (pair.roomy, pair.exact)) for _ in range(steps)]


def assert_same(pair: SimpleNamespace) -> None:
    ours, theirs = pair.roomy.strategy, pair.exact.strategy
    for mine, other in zip(ours.shards(), theirs.shards(), strict=True):
        for name in ("ids", "parameters", "moment1", "moment2"):
            assert torch.equal(getattr(mine, name), getattr(other, name)), name


def assert_same_reports(reports: list) -> None:
    for mine, other in reports:
        assert mine.loss.item() == pytest.approx(other.loss.item(), rel=1e-6)
        assert (mine.visible_gaussians, mine.tile_instances) == (other.visible_gaussians, other.tile_instances)


def shrink_rooms(strategy: Single, view: int, splats: int | None = None, instances: int | None = None) -> None:
    """As if the view's last visit had needed less."""
    known = strategy.rooms._needs[view]
    strategy.rooms.learn(view, known[0] if splats is None else splats, known[1] if instances is None else instances)


@pytest.mark.parametrize("batch", [1, 2])
def test_views_that_were_visited_have_rooms_and_train_as_without(trained, batch):
    pair = trained(batch)
    reports = both(pair, 12 // batch)
    assert_same(pair)
    assert_same_reports(reports)
    assert (pair.roomy.module.exact, pair.roomy.module.roomy) == (4, 8)
    assert pair.exact.module.roomy == 0


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("too_small", [{"splats": 3}, {"instances": 5}, {"splats": 0, "instances": 0}])
def test_a_view_that_outgrew_its_room_is_done_again_with_the_step_after_it(trained, batch, too_small):
    pair = trained(batch)
    reports = both(pair, 4 // batch)
    pair.roomy.strategy.settle()
    shrink_rooms(pair.roomy.strategy, 1, **too_small)
    exact = pair.roomy.module.exact
    reports += both(pair, 8 // batch)
    assert_same(pair)
    assert_same_reports(reports)
    # Views 0 to 1 or 1 to 2 at batch 1; all four views at batch 2.
    assert pair.roomy.module.exact - exact == 2 * batch


def test_two_overflows_in_a_row_are_done_again_together(trained):
    pair = trained()
    reports = both(pair, 4)
    pair.roomy.strategy.settle()
    for view in (1, 2):
        shrink_rooms(pair.roomy.strategy, view, splats=2)
    reports += both(pair, 8)
    assert_same(pair)
    assert_same_reports(reports)


@pytest.mark.parametrize("reading", ["render", "shards", "loss", "settle"])
def test_what_reads_the_gaussians_after_an_overflow_sees_the_step_done(trained, reading):
    pair = trained()
    both(pair, 4)
    pair.roomy.strategy.settle()
    shrink_rooms(pair.roomy.strategy, 0, splats=1)
    (ours, theirs) = both(pair)[0]
    strategy = pair.roomy.strategy
    assert int(strategy.rooms.overflow) == 1
    if reading == "render":
        camera = strategy.ctx.cameras[2]
        assert torch.equal(strategy.render(camera), pair.exact.strategy.render(camera))
    elif reading == "loss":
        assert ours.loss.item() == theirs.loss.item()
    elif reading == "settle":
        strategy.settle()
    assert_same(pair)
    assert int(strategy.rooms.overflow) == 0


def test_pictures_of_cameras_seen_before_have_rooms_of_their_own_and_are_the_exact_ones(trained):
    pair = trained()
    both(pair, 6)
    ours, theirs = pair.roomy.strategy, pair.exact.strategy
    cameras = [ours.ctx.cameras[view] for view in (0, 1, 2)]
    for visit in range(3):
        before = pair.roomy.module.exact
        if visit == 2:
            ours.late_pictures._rooms.learn(cameras[1], 3, 5)
        for mine, other in zip(ours.pictures(cameras), theirs.pictures(cameras), strict=True):
            assert torch.equal(mine, other)
        assert pair.roomy.module.exact - before == (3, 0, 1)[visit]
    assert int(ours.rooms.overflow) == 0
    reports = both(pair, 6)
    assert_same(pair)
    assert_same_reports(reports)


def test_a_report_that_nobody_reads_keeps_its_numbers(trained):
    pair = trained()
    reports = both(pair, 12)
    assert_same_reports(reports)


def test_loading_forgets_what_views_needed(trained):
    pair = trained()
    both(pair, 5)
    strategy = pair.roomy.strategy
    strategy.render(strategy.ctx.cameras[0])
    saved = [replace(s, parameters=s.parameters.clone()) for s in strategy.shards()]
    strategy.load(SimpleNamespace(count=60, shards=lambda: iter(saved)))
    assert strategy.rooms.of([0]) is None
    before = pair.roomy.module.roomy
    strategy.render(strategy.ctx.cameras[0])
    assert pair.roomy.module.roomy == before


def test_a_history_of_occlusion_keeps_exact_steps(monkeypatch, scene):
    module = WithRooms()
    monkeypatch.setitem(sys.modules, "cuda_src.roomy", module)
    strategy = Single()
    context = scene.context(KernelSet("roomy"), Training(occlusion="history", sh_every=0))
    strategy.setup(context, scene.source, scene.images, SingleOptions())
    queue = ViewQueue([0], shuffle=False)
    for _ in range(3):
        strategy.step(queue)
    assert module.roomy == 0


def test_no_gaussians_at_all_train_with_rooms_too(trained):
    pair = trained(count=0)
    reports = both(pair, 9)
    assert_same_reports(reports)
    assert next(iter(pair.roomy.strategy.shards()), None) is None
