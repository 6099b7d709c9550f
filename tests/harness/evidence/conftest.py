"""Folders of records with given times and counts, as runs would leave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.records.schema import Measurement, Record, SceneFacts, WorkerResult
from harness.records.store import SAMPLES, write_record
from harness.suite.cell import Cell
from harness.suite.identity import cell_id

COUNTS = {
    "collectives": 7.0,
    "kernel_launches": 16.0,
    "tile_instances": 4321.125,
    "loss": 0.2325361,
    "psnr": 17.27,
    "peak_tensor_bytes": 1_000_000.0,
    "payload_bytes": 176_000.0,
    "metadata_bytes": 640.0,
}
BY_STAGE = ("payload_bytes", "metadata_bytes")


class Folder:
    """A folder of records that grows by one cell with every call of `cell`."""

    def __init__(self, path: Path):
        self.path = path
        self._number = 0

    def cell(
        self,
        seconds: Sequence[float] = (1.0,),
        counts: dict[str, float | None] | None = None,
        noise: float = 0.0,
        status: str = "ok",
        reason: str | None = None,
        environment: str = "e" * 12,
        code: str = "d" * 12,
        commit: str = "f" * 12,
        started: str = "2026-01-01",
        workload: str = "0" * 64,
        metrics: dict[str, float] | None = None,
        measured: Sequence[Measurement] = (),
        source: str = "measured",
        gaussians_hash: str | None = None,
        **fields: Any,
    ) -> str:
        """A record a repeat, one for each of `seconds`; its cell_id. counts: instead of COUNTS, null ones left out.

        noise: of its passes, which are kept where it is above zero. fields: of the cell.
        """
        settings = {"suite": "made_up", "device": "cpu", "kernels": "portable", "size": (64, 48)} | fields
        resolved = Cell.model_validate(settings)
        identity = cell_id(resolved)
        timed = "cpu_seconds" if resolved.device == "cpu" else "step_seconds"
        for repeat, value in enumerate(seconds):
            measurements = [Measurement.of(timed, value, source=source)]
            for metric, counted in {**COUNTS, **(counts or {})}.items():
                if counted is not None:
                    keys = {"stage": "exchange_forward", "place": 0, "peer": 1} if metric in BY_STAGE else {}
                    measurements.append(Measurement.of(metric, counted, "mean", **keys))
            measurements += [Measurement.of(metric, each) for metric, each in (metrics or {}).items()]
            measurements += measured
            folder = self.path / "cells" / f"record-{self._number:04d}"
            self._number += 1
            folder.mkdir(parents=True)
            if noise:
                _write_passes(folder, value, noise)
            facts = SceneFacts(
                name="city",
                gaussians=resolved.scene.gaussians or 100,
                views=7,
                test_views=1,
                width=64,
                height=48,
                workload_hash=workload,
            )
            result = WorkerResult(
                status=status,
                reason=reason,
                scene=facts,
                measurements=measurements,
                gaussians_hash=gaussians_hash,
            )
            record = Record(
                run="20260101T000000Z",
                suite="made_up",
                cell_id=identity,
                code_id=code,
                environment_id=environment,
                repeat=repeat,
                commit=commit,
                machine=f"machine {environment[:1]}",
                gpus=0,
                cell=resolved.model_dump(mode="json", by_alias=True),
                command="python -m harness run suites/made_up.yaml",
                status=status,
                reason=reason,
                started=f"{started}T00:{self._number // 60:02d}:{self._number % 60:02d}+00:00",
                seconds=1.0,
                result=None if status == "skipped" else result,
            )
            write_record(folder, record)
        return identity


def _write_passes(folder: Path, seconds: float, noise: float) -> None:
    """Ten passes whose median is as uncertain as `noise` says."""
    spread = noise * 10**0.5 / 1.4826 / 1.253 * seconds
    values = [seconds + spread * (1 if i % 2 else -1) for i in range(10)]
    rows = [{"series": "passes", "warmup": False, "metric": "step_seconds", "value": value} for value in values]
    pd.DataFrame(rows).to_parquet(folder / SAMPLES, index=False)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Folder]:
    """A new folder of records by name."""

    def new(name: str) -> Folder:
        path = tmp_path / name
        path.mkdir()
        return Folder(path)

    return new
