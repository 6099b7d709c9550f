"""Which rows a step moves, and by how much: gradients of the step's views become one Adam step by rows."""

from __future__ import annotations

import torch

from cuda_src.camera import Camera
from cuda_src.layout import PARAMETERS
from cuda_src.operators import KernelSet, Splats, adam_rows, project_backward, project_backward_adam
from cuda_src.workspace import Workspace
from strategies.gaussians import Gaussians
from strategies.training.config import Training
from strategies.training.schedule import column_rates


class RowAdam:
    """Collects the gradients of a step's views with `add`, then moves the rows once with `step`.

    `training.optimizer` decides the rows: `dense` all of them, as if every view saw every Gaussian; `visible` those
    with a footprint in a view of the step; `touched` those of them whose gradient is not zero.
    """

    def __init__(
        self, training: Training, kernels: KernelSet, extent: float, workspace: Workspace, one_view: bool = False
    ):
        """one_view: every step has a single view, so that its gradients need not be kept between two passes."""
        self._training = training
        self._kernels = kernels
        self._extent = extent
        self._workspace = workspace
        self._at_once = one_view and kernels.moves_at_once and training.optimizer != "dense"
        self._waiting: tuple[Splats, Camera, int, torch.Tensor, Workspace] | None = None
        self._rows: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []

    def add(self, rows: torch.Tensor, gradients: torch.Tensor) -> None:
        """One view's gradients, [V, 59], of distinct rows [V]; kept by reference until `step`."""
        self._rows.append(rows)
        self._gradients.append(gradients)

    def add_splats(
        self, gaussians: Gaussians, splats: Splats, camera: Camera, degree: int, partial: torch.Tensor, work: Workspace
    ) -> None:
        """One view's gradients by splat, [V, GRADIENT]: carried back to the parameters now, or in `step` itself."""
        if self._at_once:
            self._waiting = splats, camera, degree, partial, work
            return
        gradients = project_backward(self._kernels, gaussians.parameters, splats, camera, degree, partial, work)
        self.add(splats.rows, gradients)

    def step(self, gaussians: Gaussians, images_seen: int) -> None:
        """Move the Gaussians; images_seen: by the job, this step's images included."""
        rules = self._training.beta1, self._training.beta2, self._training.epsilon
        tables = gaussians.parameters, gaussians.moment1, gaussians.moment2
        rates = self._rates(gaussians, images_seen)
        if self._waiting is not None:
            splats, camera, degree, partial, work = self._waiting
            self._waiting = None
            project_backward_adam(
                self._kernels,
                *tables,
                splats,
                camera,
                degree,
                partial,
                work,
                rates,
                images_seen,
                *rules,
                touched_only=self._training.optimizer == "touched",
            )
            return
        rows, gradients, views = self._merged(gaussians.count)
        batch = len(self._rows)
        if self._training.batch_rule == "batch":
            views = torch.full_like(views, batch)
        elif self._training.batch_rule == "none":
            gradients, views = gradients / batch, torch.ones_like(views)
        self._rows, self._gradients = [], []
        adam_rows(self._kernels, *tables, rows, gradients, views, rates, images_seen, *rules)

    def _rates(self, gaussians: Gaussians, images_seen: int) -> torch.Tensor:
        """[59] on the device, sent without waiting for what the device still does."""
        rates = column_rates(self._training, self._extent, images_seen).to(self._kernels.dtype)
        return rates.to(gaussians.parameters.device, non_blocking=True)

    def _merged(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Distinct rows, their summed gradients and the number of views each averages over."""
        batch = len(self._rows)
        if self._training.optimizer == "dense":
            gradients = self._workspace.zeros("gradients", (count, PARAMETERS), self._kernels.dtype)
            for rows, part in zip(self._rows, self._gradients, strict=True):
                gradients.index_add_(0, rows, part)
            every = torch.arange(count, device=gradients.device)
            return every, gradients, torch.full_like(every, batch, dtype=torch.int32)
        if batch == 1:
            rows, gradients = self._rows[0], self._gradients[0]
            views = torch.ones_like(rows, dtype=torch.int32)
        else:
            rows, where = torch.unique(torch.cat(self._rows), return_inverse=True)
            gradients = self._workspace.zeros("gradients", (len(rows), PARAMETERS), self._kernels.dtype)
            gradients.index_add_(0, where, torch.cat(self._gradients))
            views = torch.bincount(where, minlength=len(rows)).to(torch.int32)
        if self._training.optimizer == "touched":
            touched = gradients.any(dim=1)
            rows, gradients, views = rows[touched], gradients[touched], views[touched]
        return rows, gradients, views
