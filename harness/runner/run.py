"""The runner: a plan goes in, records and a report come out. Imports no torch; every cell is processes of its own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK
from harness.records.schema import Record
from harness.records.store import free_folder, remove_unfinished, write_record
from harness.runner import prepared
from harness.runner.console import Display, label
from harness.runner.disk import NO_SPACE, drop_all_but_log, says_full
from harness.runner.execute import Attempt, Command, execute
from harness.runner.finished import ENDED_BADLY, MEASURED, Finished, Key
from harness.runner.kernels import BUILD, COMPILE, COMPILE_CUDA, compile_kernels
from harness.runner.launch import worker_command
from harness.runner.lock import locked
from harness.runner.recording import Recorder
from harness.suite.plan import Plan, Planned

CELLS = "cells"
REPORT = "report"
UNKNOWN_SECONDS = 60.0
"""What a cell is taken to need while none of its scenario has ended."""
BUDGET = "not run: over the budget"
OTHER_BITS = "deterministic: the Gaussians are not those of an earlier run of the cell"
PORTABLE, COMPILED = "portable", "compiled"


@dataclass(frozen=True)
class RunOutcome:
    """exit_code: as errors.py names them. report: its page; None when interrupted, not asked for, or when it could not
    be built. records: of every cell of the plan, found or new, with their folders."""

    exit_code: int
    report: Path | None
    records: list[tuple[Path, Record]]

    def as_json(self) -> dict[str, Any]:
        """For programs: what ended how, and where its record is."""
        cells = [
            {
                "cell_id": record.cell_id,
                "repeat": record.repeat,
                "status": record.status,
                "reason": record.reason,
                "folder": str(folder),
            }
            for folder, record in self.records
        ]
        report = None if self.report is None else str(self.report)
        return {"exit_code": self.exit_code, "report": report, "records": cells}


def run_suite(
    plan: Plan,
    out: Path,
    *,
    fresh: bool = False,
    retry_failed: bool = False,
    budget_seconds: float | None = None,
    console: Console | None = None,
    report: bool = True,
    command: Command = worker_command,
    compile_command: Sequence[str] = COMPILE,
) -> RunOutcome:
    """Run the plan's cells that `out` does not hold yet, then build the report of all that it holds.

    fresh: run all. retry_failed: run those again that failed, ran out of memory or time. budget_seconds: start no
    cell that would likely end later. report: False leaves the report out. Raises UserError when another run writes to
    `out`.
    """
    console = console or Console()
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    with locked(out):
        remove_unfinished(out / CELLS)
        finished = Finished(out / CELLS, fresh=fresh, retry_failed=retry_failed)
        finished.forget_skips(planned.cell_id for planned in plan.cells)
        run = _Run(Recorder(plan), out, finished, command, deadline)
        try:
            run.all(plan, console, compile_command)
        except KeyboardInterrupt:
            console.print("interrupted; finished cells are kept")
            return RunOutcome(EXIT_INTERRUPTED, None, run.records)
        except OSError as error:
            if not says_full(error):
                raise
            console.print(f"{NO_SPACE}; finished cells are kept, make room and run again to go on")
            return RunOutcome(EXIT_FAILED, None, run.records)
        page = _report(out, console) if report else None
        return RunOutcome(exit_code(record for _, record in run.records), page, run.records)


def exit_code(records: Iterable[Record]) -> int:
    """Of a run: 3 if a cell failed, ran out of memory or time or is invalid; else 4 if nothing was measured; else 0."""
    statuses = {record.status for record in records}
    if statuses & (ENDED_BADLY | {"invalid"}):
        return EXIT_FAILED
    return EXIT_OK if statuses & MEASURED else EXIT_NOTHING


def _report(out: Path, console: Console) -> Path | None:
    """Build the report; records outlive its failure, which is shown."""
    try:
        from harness.report.build import build_report

        return build_report([out], out / REPORT)
    except Exception as error:
        console.print(
            f"the report could not be built: {escape(f'{type(error).__name__}: {error}')}; the records are kept"
        )
        return None


@dataclass
class _Run:
    """The loop over cells. prepared: by cell_id of the preparation, its folder, or why there is none."""

    recorder: Recorder
    out: Path
    finished: Finished
    command: Command
    deadline: float | None
    records: list[tuple[Path, Record]] = field(default_factory=list)
    prepared: dict[str, Path | str] = field(default_factory=dict)

    def all(self, plan: Plan, console: Console, compile_command: Sequence[str]) -> None:
        """Preparations, then repeat after repeat."""
        repeats = in_rounds([planned for planned in plan.cells if not planned.preparation])
        missing = []
        for planned, repeat in repeats:
            if (found := self.finished.find(self.recorder.key(planned, repeat))) is not None:
                self.records.append(found)
            else:
                missing.append((planned, repeat))
        needed = {planned.cell.from_ for planned, _ in missing if not planned.skip}
        preparations = [planned for planned in plan.cells if planned.preparation and planned.cell_id in needed]
        with Display(console, len(missing)) as display:
            if self.records:
                display.say(f"{len(self.records)} of {len(repeats)} found finished in {self.out}")
            to_run = [*preparations, *(planned for planned, _ in missing)]
            back_ends = {(planned.cell.kernels, planned.cell.device) for planned in to_run if planned.skip is None}
            compilers = {
                (PORTABLE, "cpu"): compile_command,
                (PORTABLE, "cuda"): COMPILE_CUDA,
                (COMPILED, "cuda"): BUILD,
            }
            for back_end, command in compilers.items():
                if back_end in back_ends:
                    compile_kernels(self.out, display, command)
            for planned in preparations:
                self.prepared[planned.cell_id] = self._prepare(planned, display)
            for planned, repeat in missing:
                self._one(planned, repeat, display)

    def _one(self, planned: Planned, repeat: int, display: Display) -> None:
        """Run or skip one repeat of a cell; its record joins the others."""
        key, name = self.recorder.key(planned, repeat), label(planned.cell, repeat)
        source = self.prepared.get(planned.cell.from_) if planned.cell.from_ else None
        reason = planned.skip or (source if isinstance(source, str) else None) or self._over_budget(planned)
        folder = free_folder(self.out / CELLS, key.folder)
        if reason is not None:
            folder.mkdir(parents=True)
            attempt = skipped(reason)
        else:
            display.start(name)
            attempt = execute(
                folder,
                planned.cell,
                planned.cell_id,
                repeat,
                prepared=source if isinstance(source, Path) else None,
                on_progress=display.progress,
                command=self.command,
            )
        record = self._with_equal_bits(key, self.recorder.record(planned.cell, key, attempt))
        record = self._written(folder, record)
        self.finished.add(folder, record)
        self.records.append((folder, record))
        display.end(name, record)

    def _with_equal_bits(self, key: Key, record: Record) -> Record:
        """The record; invalid where it is of a deterministic cell that ended with other bits before."""
        before, now = self.finished.gaussians_hash(key), record.result.gaussians_hash if record.result else None
        if record.status != "ok" or None in (before, now) or before == now:
            return record
        reason = f"{OTHER_BITS}: hash {str(now)[:12]}, before {str(before)[:12]}"
        return record.model_copy(update={"status": "invalid", "reason": reason})

    def _written(self, folder: Path, record: Record) -> Record:
        """The record as it came to stand in its folder: on a full disk it takes the place of what the cell left there,
        and is that of a failed cell."""
        try:
            write_record(folder, record)
        except OSError as error:
            if not says_full(error):
                raise
            drop_all_but_log(folder)
            record = record.model_copy(update={"status": "failed", "reason": NO_SPACE, "result": None})
            write_record(folder, record)
        return record

    def _prepare(self, planned: Planned, display: Display) -> Path | str:
        """The folder of what cells start from, trained now unless it is there; or why there is none.

        One that fails becomes a record of this run, and is not tried again unless failed cells are.
        """
        key, name = self.recorder.key(planned, 0), label(planned.cell)
        folder = prepared.folder_of(key)
        if prepared.is_ready(folder):
            return folder
        known = self.finished.find(key)
        if known is not None and known[1].status in ENDED_BADLY:
            self.records.append(known)
            return f"{name} {known[1].status}: {known[1].reason}"
        reason = planned.skip or self._over_budget(planned)
        if reason is not None:
            return reason
        failure: list[str] = []

        def train(place: Path) -> bool:
            display.say(f"{name} ...")
            attempt = execute(
                place,
                planned.cell,
                planned.cell_id,
                0,
                preparation=True,
                on_progress=display.progress,
                command=self.command,
            )
            record = self.recorder.record(planned.cell, key, attempt)
            if record.status != "ok":
                kept = free_folder(self.out / CELLS, key.folder)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(place, kept)
                write_record(kept, record)
                self.finished.add(kept, record)
                self.records.append((kept, record))
                failure.append(f"{name} {record.status}: {record.reason}")
                return False
            write_record(place, record)
            return True

        return folder if prepared.build(folder, train) else failure[0]

    def _over_budget(self, planned: Planned) -> str | None:
        """The reason to start no such cell any more, or None."""
        if self.deadline is None:
            return None
        cell = planned.cell
        seconds = self.finished.expected_seconds(planned.cell_id, cell.scenario, cell.strategy) or UNKNOWN_SECONDS
        return BUDGET if time.monotonic() + seconds > self.deadline else None


def in_rounds(cells: Sequence[Planned]) -> list[tuple[Planned, int]]:
    """Repeats of all cells: round by round, each cell once a round, so that drift of the machine hits all alike.

    Cells of more repeats begin in an earlier round and all end in the last: what matters most is through first, and a
    budget that runs out leaves out what has one repeat.
    """
    needed = [1 if planned.skip else planned.cell.repeats for planned in cells]
    rounds = max(needed, default=0)
    return [
        (planned, number - (rounds - count))
        for number in range(rounds)
        for planned, count in zip(cells, needed, strict=True)
        if number >= rounds - count
    ]


def skipped(reason: str) -> Attempt:
    """The attempt that was not made."""
    return Attempt("skipped", reason, None, datetime.now(UTC).isoformat(timespec="milliseconds"), 0.0, [])
