"""Scenario `render`: images of a fixed list of views, again and again: no loss, no gradient, nothing moves."""

from __future__ import annotations

from collections.abc import Callable

from cuda_src.camera import Camera
from harness.measure.statistics import median
from harness.runner import passes
from harness.runner.job import Job
from harness.runner.witness import Witness
from strategies.base import Strategy


def run(job: Job) -> None:
    """A sample is one whole pass over the training views, one after another, as in `throughput`.

    A rank's view is done when it has its part of it on its device; the image is on rank 0's.
    """
    witness = Witness.of(job)
    scene, source = job.scene(from_points=False)
    strategy = job.strategy(scene, source, job.cell.training.model_copy(update={"sh_every": 0}))
    cameras = [scene.cameras[view] for view in scene.train_views]

    def one_pass(number: int, warm_up: bool) -> float:
        took = rendered(job, strategy, cameras)
        job.sample("passes", "render_seconds", took / len(cameras), **{"pass": number, "warmup": warm_up})
        return took

    seconds = passes.repeated(job, strategy, witness, len(cameras), one_pass)
    job.seconds("render_seconds", median(seconds) / len(cameras))
    job.seconds("views_per_second", len(cameras) / median(seconds))
    job.spent(len(cameras))
    job.traffic(len(cameras) * len(seconds))
    witness.report(len(cameras) * len(seconds))
    passes.breakdown(job, lambda ended: rendered(job, strategy, cameras, ended))
    job.measure("gaussians_count", job.ranks.total(sum(len(s.ids) for s in strategy.shards())), "last")
    job.memory(strategy)


def rendered(job: Job, strategy: Strategy, cameras: list[Camera], ended: Callable[[], None] = lambda: None) -> float:
    """Seconds of the slowest rank for the images of all cameras, each let go before the next; ended: called by each."""

    def render_all() -> None:
        for _ in strategy.pictures(cameras):
            ended()

    return passes.timed(job, render_all)[0]
