"""The command line. Commands import what they need when they run: `plan` and `list` answer without torch."""

from __future__ import annotations

import json
import os
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from harness.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError
from harness.evidence.commands import register
from harness.origin import check_origin
from strategies.info import BrokenPluginError

DETERMINISTIC = ["deterministic=true"]
"""What `--deterministic` sets."""
FILE_WIDTH = 160
"""Columns of a plan that is written into a file or a pipe."""


class Commands(TyperGroup):
    """Ends user mistakes in one sentence with exit code 2, and Ctrl-C with 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            check_origin()
            return super().invoke(ctx)
        except (UserError, BrokenPluginError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(EXIT_USAGE) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    help="Measures distributed training of 3D Gaussian Splatting: suites in, reports out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
scene_app = typer.Typer(help="Look at scenes.", no_args_is_help=True)
app.add_typer(scene_app, name="scene")
new_app = typer.Typer(help="Write the beginning of something new.", no_args_is_help=True)
app.add_typer(new_app, name="new")


class Device(StrEnum):
    """Devices that a suite can be run on."""

    cpu = "cpu"
    cuda = "cuda"


class Kind(StrEnum):
    """What `list` lists."""

    strategies = "strategies"
    scenarios = "scenarios"
    presets = "presets"
    metrics = "metrics"
    options = "options"


class Document(StrEnum):
    """What `schema` describes."""

    suite = "suite"
    record = "record"


SuiteFile = Annotated[Path, typer.Argument(metavar="SUITE", help="The suite's YAML file.")]
Sets = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key of every cell; repeatable.")
]
Onlys = Annotated[
    list[str],
    typer.Option("--only", metavar="KEY=VALUE", help="Only cells that match, as in strategy=single; repeatable."),
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="Two runs end with the same bits; cells that cannot are skipped, with why."),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")]
OnDevice = Annotated[Device | None, typer.Option("--device", help="In the place of the suite's device.")]


@app.command()
def run(
    suite: SuiteFile,
    set_: Sets = [],  # noqa: B006 - typer copies it
    only: Onlys = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Folder of the records; results/runs/<suite> by default.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished cells again.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run cells again that did not end ok.")] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start no cell that would overrun it: 90s, 8m, 1.5h.")
    ] = None,
    device: OnDevice = None,
    deterministic: Deterministic = False,
    as_json: AsJson = False,
) -> None:
    """Run a suite, write its records, and print the path of its report."""
    from harness.api import run_plan
    from harness.suite.plan import plan

    seconds = None if budget is None else budget_seconds(budget)
    planned = plan(suite, [*set_, *DETERMINISTIC[:deterministic]], only, device)
    outcome = run_plan(planned, out, fresh, retry_failed, seconds, Console(stderr=as_json))
    if as_json:
        print(json.dumps(outcome.as_json(), indent=1))
    elif outcome.report is not None:
        print(outcome.report)
    raise typer.Exit(outcome.exit_code)


@app.command()
def plan(
    suite: SuiteFile,
    set_: Sets = [],  # noqa: B006
    only: Onlys = [],  # noqa: B006
    device: OnDevice = None,
    deterministic: Deterministic = False,
    as_json: AsJson = False,
) -> None:
    """List a suite's cells with their predicted memory, and what cannot run here."""
    from harness.suite.listing import plan_json, plan_table
    from harness.suite.plan import plan as make_plan

    planned = make_plan(suite, [*set_, *DETERMINISTIC[:deterministic]], only, device)
    if as_json:
        print(json.dumps(plan_json(planned), indent=1))
    else:
        console = Console()
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console = Console(width=FILE_WIDTH)
        for renderable in plan_table(planned):
            console.print(renderable)


@app.command()
def show(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell's id or its beginning, or its name.")],
    out: Annotated[Path | None, typer.Option(help="Folder of records; results/runs by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a list of its records.")] = False,
) -> None:
    """Show a cell's configuration, the command that repeats it, and the end of its log."""
    from harness.api import RUNS
    from harness.records.show import describe, find
    from harness.records.store import read_record

    folders = find(out or RUNS, cell)
    if as_json:
        found = [read_record(folder).model_dump(mode="json", by_alias=True) for folder in folders]
        print(json.dumps(found, indent=1))
        return
    for folder in folders:
        Console().print(describe(folder))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of records, or above records.")],
    out: Annotated[Path | None, typer.Option(help="Where to; DIR/report of the first folder by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of records alone: HTML, Markdown, CSV and PNG."""
    from harness.report.build import MARKDOWN, PLOTS, TABLE, build_report

    for folder in folders:
        if not folder.is_dir():
            raise UserError("no such folder; expected one with records", folder)
    page = build_report(folders, out or folders[0] / "report")
    if as_json:
        beside = {"markdown": MARKDOWN, "table": TABLE, "plots": PLOTS}
        found = {"report": str(page)} | {kind: str(page.parent / name) for kind, name in beside.items()}
        print(json.dumps(found, indent=1))
    else:
        print(page)


@app.command()
def build(
    arch: Annotated[
        str | None, typer.Option(metavar="CC", help="Compute capability such as 80 or 90a; 90 by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build the CUDA kernels, unless the cache holds them, and print the library's path."""
    from cuda_src.compiled.build import BuildError
    from cuda_src.compiled.build import build as build_kernels

    try:
        library = str(build_kernels(arch).library)
    except BuildError as error:
        raise UserError(str(error)) from None
    print(json.dumps({"library": library}, indent=1) if as_json else library)


@app.command()
def doctor(
    suite: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Exit 2 if its cells need what is not here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at this machine: GPUs, links, counters, compilers, versions, and what would disturb measurements."""
    from harness.doctor import WIDTH, examine, tables
    from harness.doctor import as_json as examined
    from harness.suite.plan import plan as make_plan

    found = examine(None if suite is None else make_plan(suite))
    if as_json:
        print(json.dumps(examined(found), indent=1))
    else:
        console = Console()
        console.width = min(console.width, WIDTH)
        for renderable in tables(found):
            console.print(renderable)
    if found.unmet:
        raise typer.Exit(EXIT_USAGE)


@scene_app.command("info")
def scene_info(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A preset, a folder, or a YAML mapping.")],
    size: Annotated[str | None, typer.Option(metavar="WxH", help="Size of the images, pixels.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw cameras and points into this PNG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a scene's points, views, visible share, tile lists and saturation; draw its cameras and points."""
    from harness.suite.scene_argument import scene_argument, size_argument

    scene = scene_argument(spec)
    pixels = size_argument(size, scene)

    import torch

    from cuda_src.operators import KernelSet
    from harness.scenes.info import info_json, info_table
    from harness.scenes.info import scene_info as look_at
    from harness.scenes.load import load_scene

    loaded = load_scene(scene, pixels, torch.device("cpu"))
    found = look_at(loaded, KernelSet())
    if plot is not None:
        from harness.scenes.plot import plot_scene

        plot_scene(loaded, plot)
    if as_json:
        print(json.dumps(info_json(found) | {"plot": None if plot is None else str(plot)}, indent=1))
        return
    table = Table(show_header=False, box=None)
    for key, value in info_table(found):
        table.add_row(f"[bold]{key}[/bold]", value)
    Console().print(table)
    if plot is not None:
        print(plot)


@new_app.command("strategy")
def new_strategy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the strategy, and of its package.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder in which to make the package's folder.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a package with a working, exact strategy to start from; print its folder."""
    from harness.skeleton import new_strategy as write

    folder = str(write(name, out))
    print(json.dumps({"folder": folder}, indent=1) if as_json else folder)


register(app)


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="options: of which strategy.")] = None,
    as_json: AsJson = False,
) -> None:
    """List strategies, scenarios, presets of the city, metrics, or a strategy's options."""
    from harness.suite.listing import known_things, strategy_options, things_table

    if kind is Kind.options:
        if name is None:
            raise UserError("list options: NAME is missing; expected a strategy")
        things = strategy_options(name)
    elif name is not None:
        raise UserError(f"list {kind}: NAME has the value {name!r}; expected none")
    else:
        things = known_things(kind)
    if as_json:
        print(json.dumps({str(kind): things}, indent=1))
    else:
        Console().print(things_table(things) if things else f"{name} has no options")


@app.command()
def schema(kind: Annotated[Document, typer.Argument(help="Of what.")]) -> None:
    """Print the JSON Schema of suites, for editors, or of records, for other programs."""
    from harness.suite.json_schema import record_schema, suite_schema

    print(json.dumps(suite_schema() if kind is Document.suite else record_schema(), indent=1))


def budget_seconds(text: str) -> float:
    """Seconds of a time such as 90s, 8m, 1.5h or 120. Raises UserError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text.strip())
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[match[2]] if match else 0.0
    if seconds <= 0:
        raise UserError(f"--budget: value {text!r}; expected a time above zero such as 90s, 8m or 1.5h")
    return seconds


def main() -> None:
    """The entry point; ends the process with the command's exit code."""
    app()
