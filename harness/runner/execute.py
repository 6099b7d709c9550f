"""One repeat of one cell: its processes started and watched, and what they left turned into a record's parts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.records.schema import Status, WorkerResult
from harness.records.store import LOG, write_atomically
from harness.runner.disk import drop_all_but_log, is_full
from harness.runner.failure import TAIL_LINES, clean_log, kernel_kills, log_lines, outcome, portable_text
from harness.runner.launch import Ended, Launched, worker_command, worker_environment
from harness.runner.progress import PROGRESS, ProgressFile
from harness.runner.result import CELL, DONE, FAILING, RESULT
from harness.runner.whereabouts import WHEREABOUTS
from harness.suite.cell import Cell
from strategies.registry import strategy

_OWN_PROCESS_ENGINES = ("local", "virtual")
"""Engines whose ranks live in one process."""

Command = Callable[[Path, int], list[str]]
"""From a cell's folder and its number of processes to the command that runs it."""


@dataclass(frozen=True)
class Attempt:
    """How one repeat ended; the fields are those of Record."""

    status: Status
    reason: str | None
    result: WorkerResult | None
    started: str
    seconds: float
    log_tail: list[str]


def processes(cell: Cell) -> int:
    """How many processes the cell's ranks are."""
    if cell.engine in _OWN_PROCESS_ENGINES or strategy(cell.strategy).processes == "one":
        return 1
    return cell.ranks


def execute(
    folder: Path,
    cell: Cell,
    cell_id: str,
    repeat: int,
    *,
    preparation: bool = False,
    prepared: Path | None = None,
    on_progress: Callable[[ProgressFile], None] = lambda _: None,
    command: Command = worker_command,
) -> Attempt:
    """Run the cell in a new folder. Afterwards it holds the log, samples and images, and nothing of this machine.

    preparation: others start from what it trains, so it leaves its Gaussians. prepared: folder of the preparation
    that the cell starts `from`. The worker's working directory is ours, to which the cell's paths are relative.
    On any exception, KeyboardInterrupt among them, no process is left and the folder is removed.
    """
    folder.mkdir(parents=True)
    try:
        describe(folder, cell, cell_id, repeat, preparation, prepared)
        progress = ProgressFile(folder)

        def poll() -> None:
            if progress.update():
                on_progress(progress)

        started = now()
        kills = kernel_kills()
        environment = worker_environment(cell.threads, link=cell.link)
        with Launched(command(folder, processes(cell)), folder / LOG, environment) as launched:
            ended = launched.wait(cell.timeout, folder / DONE, poll)
        kills_after = kernel_kills()
        kernel_killed = None if kills is None or kills_after is None else kills_after > kills
        return collect(folder, cell, started, ended, progress, kernel_killed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def describe(
    folder: Path,
    cell: Cell,
    cell_id: str,
    repeat: int,
    preparation: bool = False,
    prepared: Path | None = None,
) -> None:
    """Leave in the folder what a worker has to know; arguments as of `execute`.

    Fields at their defaults are left out, so that workers of an older version, which lack some, run it too.
    """
    described = {
        "cell": cell.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "cell_id": cell_id,
        "repeat": repeat,
        "threads": cell.threads,
        "preparation": preparation,
        "prepared": None if prepared is None else str(prepared.resolve()),
        "root": str(Path.cwd()),
    }
    write_atomically(folder / CELL, json.dumps(described, indent=1))


def now() -> str:
    """UTC, as records hold it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def collect(
    folder: Path, cell: Cell, started: str, ended: Ended, progress: ProgressFile, kernel_killed: bool | None
) -> Attempt:
    """What a worker left, once its processes have ended; the folder keeps nothing of this machine."""
    status, reason, result = outcome(folder, ended, progress, cell.timeout, kernel_killed)
    for name in (CELL, RESULT, f"{RESULT}.partial", PROGRESS, FAILING, DONE):
        (folder / name).unlink(missing_ok=True)
    for file in folder.glob(WHEREABOUTS):
        file.unlink()
    if status == "failed" and is_full(folder):
        drop_all_but_log(folder)
    clean_log(folder)
    tail = log_lines(folder, TAIL_LINES) if status != "ok" else []
    return Attempt(status, _one_line(reason), _portable(result), started, ended.seconds, tail)


def _one_line(reason: str | None) -> str | None:
    return None if reason is None else portable_text(" ".join(reason.split()))


def _portable(result: WorkerResult | None) -> WorkerResult | None:
    """The result without absolute paths in its reason and environment."""
    if result is None:
        return None
    environment: dict[str, Any] = {
        key: portable_text(value) if isinstance(value, str) else value for key, value in result.environment.items()
    }
    return result.model_copy(update={"reason": _one_line(result.reason), "environment": environment})
