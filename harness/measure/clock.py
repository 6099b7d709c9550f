"""Stage clocks: seconds by named stage, only while a breakdown is asked for; and stages as ranges in a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter

import torch

from cuda_src.tape import act

_OFF = nullcontext()

PROFILER_VARIABLES = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Environment variables that NVIDIA's profilers set in the program they run."""


class StageClock:
    """Implements strategies.base.Clock. While `enabled`, each stage is synchronised and timed; otherwise free.

    now: the rank's own clock in seconds; an engine that models time has one. on_stage: told every stage by name, also
    while nothing is timed. ranges: stages are NVTX ranges too, timed or not; None: where a profiler runs this program.
    """

    def __init__(
        self,
        device: torch.device,
        now: Callable[[], float] = perf_counter,
        on_stage: Callable[[str], None] = lambda stage: None,
        ranges: bool | None = None,
    ):
        self.enabled = False
        self._ranges = device.type == "cuda" and profiled() if ranges is None else ranges
        self._on_stage = on_stage
        self._device = device
        self._now = now
        self._seconds: dict[str, float] = {}

    @property
    def watched(self) -> bool:
        """Whether stages are timed, or ranges of a profile."""
        return self.enabled or self._ranges

    def __call__(self, stage: str) -> AbstractContextManager[None]:
        act(partial(self._on_stage, stage))
        if self._ranges:
            return self._ranged(stage)
        return self._timed(stage) if self.enabled else _OFF

    def take(self) -> dict[str, float]:
        """Seconds by stage since the last call, in the order in which stages first ran."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    @contextmanager
    def _ranged(self, stage: str) -> Iterator[None]:
        torch.cuda.nvtx.range_push(stage)
        try:
            with self._timed(stage) if self.enabled else _OFF:
                yield
        finally:
            torch.cuda.nvtx.range_pop()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        synchronize(self._device)
        start = self._now()
        yield
        synchronize(self._device)
        self._seconds[stage] = self._seconds.get(stage, 0.0) + self._now() - start


def synchronize(device: torch.device) -> None:
    """Wait for the device's queued work; the CPU has none."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def profiled() -> bool:
    """Whether one of NVIDIA's profilers runs this program."""
    return any(name in os.environ for name in PROFILER_VARIABLES)
