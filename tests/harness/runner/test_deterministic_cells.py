"""Cells that are to end with the same bits: those that do, those that say why not, and one that breaks its promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from harness.errors import EXIT_FAILED, EXIT_OK
from harness.records.schema import WorkerResult
from harness.runner.worker import run_rank
from harness.suite.cell import Cell
from harness.suite.feasibility import skip_reason
from harness.suite.machine import Machine
from strategies.distribution.communicator import LocalCommunicator
from strategies.distribution.virtual import VirtualWorld
from strategies.info import Options, StrategyInfo
from strategies.registry import strategy

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "suite": "test",
    "scenario": "train",
    "deterministic": True,
    "device": "cpu",
    "kernels": "portable",
    "scene": {"city": "small_aerial", "gaussians": 300, "points": 300, "views": 9},
    "size": [40, 30],
    "images": 12,
    "evaluations": 1,
    "training": {"sh_every": 4},
    "stop": {"min_passes": 3, "noise": 1e-9, "max_seconds": 60},
}
CELLS: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single", "engine": "local", "threads": 2},
    "single, with occlusion history": {"training": {"sh_every": 4, "occlusion": "history"}, "engine": "local"},
    "single, reference kernels": {"engine": "local", "kernels": "reference", "images": 2, "size": [20, 16]},
    "grendel": {"strategy": "grendel", "ranks": 3, "engine": "virtual"},
    "splaxel": {"strategy": "splaxel", "ranks": 2, "engine": "virtual"},
    "bytesplat": {"strategy": "bytesplat", "ranks": 2, "engine": "virtual", "batch": 2},
    "bytesplat, fused": {
        "strategy": "bytesplat",
        "ranks": 2,
        "engine": "virtual",
        "batch": 2,
        "options": {"raster": "fused"},
    },
    "unified": {"strategy": "unified", "ranks": 2, "engine": "local", "threads": 2},
    "unified, remote atomics": {
        "strategy": "unified",
        "ranks": 2,
        "engine": "local",
        "options": {"exchange": "remote_atomic"},
    },
    "throughput": {"scenario": "throughput", "strategy": "grendel", "ranks": 2, "engine": "virtual"},
}


@pytest.fixture(autouse=True)
def usual_algorithms() -> Any:
    """PyTorch's mode belongs to a cell's process; here it is the tests'."""
    yield
    torch.use_deterministic_algorithms(False)


def result_of(folder: Path, **settings: Any) -> WorkerResult:
    """Run the cell in this process and read what it left."""
    cell = Cell.model_validate({**SMALL, **settings})
    folder.mkdir()
    described = {"cell": cell.model_dump(mode="json", by_alias=True), "preparation": False, "prepared": None}
    (folder / "cell.json").write_text(json.dumps(described))
    if cell.engine == "virtual":
        VirtualWorld(cell.ranks).run(lambda comm: run_rank(folder, comm))
    else:
        run_rank(folder, LocalCommunicator(CPU, places=cell.ranks))
    return WorkerResult.model_validate_json((folder / "result.json").read_text())


def bits(folder: Path, result: WorkerResult) -> tuple[Any, ...]:
    """All that is no time: the Gaussians' hash, counts, quality, and every sample of the loss."""
    timed = ("seconds", "views_per_second", "optimizer_steps_per_second", "stage_imbalance", "peak_memory_bytes")
    told = [(m.metric, m.stage, m.place, m.peer, m.value) for m in result.measurements if not m.metric.endswith(timed)]
    samples = pd.read_parquet(folder / "samples.parquet")
    return result.gaussians_hash, told, samples[samples["metric"] == "loss"]["value"].tolist()


@pytest.mark.parametrize("settings", CELLS.values(), ids=CELLS)
def test_two_runs_end_with_the_same_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    first, second = (result_of(tmp_path / name, **settings) for name in ("first", "second"))
    assert first.gaussians_hash is not None
    assert bits(tmp_path / "second", second) == bits(tmp_path / "first", first)


def test_another_seed_has_another_hash(tmp_path: Path) -> None:
    hashes = {result_of(tmp_path / str(seed), engine="local", seed=seed).gaussians_hash for seed in (0, 1)}
    assert len(hashes) == 2


def test_the_series_is_as_long_as_the_suite_says_whatever_its_noise(tmp_path: Path) -> None:
    result_of(tmp_path / "one", scenario="throughput", engine="local", stop={"min_passes": 4, "noise": 1e9})
    samples = pd.read_parquet(tmp_path / "one" / "samples.parquet")
    passes = samples[(samples["series"] == "passes") & ~samples["warmup"].astype(bool)]
    assert len(passes) == 4


def test_a_usual_cell_has_no_hash_and_pytorchs_usual_algorithms(tmp_path: Path) -> None:
    assert result_of(tmp_path / "usual", engine="local", deterministic=False).gaussians_hash is None
    assert not torch.are_deterministic_algorithms_enabled()


def reason(info: StrategyInfo | None = None, **settings: Any) -> str | None:
    machine = Machine(gpus=2, cpus=8, compiled=True, nvcc=True, numba_cuda=True)
    cell = Cell.model_validate({**SMALL, "strategy": "single", "engine": "local", **settings})
    return skip_reason(cell, info or strategy(cell.strategy), machine)


def test_what_cannot_have_equal_bits_says_why() -> None:
    measured = {"strategy": "bytesplat", "options": {"balance": "measured"}}
    assert reason(**measured) == "deterministic: balance: measured cuts regions by seconds, which differ"
    assert reason(**measured, deterministic=False) is None
    for kernels in ("compiled", "portable"):
        said = reason(device="cuda", kernels=kernels)
        assert said == f"deterministic: kernels {kernels} on cuda sum gradients of splats in an order that varies"
    foreign = StrategyInfo(name="weft", summary="", options=Options, implementation="weft:Weft")
    assert reason(foreign) == "deterministic: its strategy does not say that two runs are equal"


def test_a_repeat_with_other_bits_is_invalid(run: Callable, planned: Callable) -> None:
    outcome = run(planned("bits by_repeat", repeats=2), planned("bits always", repeats=2, seed=1))
    ended = {(record.cell["name"], record.repeat): (record.status, record.reason) for _, record in outcome.records}
    other = "deterministic: the Gaussians are not those of an earlier run of the cell: hash bits 1, before bits 0"
    assert ended[("bits by_repeat", 0)] == ("ok", None)
    assert ended[("bits by_repeat", 1)] == ("invalid", other)
    assert {ended[("bits always", repeat)] for repeat in (0, 1)} == {("ok", None)}
    assert outcome.exit_code == EXIT_FAILED


def test_a_fresh_run_is_held_to_the_bits_of_the_one_before(run: Callable, planned: Callable, tmp_path: Path) -> None:
    (tmp_path / "bits").write_text("a")
    assert run(planned("bits of_file")).exit_code == EXIT_OK
    assert run(planned("bits of_file"), fresh=True).exit_code == EXIT_OK
    (tmp_path / "bits").write_text("b")
    assert run(planned("bits of_file"), fresh=True).exit_code == EXIT_FAILED
