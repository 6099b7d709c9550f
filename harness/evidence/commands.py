"""The commands that turn records into decisions. Each imports what it needs when it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.errors import EXIT_NOTHING, EXIT_REGRESSED
from harness.evidence.forms import Format

As = Annotated[Format, typer.Option("--format", help="Of what is printed.")]
Json = Annotated[bool, typer.Option("--json", help="For programs: one JSON object, as --format json.")]
OneObject = Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")]
CLAIMS = Path("suites/claims.yaml")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of records, or above records.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other; with --by it may be the same.")],
    by: Annotated[
        str | None, typer.Option(metavar="AXIS", help="Compare cells that differ in this field, as in strategy.")
    ] = None,
    across: Annotated[
        bool, typer.Option("--across", help="Show unlike machines side by side, without a verdict.")
    ] = False,
    kind: As = Format.terminal,
    as_json: Json = False,
) -> None:
    """Say of each cell of two folders whether B is faster, the same or slower than A, and why."""
    from harness.evidence.comparison import compare as compared
    from harness.evidence.comparison_sheet import comparison_sheet

    found = compared(a, b, by, across)
    comparison_sheet(found).write(Format.json if as_json else kind, Console())
    if not found.compared:
        raise typer.Exit(EXIT_NOTHING)


def regress(
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Judge by results/baselines/NAME: counts, and GPU times.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV|FOLDER", help="Run these sources in turns with the present ones; `baseline`: its commit."
        ),
    ] = None,
    suite: Annotated[
        Path | None, typer.Option(metavar="FILE", help="By default the baseline's, or suites/regression.yaml.")
    ] = None,
    of: Annotated[Path | None, typer.Option(metavar="DIR", help="Judge these records in the place of a run.")] = None,
    accept: Annotated[
        str | None, typer.Option(metavar="REASON", help="Make what was measured the baseline, and say why.")
    ] = None,
    code_only: Annotated[
        bool, typer.Option("--code-only", help="Run nothing: say which figures are of other code.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=1, help="Repeats of each side of --against.")] = 5,
    equal_code: Annotated[
        bool, typer.Option("--equal-code", help="Take turns also where both sides' code is equal.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 also for what is ambiguous or stale.")] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    summary: Annotated[Path | None, typer.Option(metavar="FILE", help="Append a summary in Markdown.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the records; results/runs/regress by default.")] = None,
    kind: As = Format.terminal,
    as_json: Json = False,
) -> None:
    """Fail when a cell became slower, or counts other bytes, launches or results than it did."""
    from harness.evidence.guard import OUT, Request
    from harness.evidence.guard import regress as judged
    from harness.evidence.regression import exit_code
    from harness.evidence.regression_sheet import junit as as_junit
    from harness.evidence.regression_sheet import regression_sheet
    from harness.records.store import write_atomically

    request = Request(baseline, against, suite, of, accept, code_only, pairs, equal_code, out or OUT)
    found = judged(request, Console(stderr=True))
    sheet = regression_sheet(found.title, found.results)
    if found.results or found.accepted is None:  # Of the first baseline there is nothing to tell.
        sheet.write(Format.json if as_json else kind, Console())
    if junit is not None:
        write_atomically(junit, as_junit(found.title, found.results, strict))
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(sheet.markdown() + "\n\n")
    if found.accepted is not None:
        print(found.accepted, file=sys.stderr)
    elif code := exit_code(found.results, strict):
        raise typer.Exit(code)


def history(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR...]", help="Folders of records; results/runs by default.")
    ] = None,
    kind: As = Format.terminal,
    as_json: Json = False,
) -> None:
    """Show each cell's time from commit to commit, and where it made a step."""
    from harness.api import RUNS
    from harness.evidence.history import history as histories
    from harness.evidence.history_sheet import history_sheet

    places = folders or [RUNS]
    series = histories(places)
    title = f"times by commit in {', '.join(map(str, places))}"
    history_sheet(title, series).write(Format.json if as_json else kind, Console())
    if not series:
        raise typer.Exit(EXIT_NOTHING)


def claims(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR...]", help="Folders of records; reports by default.")
    ] = None,
    suite: Annotated[Path, typer.Option(metavar="FILE", help="The suite that makes the claims.")] = CLAIMS,
    kind: As = Format.terminal,
    as_json: Json = False,
) -> None:
    """Show published figures beside what records say of them, with verdicts."""
    from harness.evidence.claim_verdicts import judge_claims
    from harness.evidence.claims_sheet import claims_sheet

    tested = judge_claims(suite, folders or [Path("reports")])
    claims_sheet(suite.stem, tested).write(Format.json if as_json else kind, Console())


def readme(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="A Markdown file with marked blocks.")] = Path(
        "README.md"
    ),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if it is out of date.")] = False,
    as_json: OneObject = False,
) -> None:
    """Write the tables and galleries that a Markdown file marks, from committed records."""
    from harness.evidence.readme import stale, written
    from harness.records.store import write_atomically

    text, sentences = written(file), stale(file)
    old = text != file.read_text(encoding="utf-8")
    if old and not check:
        write_atomically(file, text)
    if as_json:
        found = {"file": str(file), "out_of_date": old, "written": old and not check, "stale": sentences}
        print(json.dumps(found, indent=1))
    else:
        for sentence in sentences:
            print(sentence, file=sys.stderr)
        if old:
            print(
                f"{file} is out of date: python -m harness readme {file}" if check else file,
                file=sys.stderr if check else sys.stdout,
            )
    if old and check:
        raise typer.Exit(EXIT_REGRESSED)


def tensorboard(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of records, or above records.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the event files go.")] = Path(
        "results/runs/tensorboard"
    ),
    as_json: OneObject = False,
) -> None:
    """Write the loss, step time and quality of training cells as TensorBoard files; needs the package."""
    from harness.evidence.tensorboard import write_events

    runs = write_events(folders, out)
    if not runs:
        print("no cell has training samples", file=sys.stderr)
    if as_json:
        print(json.dumps({"folder": str(out), "runs": [str(run) for run in runs]}, indent=1))
    elif runs:
        print(out)
    if not runs:
        raise typer.Exit(EXIT_NOTHING)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (compare, regress, history, claims, readme, tensorboard):
        app.command()(command)
