"""gsplat's sparse Adam, given the rows, rates and batch rules of the suite's training settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from strategies.gsplat_peer.parameters import COLUMNS, SplitGaussians
from strategies.training.config import Training
from strategies.training.schedule import column_rates


class PeerAdam:
    """Moves the rows that `training.optimizer` names: `visible` those with a radius in a view of the step, gsplat's
    own rule; `touched` those of them with a gradient; `dense` all.

    gsplat's kernel has no bias correction. For betas and epsilon of Adam (Kingma & Ba 2015, section 2) at step t it is
    the same step with rate * sqrt(1 - beta2^t) / (1 - beta1^t) and epsilon * sqrt(1 - beta2^t), which costs no more.
    """

    def __init__(self, adam: type[Any], gaussians: SplitGaussians, training: Training, extent: float):
        """adam: gsplat.SelectiveAdam."""
        self._training, self._extent = training, extent
        self._gaussians = gaussians
        groups = [{"params": tensor, "name": name} for name, tensor in gaussians.parameters.items()]
        self._adam = adam(groups, eps=training.epsilon, betas=(training.beta1, training.beta2))
        for name, tensor in gaussians.parameters.items():
            # The optimizer makes its state where it finds none; given ours, `shards` and `load` reach the moments.
            moments = gaussians.moment1[name], gaussians.moment2[name]
            self._adam.state[tensor] = {"step": torch.tensor(0.0), "exp_avg": moments[0], "exp_avg_sq": moments[1]}

    def step(self, seen: Sequence[torch.Tensor], images_seen: int) -> None:
        """One step from the summed gradients of its views, which are then let go.

        seen: of each view, [N] bool, Gaussians with a radius there. images_seen: this step's images included.
        """
        batch, training = len(seen), self._training
        rows = seen[0] if batch == 1 else torch.stack(list(seen)).any(dim=0)
        if training.optimizer == "touched":
            rows = rows & self._touched()
        elif training.optimizer == "dense":
            rows = torch.ones_like(rows)
        if batch == 1 or training.batch_rule == "none":
            self._scale(1 / batch)
            self._move(rows, 1, images_seen)
        elif training.batch_rule == "batch" or training.optimizer == "dense":
            self._scale(1 / batch)
            self._move(rows, batch, images_seen)
        else:
            views = torch.stack(list(seen)).sum(dim=0)
            self._scale(1 / views.clamp(min=1).to(self._gaussians.dtype))
            for count in range(1, batch + 1):
                self._move(rows & (views == count), count, images_seen)
        self._adam.zero_grad(set_to_none=True)

    def _move(self, rows: torch.Tensor, views: int, images_seen: int) -> None:
        """Adam on rows that average over that many views: rate * sqrt(v), beta^v, epsilon / sqrt(v)."""
        training, root = self._training, math.sqrt(views)
        correction1, correction2 = 1 - training.beta1**images_seen, math.sqrt(1 - training.beta2**images_seen)
        rates = column_rates(training, self._extent, images_seen).tolist()
        for group in self._adam.param_groups:
            rate = rates[COLUMNS[group["name"]].stop - 1]
            group["lr"] = rate * root * correction2 / correction1
            group["betas"] = training.beta1**views, training.beta2**views
            group["eps"] = training.epsilon / root * correction2
        harmonics = self._gaussians.parameters.get("sh")
        if harmonics is None:
            self._adam.step(rows)
            return
        # One tensor has one rate, that of its last column; Adam's step is a multiple of it, and so is the first's.
        first = harmonics.detach()[:, 0]
        before = first.clone()
        self._adam.step(rows)
        torch.lerp(before, first, training.sh_dc_rate / training.sh_rest_rate, out=first)

    def _scale(self, factor: float | torch.Tensor) -> None:
        """Multiply the gradients; factor: a number, or one a row, [N]."""
        if isinstance(factor, float) and factor == 1:
            return
        for tensor in self._gaussians.parameters.values():
            assert tensor.grad is not None
            by_row = factor if isinstance(factor, float) else factor.view(-1, *[1] * (tensor.dim() - 1))
            tensor.grad.mul_(by_row)

    def _touched(self) -> torch.Tensor:
        """[N] bool: rows with a gradient that is not zero."""
        touched = torch.zeros_like(self._gaussians.ids, dtype=torch.bool)
        for tensor in self._gaussians.parameters.values():
            assert tensor.grad is not None
            touched |= tensor.grad.view(len(touched), -1).any(dim=1)
        return touched
