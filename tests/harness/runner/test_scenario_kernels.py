"""Scenario `kernels`: work, times and floors of operators, single steps, and a profiler that is there or is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from harness.measure.floors import OPERATORS
from harness.runner import operator_profile, scenario_kernels
from harness.runner.job import Job
from harness.runner.operator_calls import OperatorCalls
from harness.runner.whereabouts import Whereabouts
from harness.suite.cell import Cell
from strategies.distribution.communicator import LocalCommunicator

SMALL: dict[str, Any] = {
    "suite": "test",
    "scenario": "kernels",
    "device": "cpu",
    "engine": "local",
    "kernels": "portable",
    "scene": {"city": "small_aerial", "gaussians": 300, "points": 300, "views": 9},
    "size": [40, 30],
    "stop": {"min_passes": 2, "noise": 10.0, "max_seconds": 5},
}
PROFILE = Path(__file__).parents[1] / "measure" / "ncu_raw.csv"


@pytest.fixture
def opened(tmp_path) -> Callable[..., Job]:
    def open_job(**settings: Any) -> Job:
        cell = Cell.model_validate({**SMALL, **settings})
        described = {"cell": cell.model_dump(mode="json", by_alias=True), "preparation": False, "prepared": None}
        (tmp_path / "cell.json").write_text(json.dumps(described))
        return Job.open(tmp_path, LocalCommunicator(torch.device(cell.device)), Whereabouts(tmp_path, 0))

    return open_job


def by_stage(job: Job, metric: str) -> dict[str | None, float]:
    return {m.stage: m.value for m in job.measurements if m.metric == metric and m.statistic != "p99"}


@pytest.mark.parametrize("kernels", ["portable", "reference"])
def test_every_operator_has_a_time_and_a_floor_and_the_step_their_sum(opened, kernels):
    job = opened(kernels=kernels)
    scenario_kernels.run(job)
    assert job.invalid is None
    seconds, floors, moved = (
        by_stage(job, metric) for metric in ("operator_seconds", "roofline_seconds", "compulsory_bytes")
    )
    operators = {"project", "bin_splats", "raster_forward", "l1_ssim", "raster_backward"}
    operators |= {"project_backward", "adam_rows"}
    assert set(seconds) == set(moved) == operators
    assert set(floors) == operators | {None}
    assert floors[None] == pytest.approx(sum(floors[name] for name in operators))
    assert all(floors[name] > 0 for name in operators)
    bandwidth = by_stage(job, "copy_bandwidth")[None]
    for name in operators:
        assert floors[name] == pytest.approx(moved[name] / bandwidth)
    counted = {name: by_stage(job, name)[None] for name in scenario_kernels.COUNTED_METRICS}
    assert 0 < counted["instances_forward"] <= by_stage(job, "tile_instances")[None]
    assert counted["active_lanes"] <= 32
    assert by_stage(job, "step_seconds")[None] > 0
    assert "dram_bytes" not in {m.metric for m in job.measurements}


def test_single_steps_have_a_series_of_their_own_over_their_views_floors(opened):
    job = opened()
    scenario_kernels.run(job)
    tail = [row for row in job._samples if row["series"] == "tail"]
    steps = [row for row in tail if row["metric"] == "step_seconds"]
    floors = {row["index"]: row["value"] for row in tail if row["metric"] == "roofline_seconds"}
    assert len(floors) == 7
    assert len(steps) == 7 * scenario_kernels.TAIL_ROUNDS
    assert fmean(floors.values()) == pytest.approx(by_stage(job, "roofline_seconds")[None])
    median = by_stage(job, "step_over_floor")[None]
    (p99,) = (m.value for m in job.measurements if m.metric == "step_over_floor" and m.statistic == "p99")
    assert 0 < median <= p99


def test_another_strategy_has_its_whole_step_beside_the_operators_of_single(opened):
    job = opened(strategy="grendel")
    scenario_kernels.run(job)
    metrics = {m.metric for m in job.measurements}
    assert "step_seconds" in metrics
    assert "operator_seconds" not in metrics


def test_a_batch_of_several_views_has_no_single_steps(opened):
    job = opened(batch=2)
    scenario_kernels.run(job)
    assert "step_over_floor" not in {m.metric for m in job.measurements}
    assert {row["index"] for row in job._samples if row["series"] == "operators"} == {1, 2, 3, 4, 5, 6}


def test_calls_leave_the_gaussians_as_they_are(opened):
    job = opened()
    scene, source = job.scene(from_points=False)
    calls = OperatorCalls(job, scene, source)
    before = calls._gaussians.parameters.clone()
    for call in calls.of(1).step.values():
        call()
    assert torch.equal(calls._gaussians.parameters, before)
    assert calls.of(2).work.counted == calls.work(2).counted


def test_the_typical_view_has_the_median_number_of_instances(opened):
    job = opened()
    scene, source = job.scene(from_points=False)
    calls = OperatorCalls(job, scene, source)
    works = {view: calls.work(view) for view in (1, 2, 3, 4)}
    ordered = sorted(work.counted.instances for work in works.values())
    assert works[scenario_kernels.typical_view(works)].counted.instances == ordered[1]


def profiler(folder: Path, body: str) -> Path:
    """A program in the place of ncu: `log` is the file that it was told to write, `command` what it should profile."""
    program = folder / "ncu"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n"
        "log = Path(sys.argv[sys.argv.index('--log-file') + 1])\ncommand = sys.argv[sys.argv.index('-m') + 1 :]\n"
        + body
    )
    program.chmod(0o755)
    return program


def profiled(opened, monkeypatch, program: Path | None) -> Job:
    job = opened()
    scene, source = job.scene(from_points=False)
    works = {1: OperatorCalls(job, scene, source).work(1)}
    monkeypatch.setattr(operator_profile, "find_ncu", lambda: program)
    there = replace(job, device=torch.device("cuda", 0))
    operator_profile.run(there, 1, works)
    assert not (job.folder / "profile").exists()
    return there


def test_the_profilers_counts_become_measurements_of_the_operators(opened, monkeypatch, tmp_path):
    program = profiler(
        tmp_path,
        "assert command[0] == 'harness.runner.operator_profile', command\n"
        "assert (Path(command[1]) / 'cell.json').exists() and command[2] == '1'\n"
        f"log.write_text(Path({str(PROFILE)!r}).read_text())\n",
    )
    job = profiled(opened, monkeypatch, program)
    assert by_stage(job, "dram_bytes")["raster_forward"] == 250e6
    assert by_stage(job, "warp_instructions") == {"project": 137_250_000, "raster_forward": 402_000_000}
    assert by_stage(job, "kernel_seconds")["raster_forward"] == pytest.approx(1.102e-3)
    assert by_stage(job, "dram_over_compulsory")["project"] > 1
    assert by_stage(job, "l2_reductions") == {"project": 1000, "raster_forward": 0}
    assert by_stage(job, "issue_active")["raster_forward"] == pytest.approx(0.6125)
    assert by_stage(job, "warps_active")["raster_forward"] == pytest.approx(0.625)
    assert operator_profile.NOTE not in job.notes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "Nsight Compute (ncu) is not installed"),
        ("log.write_text('==ERROR== ERR_NVGPUCTRPERM: no permission')", "ERR_NVGPUCTRPERM: no permission"),
        ("sys.exit(3)", "no table of kernels"),
    ],
)
def test_without_a_working_profiler_values_are_absent_and_the_reason_is_kept(opened, monkeypatch, tmp_path, body, said):
    job = profiled(opened, monkeypatch, None if body is None else profiler(tmp_path, body))
    assert said in job.notes[operator_profile.NOTE]
    assert not job.measurements


@pytest.mark.gpu
def test_the_scenario_runs_on_a_gpu_and_its_floors_lie_below_its_times(opened):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    scene = {"city": "anchor_aerial", "gaussians": 200_000, "views": 9}
    job = opened(device="cuda", kernels="compiled", scene=scene, size=[640, 360])
    scenario_kernels.run(job)
    seconds, floors = by_stage(job, "operator_seconds"), by_stage(job, "roofline_seconds")
    assert {"project", "bin_splats", "raster_forward", "l1_ssim", "raster_backward", "project_backward_adam"} <= set(
        seconds
    )
    # A scene this small lies in the L2 cache in part, which is faster than the copy that floors rest on.
    assert all(floors[name] < 1.5 * value for name, value in seconds.items())
    assert by_stage(job, "issue_rate")[None] > 1e11
    if "dram_bytes" in {m.metric for m in job.measurements}:
        assert set(by_stage(job, "dram_bytes")) <= set(OPERATORS)
    else:
        assert job.notes[operator_profile.NOTE]


@pytest.mark.gpu
def test_what_the_profiler_starts_runs_each_operator_of_a_view(opened):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    job = opened(device="cuda", kernels="compiled")
    command = [sys.executable, "-m", "harness.runner.operator_profile", str(job.folder), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
