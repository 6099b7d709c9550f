"""Scenario `throughput`: passes over a fixed list of views, a workload that does not move."""

from __future__ import annotations

from collections.abc import Callable

from harness.measure.statistics import median
from harness.runner import exchange_rates, passes
from harness.runner.job import Job
from harness.runner.witness import Witness
from harness.scenes.scene import Scene
from harness.suite.cell import Cell
from strategies.base import GaussianSource, StepReport, Strategy
from strategies.views import ViewQueue

RATE_SCALE = 1e-3
"""Learning rates are scaled so, that the workload of the last pass is that of the first."""
MAX_DRIFT = 0.01
"""Largest relative change of tile instances between the first and the last measured pass."""


def run(job: Job, opened: tuple[Scene, GaussianSource] | None = None) -> Strategy:
    """A sample is one whole pass; stages are timed in a second series, so that no clock slows the first.

    opened: the cell's scene and Gaussians, where they are at hand. Returns the strategy as the last pass left it.
    """
    cell = job.cell
    witness = Witness.of(job)
    scene, source = opened or job.scene(from_points=False)
    scale = cell.training.rate_scale * RATE_SCALE
    training = cell.training.model_copy(update={"rate_scale": scale, "sh_every": 0})
    strategy = job.strategy(scene, source, training)
    views = pass_views(cell, scene)
    job.read_images(scene, views)
    queue = ViewQueue(views, shuffle=False, keep_passes=True)
    # Some strategies run several views of a batch of one together, so a pass may take fewer steps than it has views.
    reports: list[StepReport] = []
    instances: list[int] = []

    def measured_pass(number: int, warm_up: bool) -> float:
        took, reports[:] = one_pass(job, strategy, queue, len(views))
        if not warm_up:
            instances.append(int(job.ranks.total(sum(r.tile_instances for r in reports))))
        job.sample("passes", "step_seconds", took / len(reports), **{"pass": number, "warmup": warm_up})
        return took

    seconds = passes.repeated(job, strategy, witness, len(views), measured_pass)
    drift = abs(instances[-1] - instances[0]) / max(1, instances[0])
    if drift > MAX_DRIFT:
        job.invalid = f"tile instances moved by {drift:.1%} between the first and the last pass, expected at most 1 %"
    steps, pass_seconds = len(reports), median(seconds)
    job.seconds("step_seconds", pass_seconds / steps)
    job.seconds("views_per_second", len(views) / pass_seconds)
    job.seconds("optimizer_steps_per_second", sum(r.optimizer_steps for r in reports) / pass_seconds)
    visible = job.ranks.total(sum(r.visible_gaussians for r in reports))
    job.measure("visible_gaussians", visible / len(views), "mean")
    job.measure("tile_instances", instances[-1] / len(views), "mean")
    job.statistics(strategy)
    job.spent(steps)
    job.traffic(steps * len(seconds))
    witness.report(steps * len(seconds))
    if cell.kernels == "compiled" and cell.ranks == 1:
        passes.host(job, strategy, queue, len(views))
    passes.breakdown(job, lambda ended: one_pass(job, strategy, queue, len(views), ended))
    job.measure("gaussians_count", job.ranks.total(sum(len(s.ids) for s in strategy.shards())), "last")
    job.memory(strategy)
    job.fingerprint(strategy)
    exchange_rates.measure(job, strategy, views[-cell.batch :])
    return strategy


def pass_views(cell: Cell, scene: Scene) -> tuple[int, ...]:
    """The fixed views of a pass: as many training views as make whole steps."""
    return scene.train_views[: max(1, len(scene.train_views) // cell.batch) * cell.batch]


def one_pass(
    job: Job, strategy: Strategy, queue: ViewQueue, views: int, ended: Callable[[], None] = lambda: None
) -> tuple[float, list[StepReport]]:
    """Seconds of the slowest rank over so many views, and what this rank's steps reported.

    ended: called at the end of each step.
    """

    def train() -> list[StepReport]:
        reports: list[StepReport] = []
        images = 0
        while images < views:
            reports.append(strategy.step(queue))
            images += reports[-1].images
            ended()
        strategy.settle()
        return reports

    return passes.timed(job, train)
