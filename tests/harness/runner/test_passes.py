"""Passes over views: what the host alone is charged with, and how even ranks are."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
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


def test_what_was_there_before_is_not_walked_by_collections_in_measured_passes():
    job, nothing = Clock(), SimpleNamespace(clear=lambda: None, take=lambda: None, begin=lambda: None)
    job.ranks.comm = job.spending = nothing
    job.statistics = lambda strategy, keep: None
    job.progress = lambda *told: None
    job.cell = SimpleNamespace(deterministic=True, stop=SimpleNamespace(min_passes=2))
    witness = SimpleNamespace(begin=lambda: None, look=lambda: None, end=lambda: None)
    kept_out: dict[bool, list[bool]] = {True: [], False: []}

    def one_pass(number: int, warm_up: bool) -> float:
        kept_out[warm_up].append(gc.get_freeze_count() > before)
        return 1.0

    before = gc.get_freeze_count()
    try:
        assert passes.repeated(job, SimpleNamespace(visits_to_settle=3), witness, 1, one_pass) == [1.0, 1.0]
    finally:
        gc.unfreeze()
    assert kept_out == {True: [False] * 3, False: [True] * 2}


def test_ranks_that_are_slow_in_turn_are_not_even():
    bin_, raster, exchange = [[1.0, 1.0], [1.0, 1.0]], [[3.0, 1.0], [1.0, 3.0]], [[9.0, 0.0], [0.0, 9.0]]
    seconds = torch.tensor([exchange, bin_, raster]).permute(1, 2, 0)
    found = passes.imbalance(["exchange_forward", "bin", "raster_forward+loss+raster_backward"], seconds)
    assert found == {
        "bin": 1.0,
        "raster_forward+loss+raster_backward": pytest.approx(1.5),
        passes.REGION: pytest.approx(8 / 6),
    }


def test_one_rank_alone_is_not_called_even():
    assert passes.imbalance(["bin"], torch.ones(1, 3, 1)) == {}


def test_stages_of_a_pass_are_of_the_slowest_rank_and_steps_end_where_it_says():
    """Of two ranks, this one taking 1 s and 3 s of rastering, the other 3 s and 1 s, and 2 s when settling."""
    taken = [{"bin": 1.0, "raster_forward": 1.0}, {"bin": 1.0, "raster_forward": 3.0}, {"optimize": 2.0}]
    job, clock = Clock(), iter(taken * passes.BREAKDOWN_PASSES)
    job.clock = SimpleNamespace(enabled=False, take=lambda: next(clock))
    job.ranks.by_rank = lambda mine: torch.stack([mine, mine[[1, 0, 2]]])
    kept: dict[tuple[str, str], float] = {}
    job.seconds = lambda metric, value, stage: kept.update({(metric, stage): value})
    job.sample = lambda *series, **keys: job.samples.append((series, keys))

    def two_steps(ended) -> None:
        assert job.clock.enabled
        ended()
        ended()

    passes.breakdown(job, two_steps)
    assert kept == {
        ("stage_seconds", "bin"): 1.0,
        ("stage_seconds", "raster_forward"): 2.0,
        ("stage_seconds", "optimize"): 1.0,
        ("stage_imbalance", "bin"): 1.0,
        ("stage_imbalance", "raster_forward"): 1.5,
        ("stage_imbalance", passes.REGION): pytest.approx(8 / 6),
    }
    assert len(job.samples) == 3 * passes.BREAKDOWN_PASSES
    assert not job.clock.enabled
