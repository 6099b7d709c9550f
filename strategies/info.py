"""What a strategy says of itself before any tensor exists. Imports no torch: planning must be instant."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from strategies.training.config import Training


class Options(BaseModel):
    """Base of a strategy's options: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BrokenPluginError(Exception):
    """A strategy of another package cannot be had; the text is one sentence for the user."""


def cpu_only(options: Any, device: str) -> str | None:
    """`lacks` of a strategy that has not been brought to GPUs."""
    return "computes on the CPU only in this version" if device == "cuda" else None


def never_varies(options: Any) -> str | None:
    """`varies` of a strategy that sums in one order and draws by counters, whatever its options."""
    return None


@dataclass(frozen=True)
class StrategyInfo:
    """A strategy, as the suite and the runner need to know it.

    name: as suites write it. summary: one sentence for `list`. options: typed model of its mechanisms; an ablation
    is one option's value. implementation: "module:Class", imported by the worker only. processes: `per_device`
    (one process a rank) or `one` (one process drives all). engines: how its ranks may talk, best first;
    `local` is one process, and so one rank unless that process drives all places.
    max_ranks: None for any number. exact_when: in which settings it equals `single` (design's definition).
    gpu_kernels: back ends that it computes with on GPUs; None for any.
    lacks: of options and a resolved device, what the options need and that device has not; None when it has all.
    refuses: of options, ranks and batch, why these do not go together; None when they do.
    refuses_training: the same of options and training settings.
    remark: of options and ranks, what readers of a figure must know of how it ran; None mostly. Records keep it.
    varies: of options, what makes two runs on one CPU differ in their last bits; None when nothing does.
    """

    name: str
    summary: str
    options: type[Options]
    implementation: str
    processes: Literal["per_device", "one"] = "per_device"
    engines: tuple[str, ...] = ("local",)
    max_ranks: int | None = None
    exact_when: str = ""
    gpu_kernels: tuple[str, ...] | None = None
    lacks: Callable[[Any, str], str | None] = lambda options, device: None
    refuses: Callable[[Any, int, int], str | None] = lambda options, ranks, batch: None
    refuses_training: Callable[[Any, Training], str | None] = lambda options, training: None
    remark: Callable[[Any, int], str | None] = lambda options, ranks: None
    varies: Callable[[Any], str | None] = lambda options: "its strategy does not say that two runs are equal"

    def load(self) -> type[Any]:
        """The Strategy class; imports torch."""
        module, _, name = self.implementation.partition(":")
        return getattr(importlib.import_module(module), name)
