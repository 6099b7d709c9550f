"""Running a suite from Python, as the command line does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from harness.errors import UserError
from harness.origin import check_origin
from harness.suite.plan import Plan, plan
from harness.suite.yaml_source import yaml_text

if TYPE_CHECKING:
    from harness.runner.run import RunOutcome

RUNS = Path("results/runs")
"""Where runs go that do not say otherwise, relative to the current directory."""


def run(
    suite: str | Path,
    *,
    set: Mapping[str, Any] | Iterable[str] = (),
    only: Mapping[str, Any] | Iterable[str] = (),
    out: str | Path | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    budget_seconds: float | None = None,
    device: str | None = None,
    console: Console | None = None,
) -> RunOutcome:
    """Run a suite's file and report on it.

    set, only: as of the command line, a mapping (`{"ranks": 2}`) or texts (`"ranks=2"`). out: folder of the records,
    by default results/runs/<suite>. fresh: run cells again that are finished. retry_failed: run those again that did
    not end ok. budget_seconds: start no cell that would overrun it. console: of the progress.
    Raises UserError for every mistake in the suite or the arguments.
    """
    check_origin()
    planned = plan(suite, assignments(set), assignments(only), device)
    return run_plan(planned, out, fresh, retry_failed, budget_seconds, console)


def run_plan(
    planned: Plan,
    out: str | Path | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    budget_seconds: float | None = None,
    console: Console | None = None,
) -> RunOutcome:
    """Run a plan; arguments as of `run`."""
    from harness.runner.run import run_suite
    from harness.runner.scene_check import check_scenes

    folder = RUNS / planned.suite if out is None else Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError("is a file; expected a folder for the records", folder)
    check_scenes(planned)
    return run_suite(
        planned,
        folder,
        fresh=fresh,
        retry_failed=retry_failed,
        budget_seconds=budget_seconds,
        console=console or Console(),
    )


def assignments(given: Mapping[str, Any] | Iterable[str]) -> list[str]:
    """`key=value` texts, also of a mapping."""
    if isinstance(given, Mapping):
        return [f"{key}={value if isinstance(value, str) else yaml_text(value)}" for key, value in given.items()]
    return [given] if isinstance(given, str) else list(given)
