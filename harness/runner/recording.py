"""From an attempt at a cell to its record: who ran what, where, from which commit, and how to repeat it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.measure.code_id import code_id
from harness.measure.environment import commit, environment, environment_id, machine
from harness.records.schema import Record, WorkerResult
from harness.runner.execute import Attempt
from harness.runner.finished import Key
from harness.suite.cell import Cell
from harness.suite.plan import Plan, Planned


@dataclass(frozen=True)
class Recorder:
    """What all records of a run share."""

    plan: Plan
    run: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))
    facts: dict[str, Any] = field(default_factory=environment)
    commit: str = field(default_factory=commit)

    def key(self, planned: Planned, repeat: int) -> Key:
        """What a record of this repeat has to match; its code is the strategy's and that of what it starts from."""
        cell = planned.cell
        before = [p.cell.strategy for p in self.plan.cells if p.preparation and p.cell_id == cell.from_]
        code = code_id(cell.strategy, *before)
        environment = environment_id(self.facts, cell.device)
        return Key(planned.cell_id, code, environment, repeat, (cell.scene.path, cell.scene.model))

    def record(self, cell: Cell, key: Key, attempt: Attempt) -> Record:
        """The attempt as a record, with the run's environment and relative paths only."""
        return Record(
            run=self.run,
            suite=cell.suite,
            cell_id=key.cell_id,
            code_id=key.code_id,
            environment_id=key.environment_id,
            repeat=key.repeat,
            commit=self.commit,
            machine=machine(self.facts, cell.device),
            gpus=min(cell.ranks, len(self.facts["gpus"])) if cell.device == "cuda" else 0,
            cell=cell.model_dump(mode="json", by_alias=True),
            command=repeat_command(self.plan, key.cell_id),
            status=attempt.status,
            reason=attempt.reason,
            started=attempt.started,
            seconds=attempt.seconds,
            result=self._result(attempt),
            log_tail=attempt.log_tail,
        )

    def _result(self, attempt: Attempt) -> WorkerResult | None:
        """The worker's result with the run's environment in it; one that says no more where the worker left none."""
        if attempt.status == "skipped":
            return None
        result = attempt.result or WorkerResult(status=attempt.status, reason=attempt.reason)
        return result.model_copy(update={"environment": self.facts | result.environment})


def repeat_command(plan: Plan, cell_id: str) -> str:
    """The command that runs the cell again, from the same working directory."""
    words = ["python", "-m", "harness", "run", _relative(plan.file)]
    for text in plan.overrides:
        key, _, value = text.partition("=")
        words += ["--set", f"{key}={_relative(value)}" if os.path.isabs(value) else text]
    return shlex.join([*words, "--only", f"cell={cell_id}"])


def _relative(path: str | Path) -> str:
    return Path(os.path.relpath(path)).as_posix()
