"""Scenario `train`: start from the scene's points, train, and follow loss and held-out quality."""

from __future__ import annotations

from math import isfinite
from time import perf_counter

import torch

from cuda_src.workspace import Workspace
from harness.measure.clock import synchronize
from harness.measure.quality import psnr, ssim
from harness.runner.job import Job
from harness.scenes.ply import write_gaussians
from harness.scenes.scene import Scene
from strategies.base import Rect, Strategy
from strategies.views import ViewQueue

PICTURED_VIEWS = 2
"""Held-out views whose renders are kept with the record."""
PROGRESS_SECONDS = 0.2


def run(job: Job) -> None:
    """Train on `cell.images` images. The clock holds steps alone: no reading of images, no evaluation."""
    cell = job.cell
    scene, source = job.scene(from_points=True)
    strategy = job.strategy(scene, source, cell.training)
    job.read_images(scene, scene.train_views + scene.test_views)
    job.phase("training")
    queue = ViewQueue(scene.train_views, cell.seed)
    evaluations = {round(cell.images * i / cell.evaluations) for i in range(1, cell.evaluations + 1)}
    job.clock.enabled = True
    evaluate(job, scene, strategy, final=False)
    seconds, steps, visible, instances, loss, shown = 0.0, 0, 0, 0, 0.0, 0.0
    stages: dict[str, float] = {}
    job.ranks.comm.clear()
    while strategy.images_seen < cell.images:
        before = strategy.images_seen
        job.spending.begin()
        start = job.ranks.now()
        report = strategy.step(queue)
        if strategy.images_seen >= cell.images:
            strategy.settle()  # What the last step leaves to the next is part of training too.
        share = float(report.loss)
        synchronize(job.device)
        step_seconds = job.ranks.now() - start
        for stage, value in job.clock.take().items():
            stages[stage] = stages.get(stage, 0.0) + value
        seconds, steps = seconds + step_seconds, steps + report.optimizer_steps
        visible, instances = visible + report.visible_gaussians, instances + report.tile_instances
        seen, loss = strategy.images_seen, job.ranks.total(share)
        job.spending.end()
        if not isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} after {seen} images")
        job.sample("training", "loss", loss, index=steps, images_seen=seen)
        job.sample("training", "step_seconds", step_seconds, index=steps, images_seen=seen)
        if perf_counter() - shown > PROGRESS_SECONDS or seen >= cell.images:
            shown = perf_counter()
            job.progress(min(seen, cell.images), cell.images, "images", seen / seconds, loss)
        if any(before < at <= seen for at in evaluations):
            with job.ranks.comm.off_the_record():
                evaluate(job, scene, strategy, final=seen >= cell.images)
            job.clock.take()
    seen = strategy.images_seen
    total = job.ranks.slowest(seconds)
    job.seconds("train_seconds", total, "sum", images_seen=seen)
    job.seconds("views_per_second", seen / total, "mean", images_seen=seen)
    job.seconds("optimizer_steps_per_second", steps / total, "mean", images_seen=seen)
    job.seconds("step_seconds", total / steps, "mean", images_seen=seen)
    job.measure("loss", loss, "last", images_seen=seen)
    for stage, value in stages.items():
        job.seconds("stage_seconds", job.ranks.slowest(value) / steps, "mean", stage=stage)
    job.measure("visible_gaussians", job.ranks.total(visible) / seen, "mean")
    job.measure("tile_instances", job.ranks.total(instances) / seen, "mean")
    job.measure("gaussians_count", job.ranks.total(sum(len(s.ids) for s in strategy.shards())), "last")
    job.statistics(strategy)
    job.spent(1)
    job.traffic(steps)
    job.memory(strategy)
    job.fingerprint(strategy)
    if job.preparation:
        kept = sum(len(s.ids) for s in strategy.shards())  # Fewer than it began with after pruning.
        write_gaussians(job.folder / "gaussians.ply", strategy.shards(), kept)


def evaluate(job: Job, scene: Scene, strategy: Strategy, final: bool) -> None:
    """Mean PSNR and SSIM over the held-out views; pictures at the start and at the end."""
    assert scene.images is not None
    seen = strategy.images_seen
    work = Workspace(job.device)
    values: list[tuple[float, float]] = []
    for number, view in enumerate(scene.test_views):
        image = strategy.render(scene.cameras[view])
        if image is None:
            continue
        truth = scene.images.region(view, Rect.whole(scene.cameras[view]), job.device)
        quality = psnr(image, truth), ssim(job.kernels, image, truth, work)
        values.append(quality)
        if number < PICTURED_VIEWS and (final or seen == 0):
            facts = {
                "view": view,
                "view_name": scene.view_names[view],
                "images_seen": seen,
                "psnr": quality[0],
                "credit": scene.credit,
            }
            job.save_image(image, f"view{view:04d}_{seen:07d}", kind="render" if final else "initial", **facts)
            if final:
                job.save_image(truth, f"view{view:04d}_truth", kind="truth", **facts | {"psnr": None})
                difference = (image - truth.to(image.dtype) / 255.0).abs()
                job.save_image(difference, f"view{view:04d}_difference", kind="difference", **facts)
    if values:
        mean = torch.tensor(values, dtype=torch.float64).mean(dim=0)
        job.measure("psnr", float(mean[0]), "mean", images_seen=seen)
        job.measure("ssim", float(mean[1]), "mean", images_seen=seen)
