"""Scenario `kernels`: every operator alone, then the whole step of `single`, on the same views."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workspace import Workspace
from harness.measure.clock import synchronize
from harness.measure.statistics import median
from harness.runner import scenario_throughput
from harness.runner.job import Job
from harness.scenes.scene import Scene
from strategies.base import GaussianSource, Rect
from strategies.gaussians import Gaussians
from strategies.training.schedule import column_rates

CALLS = 5
"""Calls of an operator on one view, after a first that is not kept."""
VIEWS = 4


def run(job: Job) -> None:
    """Times of single calls; the step that follows is the throughput scenario's."""
    scene, source = job.scene(from_points=False)
    views = scene.train_views[:VIEWS]
    job.read_images(scene, views)
    seconds: dict[str, list[float]] = {}
    for number, view in enumerate(views):
        job.phase(f"operators on view {number + 1} of {len(views)}")
        for name, call in operator_calls(job, scene, source, view):
            call()
            for _ in range(CALLS):
                start = perf_counter()
                call()
                synchronize(job.device)
                took = perf_counter() - start
                seconds.setdefault(name, []).append(took)
                job.sample("operators", "operator_seconds", took, stage=name, index=view)
    for name, values in seconds.items():
        job.measure("operator_seconds", median(values), stage=name)
    scenario_throughput.run(job)


def operator_calls(job: Job, scene: Scene, source: GaussianSource, view: int) -> list[tuple[str, Callable[[], Any]]]:
    """The operators of one step, each with the inputs it has there; names are those of cuda_src.operators."""
    assert scene.images is not None
    kernels, camera, degree = job.kernels, scene.cameras[view], job.cell.training.sh_degree
    gaussians = Gaussians.from_source(source, torch.arange(source.count), job.device, kernels.dtype)
    target = scene.images.region(view, Rect.whole(camera), job.device)
    work = Workspace(job.device)
    splats, bins, raster, loss, partial, gradients = _intermediate(kernels, gaussians, camera, degree, target, work)
    views = torch.ones_like(splats.rows, dtype=torch.int32)
    # Rates of zero leave every call the same work on the same values.
    rates = torch.zeros_like(column_rates(job.cell.training, scene.extent, 1), dtype=kernels.dtype, device=job.device)
    parameters, moments = gaussians.parameters, (gaussians.moment1, gaussians.moment2)
    return [
        ("project", lambda: op.project(kernels, parameters, gaussians.ids, camera, degree, work)),
        ("bin_splats", lambda: op.bin_splats(kernels, splats, camera, work)),
        ("raster_forward", lambda: op.raster_forward(kernels, splats, bins, camera, work)),
        ("l1_ssim", lambda: op.l1_ssim(kernels, raster.colour, target, work)),
        ("raster_backward", lambda: op.raster_backward(kernels, splats, bins, raster, camera, loss.gradient, work)),
        ("project_backward", lambda: op.project_backward(kernels, parameters, splats, camera, degree, partial, work)),
        ("adam_rows", lambda: op.adam_rows(kernels, parameters, *moments, splats.rows, gradients, views, rates, 1)),
    ]


def _intermediate(
    kernels: op.KernelSet, gaussians: Gaussians, camera: Camera, degree: int, target: torch.Tensor, work: Workspace
) -> tuple[op.Splats, op.Bins, op.Raster, op.Loss, torch.Tensor, torch.Tensor]:
    """What one step holds between its operators."""
    splats = op.project(kernels, gaussians.parameters, gaussians.ids, camera, degree, work)
    bins = op.bin_splats(kernels, splats, camera, work)
    raster = op.raster_forward(kernels, splats, bins, camera, work)
    loss = op.l1_ssim(kernels, raster.colour, target, work)
    partial = op.raster_backward(kernels, splats, bins, raster, camera, loss.gradient, work)
    gradients = op.project_backward(kernels, gaussians.parameters, splats, camera, degree, partial, work)
    return splats, bins, raster, loss, partial, gradients
