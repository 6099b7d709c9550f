"""The operators of one step of `single` as calls, each with the inputs that it has there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workload import workload
from cuda_src.workspace import Workspace
from harness.measure.floors import Work
from harness.runner.job import Job
from harness.scenes.scene import Scene
from strategies.base import GaussianSource, Rect
from strategies.gaussians import Gaussians
from strategies.morton import source_order
from strategies.training.optimizer import RowAdam
from strategies.training.schedule import column_rates

_SPARE = 64
"""Splats and instances that a room has beyond what the view needs."""

Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class ViewCalls:
    """One view's operators by name, in the order of a step, and its counted work.

    step: those that a step consists of. beside: others, which steps of other strategies have in their place.
    """

    step: Calls
    beside: Calls
    work: Work


@dataclass(frozen=True)
class _Chain:
    """What one step holds between its operators."""

    splats: op.Splats
    bins: op.Bins
    raster: op.Raster
    loss: op.Loss
    partial: torch.Tensor


class OperatorCalls:
    """The Gaussians of a cell, and the calls of any of its views. Rates are zero: every call finds the same values."""

    def __init__(self, job: Job, scene: Scene, source: GaussianSource):
        self._kernels, self._device = job.kernels, job.device
        self._degree = job.cell.training.sh_degree
        self._scene = scene
        self._training = job.cell.training.model_copy(update={"rate_scale": 0.0})
        ids = source_order(source, job.device)
        self._gaussians = Gaussians.from_source(source, ids, job.device, job.kernels.dtype)
        self._background = torch.tensor(self._training.background, dtype=job.kernels.dtype, device=job.device)
        # The view as the host counts it, and as a step has it that was here before.
        self._counted, self._steady = Workspace(job.device), Workspace(job.device)
        self._adam = RowAdam(self._training, job.kernels, scene.extent, Workspace(job.device))

    def work(self, view: int) -> Work:
        """The view's counted work, without a call kept."""
        camera = self._scene.cameras[view]
        splats = self._project(camera, self._counted, None)
        bins = self._bin(splats, camera, self._counted, None)
        raster = self._forward(splats, bins, camera, self._counted)
        return self._work(splats, bins, raster, camera)

    def of(self, view: int) -> ViewCalls:
        """The calls of that view, valid until the next view's are asked for."""
        kernels, camera, degree, parameters = self._kernels, self._scene.cameras[view], self._degree, self._parameters
        assert self._scene.images is not None
        target = self._scene.images.region(view, Rect.whole(camera), self._device)
        exact = self._chain(camera, target, self._counted, None)
        work = self._work(exact.splats, exact.bins, exact.raster, camera)
        room, steady, space = None, exact, self._counted
        if kernels.takes_rooms:
            overflow = torch.zeros(1, dtype=torch.int32, device=self._device)
            room = op.Room(work.counted.visible + _SPARE, work.counted.instances + _SPARE, overflow)
            space = self._steady
            steady = self._chain(camera, target, space, room)
        splats, bins, raster, loss, partial = (getattr(steady, name) for name in _Chain.__dataclass_fields__)
        step: Calls = {
            "project": lambda: self._project(camera, space, room),
            "bin_splats": lambda: self._bin(splats, camera, space, room),
            "raster_forward": lambda: self._forward(splats, bins, camera, space),
            "l1_ssim": lambda: op.l1_ssim(kernels, raster.colour, target, space),
            "raster_backward": lambda: self._backward(splats, bins, raster, camera, loss, space),
        }
        carried = op.project_backward(kernels, parameters, exact.splats, camera, degree, exact.partial, self._counted)
        alone = torch.ones_like(exact.splats.rows, dtype=torch.int32)
        rates = column_rates(self._training, self._scene.extent, 1).to(carried)
        back: Calls = {
            "project_backward": lambda: op.project_backward(
                kernels, parameters, exact.splats, camera, degree, exact.partial, self._counted
            ),
            "adam_rows": lambda: op.adam_rows(
                kernels, *self._gaussians.tables, exact.splats.rows, carried, alone, rates, 1
            ),
        }
        if not kernels.moves_at_once:
            return ViewCalls(step | back, {}, work)

        def move() -> None:
            self._adam.add_splats(self._gaussians, splats, camera, degree, partial, space)
            self._adam.step(self._gaussians, 1)

        return ViewCalls(step | {"project_backward_adam": move}, back, work)

    @property
    def _parameters(self) -> torch.Tensor:
        return self._gaussians.parameters

    def _project(self, camera: Camera, space: Workspace, room: op.Room | None) -> op.Splats:
        own, kernels = self._gaussians, self._kernels
        rows, bounds = own.parameters, own.bounds(kernels)
        return op.project(kernels, rows, own.ids, camera, self._degree, space, room, bounds, kernels.leaves_ids)

    def _bin(self, splats: op.Splats, camera: Camera, space: Workspace, room: op.Room | None) -> op.Bins:
        return op.bin_splats(self._kernels, splats, camera, space, room=room)

    def _chain(self, camera: Camera, target: torch.Tensor, space: Workspace, room: op.Room | None) -> _Chain:
        kernels = self._kernels
        splats = self._project(camera, space, room)
        bins = self._bin(splats, camera, space, room)
        raster = self._forward(splats, bins, camera, space)
        loss = op.l1_ssim(kernels, raster.colour, target, space)
        partial = self._backward(splats, bins, raster, camera, loss, space)
        return _Chain(splats, bins, raster, loss, partial)

    def _forward(self, splats: op.Splats, bins: op.Bins, camera: Camera, space: Workspace) -> op.Raster:
        return op.raster_forward(self._kernels, splats, bins, camera, space, background=self._background)

    def _backward(
        self, splats: op.Splats, bins: op.Bins, raster: op.Raster, camera: Camera, loss: op.Loss, space: Workspace
    ) -> torch.Tensor:
        return op.raster_backward(self._kernels, splats, bins, raster, camera, loss.gradient, space, self._background)

    def _work(self, splats: op.Splats, bins: op.Bins, raster: op.Raster, camera: Camera) -> Work:
        counted = workload(self._kernels, self._gaussians.count, splats, bins, raster, camera)
        return Work(counted, self._degree)
