"""Rates of an exchange alone are of the busiest rank and the slowest one, and only where GPUs talk over NCCL."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from harness.runner import exchange_rates
from strategies.base import ExchangeTrial


class Job:
    """Rank 0 of two, of which the other sends twice as much and takes three times as long."""

    def __init__(self, engine: str = "nccl", device: str = "cuda", **comm) -> None:
        settings = {"engine": engine, "ranks": 2, "checks": False, "pace": None, "off_the_record": nullcontext}
        self.device = torch.device(device)
        self.ranks = SimpleNamespace(
            comm=SimpleNamespace(**settings | comm), each=lambda x: [x, 2 * x], slowest=lambda x: 3 * x
        )
        self.measured: dict[tuple[str, str], float] = {}

    def phase(self, name: str) -> None: ...

    def measure(self, metric: str, value: float, stage: str) -> None:
        self.measured[stage, metric] = value


def ours() -> None: ...


def trial(stage: str, *to: list[int]) -> ExchangeTrial:
    return ExchangeTrial(stage, 48, tuple((rows, rows[::-1]) for rows in to), ours)


def test_rates_are_bytes_of_the_busiest_rank_by_the_slowest_clock(monkeypatch):
    monkeypatch.setattr(exchange_rates, "plain", lambda device, trial: "theirs")
    monkeypatch.setattr(exchange_rates, "_seconds", lambda job, run: 2.0 if run is ours else 1.0)
    strategy = SimpleNamespace(exchange_trials=lambda views: [trial("a", [0, 5], [0, 7]), trial("nothing", [0, 0])])
    job = Job()
    exchange_rates.measure(job, strategy, [3, 4])
    sent = 2 * 48 * 12
    assert job.measured == {("a", "exchange_bandwidth"): sent / 6, ("a", "all_to_all_bandwidth"): sent / 3}


@pytest.mark.parametrize(
    "elsewhere", [{"engine": "virtual"}, {"device": "cpu"}, {"checks": True}, {"pace": 1e9}, {"ranks": 1}], ids=str
)
def test_elsewhere_nothing_is_asked_of_the_strategy(elsewhere):
    exchange_rates.measure(Job(**elsewhere), SimpleNamespace(), [0])


def test_the_plain_all_to_all_has_the_rows_of_each_view(monkeypatch):
    calls = []
    monkeypatch.setattr(dist, "all_to_all_single", lambda *given: calls.append(given))
    exchange_rates.plain(torch.device("cpu"), trial("a", [0, 5], [0, 0], [0, 7]))()
    assert [(len(back), len(out), come, to) for back, out, come, to in calls] == [
        (n, n, [n, 0], [0, n]) for n in (5, 0, 7)
    ]
    assert all(rows.shape[1] == 48 and rows.dtype == torch.uint8 for back, out, *_ in calls for rows in (back, out))
