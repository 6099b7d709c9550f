"""Stage clocks: seconds by stage while enabled, ranges in a profile where asked for, and nothing else."""

from __future__ import annotations

import itertools

import pytest
import torch

from harness.measure.clock import PROFILER_VARIABLES, StageClock

CPU = torch.device("cpu")


@pytest.fixture
def marks(monkeypatch) -> list[str]:
    """What is pushed to and popped from the profiler."""
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda stage: seen.append(f"+{stage}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("-"))
    for name in PROFILER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return seen


def ticking(**options) -> StageClock:
    """A clock by which every look at the time takes a second."""
    return StageClock(CPU, now=itertools.count().__next__, **options)


def test_seconds_by_stage_add_up_only_while_enabled():
    clock = ticking()
    with clock("bin"):
        pass
    assert clock.take() == {}
    clock.enabled = True
    for stage in ("project", "bin", "project"):
        with clock(stage):
            pass
    assert clock.take() == {"project": 2, "bin": 1}
    assert clock.take() == {}


def test_every_stage_is_told_also_while_nothing_is_timed():
    told: list[str] = []
    clock = ticking(on_stage=told.append)
    with clock("bin"):
        pass
    assert told == ["bin"]


@pytest.mark.parametrize("enabled", [False, True])
def test_stages_are_ranges_of_a_profile_where_asked_for(marks, enabled):
    clock = ticking(ranges=True)
    clock.enabled = enabled
    with clock("project"):
        marks.append("work")
    assert marks == ["+project", "work", "-"]
    assert clock.take() == ({"project": 1} if enabled else {})


def test_a_stage_that_fails_ends_its_range(marks):
    with pytest.raises(ValueError, match="no"), ticking(ranges=True)("project"):
        raise ValueError("no")
    assert marks == ["+project", "-"]


@pytest.mark.parametrize("name", PROFILER_VARIABLES)
def test_a_profiler_that_runs_the_program_gets_ranges_of_stages_on_a_gpu(marks, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with StageClock(torch.device("cuda"))("project"):
        pass
    assert marks == ["+project", "-"]


def test_without_a_profiler_a_stage_costs_no_range(marks):
    for device in (CPU, torch.device("cuda")):
        with StageClock(device)("project"):
            pass
    assert marks == []
