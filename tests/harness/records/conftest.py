"""Records made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.records.schema import Measurement, Record, SceneFacts, WorkerResult
from harness.records.store import write_record
from harness.suite.cell import Cell


@pytest.fixture
def save() -> Callable[..., Path]:
    """Write a record into a folder; keywords replace its fields, `cell` those of its cell."""

    def write(folder: Path, measurements: list[Measurement] | None = None, cell: dict | None = None, **fields) -> Path:
        resolved = Cell.model_validate({"suite": "made_up", "device": "cpu", "kernels": "portable"} | (cell or {}))
        facts = SceneFacts(
            name="city", gaussians=100, views=7, test_views=1, width=64, height=48, workload_hash="0" * 64
        )
        result = WorkerResult(
            status="ok", engine="local", kernels="portable", scene=facts, measurements=measurements or []
        )
        settings = {
            "run": "20260101T000000Z",
            "suite": "made_up",
            "cell_id": "c" * 12,
            "code_id": "d" * 12,
            "environment_id": "e" * 12,
            "repeat": 0,
            "commit": "f" * 12,
            "machine": "CPU, Some CPU, 2 cores",
            "gpus": 0,
            "cell": resolved.model_dump(mode="json", by_alias=True),
            "command": "python -m harness run suites/made_up.yaml --only cell=cccccccccccc",
            "status": "ok",
            "started": "2026-01-01T00:00:00.000+00:00",
            "seconds": 1.5,
            "result": result,
        }
        folder.mkdir(parents=True)
        write_record(folder, Record(**(settings | fields)))
        return folder

    return write
