"""Scenario `throughput`: passes over a fixed list of views, a workload that does not move."""

from __future__ import annotations

from harness.measure.clock import synchronize
from harness.measure.statistics import enough, median
from harness.runner.job import Job
from strategies.base import StepReport, Strategy
from strategies.views import ViewQueue

WARM_UP_PASSES = 2
BREAKDOWN_PASSES = 2
RATE_SCALE = 1e-3
"""Learning rates are scaled so, that the workload of the last pass is that of the first."""
MAX_DRIFT = 0.01
"""Largest relative change of tile instances between the first and the last measured pass."""


def run(job: Job) -> None:
    """A sample is one whole pass; stages are timed in a second series, so that no clock slows the first."""
    cell = job.cell
    scene, source = job.scene(from_points=False)
    scale = cell.training.rate_scale * RATE_SCALE
    training = cell.training.model_copy(update={"rate_scale": scale, "sh_every": 0})
    strategy = job.strategy(scene, source, training)
    views = scene.train_views[: max(1, len(scene.train_views) // cell.batch) * cell.batch]
    # Some strategies run several views of a batch of one together, so a pass may take fewer steps than it has views.
    steps = optimizer_steps = 0
    job.read_images(scene, views)
    queue = ViewQueue(views, shuffle=False, keep_passes=True)
    seconds: list[float] = []
    instances: list[int] = []
    visible = 0
    measured = 0.0
    job.phase("warm-up")
    while True:
        number = len(seconds)
        warm_up = number < WARM_UP_PASSES
        took, reports = one_pass(job, strategy, queue, len(views))
        seconds.append(took)
        steps, optimizer_steps = len(reports), sum(r.optimizer_steps for r in reports)
        instances.append(int(job.ranks.total(sum(r.tile_instances for r in reports))))
        visible = sum(r.visible_gaussians for r in reports)
        job.sample("passes", "step_seconds", took / steps, **{"pass": number, "warmup": warm_up})
        if warm_up:
            job.ranks.comm.clear()
            job.statistics(strategy, keep=False)
            continue
        measured += took
        kept = seconds[WARM_UP_PASSES:]
        job.progress(len(kept), max(len(kept), cell.stop.min_passes), "passes", len(views) / took, None)
        # Rank 0 decides, between passes: ranks that counted seconds alone could part ways.
        if job.ranks.each(float(enough(kept, cell.stop, measured)))[0]:
            break
    drift = abs(instances[-1] - instances[WARM_UP_PASSES]) / max(1, instances[WARM_UP_PASSES])
    if drift > MAX_DRIFT:
        job.invalid = f"tile instances moved by {drift:.1%} between the first and the last pass, expected at most 1 %"
    pass_seconds = median(seconds[WARM_UP_PASSES:])
    job.seconds("step_seconds", pass_seconds / steps)
    job.seconds("views_per_second", len(views) / pass_seconds)
    job.seconds("optimizer_steps_per_second", optimizer_steps / pass_seconds)
    job.measure("visible_gaussians", job.ranks.total(visible) / len(views), "mean")
    job.measure("tile_instances", instances[-1] / len(views), "mean")
    job.statistics(strategy)
    job.traffic(steps * (len(seconds) - WARM_UP_PASSES))
    breakdown(job, strategy, queue, len(views))
    job.measure("gaussians_count", job.ranks.total(sum(len(s.ids) for s in strategy.shards())), "last")
    job.memory(strategy)


def one_pass(job: Job, strategy: Strategy, queue: ViewQueue, views: int) -> tuple[float, list[StepReport]]:
    """Seconds of the slowest rank over so many views, and what this rank's steps reported."""
    reports: list[StepReport] = []
    job.ranks.barrier()
    synchronize(job.device)
    start = job.ranks.now()
    while sum(r.images for r in reports) < views:
        reports.append(strategy.step(queue))
    synchronize(job.device)
    return job.ranks.slowest(job.ranks.now() - start), reports


def breakdown(job: Job, strategy: Strategy, queue: ViewQueue, views: int) -> None:
    """Seconds by stage, over further passes."""
    job.phase("stage breakdown")
    job.clock.enabled = True
    passes: list[dict[str, float]] = []
    for number in range(BREAKDOWN_PASSES):
        _, reports = one_pass(job, strategy, queue, views)
        steps = len(reports)
        passes.append({stage: job.ranks.slowest(s) / steps for stage, s in job.clock.take().items()})
        for stage, value in passes[-1].items():
            job.sample("stages", "stage_seconds", value, **{"pass": number, "stage": stage})
    for stage in passes[0]:
        job.seconds("stage_seconds", median([p[stage] for p in passes]), stage=stage)
    job.clock.enabled = False
