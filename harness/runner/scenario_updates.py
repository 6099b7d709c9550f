"""Scenario `updates`: how far a batch rule keeps what training with one view a step would have done.

Zhao et al. 2024 (Grendel), section 4: from the same model with fresh moments, the same images are trained on once with
batch 1 and once with the cell's batch. The sums of updates are compared by cosine and length, and the second moments
by their ratio times b, which a rule that keeps Adam's view of the gradient leaves at 1.
"""

from __future__ import annotations

import torch

from cuda_src.layout import PARAMETER_GROUPS
from harness.runner.job import Job
from harness.scenes.scene import Scene
from strategies.base import GaussianSource
from strategies.views import ViewQueue


def run(job: Job) -> None:
    """Train `cell.images` images at batch 1 and at the cell's batch, and compare by parameter group."""
    scene, source = job.scene(from_points=True)
    job.read_images(scene, scene.train_views)
    alone, alone_second, _ = updates(job, scene, source, batch=1)
    together, together_second, seen = updates(job, scene, source, batch=job.cell.batch)
    for group, columns in PARAMETER_GROUPS.items():
        a, b = alone[:, columns], together[:, columns]
        sums = torch.stack([(a * b).sum(), (a * a).sum(), (b * b).sum()])
        moments = torch.stack([alone_second[:, columns].sum(), together_second[:, columns].sum()])
        dot, own, other, first, second = job.ranks.by_rank(torch.cat([sums, moments])).sum(dim=0).tolist()
        if own > 0 and other > 0:
            job.measure("update_cosine", dot / (own * other) ** 0.5, "last", stage=group, images_seen=seen)
            job.measure("update_length_ratio", (other / own) ** 0.5, "last", stage=group, images_seen=seen)
        if first > 0:
            ratio = second * job.cell.batch / first
            job.measure("second_moment_ratio", ratio, "last", stage=group, images_seen=seen)


def updates(job: Job, scene: Scene, source: GaussianSource, batch: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Sum of updates and second moments of this rank's rows, both [n, 59] float64, and the images they took."""
    strategy = job.strategy(scene, source, job.cell.training, batch)
    queue = ViewQueue(scene.train_views, job.cell.seed)
    before = torch.cat([s.parameters.double() for s in strategy.shards()])
    while strategy.images_seen < job.cell.images:
        strategy.step(queue)
        job.progress(strategy.images_seen, job.cell.images, f"images at batch {batch}", 0.0, None)
    after, second = (torch.cat([getattr(s, n).double() for s in strategy.shards()]) for n in ("parameters", "moment2"))
    return after - before, second, strategy.images_seen
