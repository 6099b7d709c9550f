"""What `splaxel` counts reaches the records, and views that run together are timed as the views they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.records.schema import WorkerResult
from harness.runner.worker import run_rank
from harness.suite.cell import Cell
from strategies.distribution.virtual import VirtualWorld

SMALL: dict[str, Any] = {
    "suite": "test",
    "strategy": "splaxel",
    "ranks": 2,
    "device": "cpu",
    "engine": "virtual",
    "kernels": "portable",
    "scene": {"city": "small_street", "gaussians": 300, "points": 300, "views": 9},
    "size": [40, 30],
    "images": 16,
    "evaluations": 2,
    "options": {"window": 8},
    "training": {"sh_every": 0},
    "stop": {"min_passes": 2, "noise": 10.0, "max_seconds": 5},
}


def result_of(folder: Path, **settings: Any) -> dict[str, float]:
    """Run the cell and return its job-level measurements by metric."""
    cell = Cell.model_validate({**SMALL, **settings})
    described = {"cell": cell.model_dump(mode="json", by_alias=True), "preparation": False, "prepared": None}
    (folder / "cell.json").write_text(json.dumps(described))
    VirtualWorld(cell.ranks).run(lambda comm: run_rank(folder, comm))
    result = WorkerResult.model_validate_json((folder / "result.json").read_text())
    assert result.status == "ok", result.reason
    return {m.metric: m.value for m in result.measurements if m.stage is None and m.place is None}


@pytest.mark.parametrize("scenario", ["train", "throughput"])
def test_savings_of_exchange_and_supervision_are_measurements(tmp_path, scenario):
    values = result_of(tmp_path, scenario=scenario)
    assert 0 < values["region_pixel_share"] < 1
    assert 0 <= values["zero_pixel_share"] < 1
    assert 0 < values["supervised_pixel_share"] <= 1
    assert 0 <= values["saturated_pair_share"] < 1
    assert values["views_together"] >= 1


def test_throughput_counts_views_not_steps_when_some_run_together(tmp_path):
    values = result_of(tmp_path, scenario="throughput")
    together = values["views_together"]
    assert values["views_per_second"] * values["step_seconds"] == pytest.approx(together, rel=1e-6)
    assert values["optimizer_steps_per_second"] == pytest.approx(values["views_per_second"], rel=1e-6)
