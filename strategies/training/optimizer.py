"""Which rows a step moves, and by how much: gradients of the step's views become one Adam step by rows."""

from __future__ import annotations

import torch

from cuda_src.bounds import widen_groups
from cuda_src.camera import Camera
from cuda_src.exchange import take_records
from cuda_src.layout import PARAMETERS, RECORD_DEPTH
from cuda_src.operators import (
    Kept,
    KernelSet,
    Pace,
    Part,
    Seen,
    Splats,
    adam_rows,
    project_backward,
    project_backward_adam,
)
from cuda_src.workspace import Workspace
from strategies.gaussians import Gaussians
from strategies.training.config import Training
from strategies.training.schedule import column_rates


class RowAdam:
    """Collects the gradients of a step's views with `add` or `add_splats`, then moves the rows once with `step`.

    `training.optimizer` decides the rows: `dense` all of them, as if every view saw every Gaussian; `visible` those
    with a footprint in a view of the step; `touched` those of them whose gradient is not zero. Where the kernels move
    rows at once, gradients by splat wait for `step` and never become gradients by row.

    all_rows: [n] int64 ascending, the rows that `dense` moves where the tables also hold rows of others; None: all.
    """

    def __init__(
        self,
        training: Training,
        kernels: KernelSet,
        extent: float,
        workspace: Workspace,
        all_rows: torch.Tensor | None = None,
    ):
        self._training = training
        self._kernels = kernels
        self._extent = extent
        self._workspace = workspace
        self._all_rows = all_rows
        # Kernels that move rows at once know only of whole tables.
        self._at_once = kernels.moves_at_once and (all_rows is None or training.optimizer != "dense")
        self._seen: list[Seen] = []
        self._begun: torch.Tensor | None = None
        self._part: Part = "all"
        self._degree = 0
        self._rows: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []
        self._pace = Pace(column_rates(training, extent, 0), 0)

    def add(self, rows: torch.Tensor, gradients: torch.Tensor) -> None:
        """One view's gradients, [V, 59], of distinct rows [V]; kept by reference until `step`."""
        self._rows.append(rows)
        self._gradients.append(gradients)

    @property
    def moves_own_first(self) -> bool:
        """Whether `find` and `step_own` can be asked for before a step's gradients are all there."""
        return self._at_once

    def add_splats(
        self,
        gaussians: Gaussians,
        splats: Splats,
        camera: Camera,
        degree: int,
        partial: torch.Tensor,
        work: Workspace,
        drawn: torch.Tensor | None = None,
        kept: Kept | None = None,
    ) -> None:
        """One view's gradients by splat, [V, GRADIENT]: carried back to the parameters now, or in `step` itself.

        Splats and gradients are kept by reference until then. degree: the same for all views of a step. drawn: which
        splats count, [V] bool; None: all. Others are as if the view did not see them; their records may be lost. kept:
        as of `Seen`, for `step_own`.
        """
        if self._at_once:
            if drawn is not None:
                # So that nobody waits to learn how many they are.
                splats.records[:, RECORD_DEPTH].masked_fill_(~drawn, torch.nan)
            self._seen.append(Seen(splats, camera, partial, kept))
            self._degree = degree
            return
        if drawn is not None:
            those = torch.nonzero(drawn).flatten()
            records = take_records(self._kernels, work, "drawn.records", len(those)).copy_(splats.records[those])
            splats, partial = Splats(splats.rows[those], splats.ids[those], records), partial[those]
        gradients = project_backward(self._kernels, gaussians.parameters, splats, camera, degree, partial, work)
        self.add(splats.rows, gradients)

    def find(self, gaussians: Gaussians, images_seen: int) -> None:
        """Find which Gaussians move: `step_own` then moves those that no other rank has a share of, and `step` those
        left, once that share is there; each whenever it likes."""
        self._begun, self._part = gaussians.bounds(self._kernels), "rest"
        self._move_at_once(gaussians, images_seen, "find", self._begun)

    def step_own(self, gaussians: Gaussians, images_seen: int) -> None:
        """See `find`."""
        self._move_at_once(gaussians, images_seen, "own", self._begun)

    def step(self, gaussians: Gaussians, images_seen: int) -> None:
        """Move the Gaussians; images_seen: by the job, this step's images included.

        ValueError for a step whose views were given by splat and by row.
        """
        if self._seen:
            if self._rows:
                raise ValueError("the views of a step are given by splat or by row, not both")
            bounds = self._begun if self._part == "rest" else gaussians.bounds(self._kernels)
            self._move_at_once(gaussians, images_seen, self._part, bounds)
            self._seen, self._part = [], "all"
            return
        training = self._training
        rules = training.beta1, training.beta2, training.epsilon
        rates = self.pace(images_seen).rates
        rows, gradients, views = self._merged(gaussians.count)
        batch = len(self._rows)
        if training.batch_rule == "batch":
            views = torch.full_like(views, batch)
        elif training.batch_rule == "none":
            gradients, views = gradients / batch, torch.ones_like(views)
        self._rows, self._gradients = [], []
        # Sent without waiting for what the device still does.
        rates = rates.to(self._kernels.dtype).to(gaussians.parameters.device, non_blocking=True)
        bounds = gaussians.bounds(self._kernels)
        adam_rows(self._kernels, *gaussians.tables, rows, gradients, views, rates, images_seen, *rules)
        if bounds is not None:
            widen_groups(self._kernels, gaussians.parameters, rows, bounds)

    def _move_at_once(self, gaussians: Gaussians, images_seen: int, part: Part, bounds: torch.Tensor | None) -> None:
        training = self._training
        project_backward_adam(
            self._kernels,
            *gaussians.tables,
            self._seen,
            self._degree,
            self._workspace,
            self.pace(images_seen),
            training.beta1,
            training.beta2,
            training.epsilon,
            rows=training.optimizer,
            batch_rule=training.batch_rule,
            bounds=bounds,
            part=part,
        )

    def pace(self, images_seen: int) -> Pace:
        """The one of this optimizer, as it is at a step; that of a step on a tape is asked for before it is played."""
        pace = self._pace
        if pace.images_seen != images_seen:
            pace.rates, pace.images_seen = column_rates(self._training, self._extent, images_seen), images_seen
        return pace

    def _merged(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Distinct rows, their summed gradients and the number of views each averages over."""
        batch = len(self._rows)
        if self._training.optimizer == "dense":
            every = self._all_rows
            if every is None:
                every = torch.arange(count, device=self._workspace.device)
            gradients = self._workspace.zeros("gradients", (len(every), PARAMETERS), self._kernels.dtype)
            for rows, part in zip(self._rows, self._gradients, strict=True):
                gradients.index_add_(0, rows if self._all_rows is None else torch.searchsorted(every, rows), part)
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
