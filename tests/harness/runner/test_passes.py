"""Passes over views: what the host alone is charged with."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from harness.runner import passes
from strategies.views import ViewQueue


class Clock:
    """Seconds that pass only where the test says so; a job of one place that keeps what it is told."""

    def __init__(self) -> None:
        self.time = 0.0
        self.device = torch.device("cpu")
        self.ranks = SimpleNamespace(now=lambda: self.time)
        self.samples: list[tuple[str, str, float, int]] = []
        self.measured: dict[str, float] = {}
        self.phases: list[str] = []

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def sample(self, series: str, metric: str, value: float, index: int) -> None:
        self.samples.append((series, metric, value, index))

    def seconds(self, metric: str, value: float) -> None:
        self.measured[metric] = value


def test_host_seconds_are_those_of_steps_alone_each_begun_on_an_idle_device(monkeypatch):
    job, order = Clock(), []

    def idle(device: torch.device) -> None:
        order.append("idle")
        job.time += 100.0

    def step(queue: ViewQueue) -> SimpleNamespace:
        (view,) = queue.take(queue.peek(1))
        order.append(view)
        job.time += 1.0 + view
        return SimpleNamespace(images=1)

    monkeypatch.setattr(passes, "synchronize", idle)
    strategy = SimpleNamespace(step=step, settle=lambda: order.append("settled"))
    passes.host(job, strategy, ViewQueue(range(3), shuffle=False, keep_passes=True), 3)
    assert order == ["idle", 0, "idle", 1, "idle", 2, "settled"]
    assert job.samples == [("host", "host_seconds", 1.0 + view, view) for view in range(3)]
    assert job.measured == {"host_seconds": 2.0}
