"""Everything a report says, in order, before it becomes HTML or Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.report import frames, pictures, plots
from harness.report.overview import Finding, findings
from harness.report.quantities import NONE, count, decibels, duration, memory, milliseconds, number, ratio
from harness.report.reading import notes

_SETTINGS = ("repeats", "device", "kernels", "engine")
"""Columns of the table of cells that go to the head of the report when all cells agree."""


@dataclass(frozen=True)
class Plot:
    """name: of its file, without ending. description: the caption, also read out in place of the picture."""

    name: str
    title: str
    description: str
    figure: Figure


@dataclass(frozen=True)
class Table:
    """Text cells; the first column names the row, the others are figures."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class CellRow:
    """A line of the table of cells, as text, and what only some cells have."""

    label: str
    group: str
    facts: dict[str, str]
    status: str
    reason: str
    command: str
    log_tail: str
    modelled: bool


@dataclass
class Page:
    """The report. Lists are empty where nothing of the kind was measured."""

    title: str
    facts: list[tuple[str, str]]
    stand_in: bool
    findings: list[Finding]
    columns: list[str]
    cells: list[CellRow]
    superseded: int
    throughput: list[Plot] = field(default_factory=list)
    stages: list[Plot] = field(default_factory=list)
    curves: list[Plot] = field(default_factory=list)
    views: list[pictures.ViewPictures] = field(default_factory=list)
    operators: list[Table] = field(default_factory=list)
    workload: list[Table] = field(default_factory=list)
    environment: Table | None = None
    reading: list[tuple[str, str]] = field(default_factory=list)
    amplified: int = pictures.AMPLIFIED

    @property
    def plots(self) -> list[Plot]:
        return [*self.throughput, *self.stages, *self.curves]

    @property
    def problems(self) -> list[CellRow]:
        return [cell for cell in self.cells if cell.status not in ("ok", "skipped")]

    @property
    def measured(self) -> bool:
        return any(cell.status == "ok" for cell in self.cells)


def compose(results: frames.Results) -> Page:
    """The whole report but its plots and pictures' files; call inside drawing.style."""
    cells = results.cells
    if cells.empty:
        return Page("Nothing was measured", [], False, [], [], [], results.superseded)
    suites = ", ".join(dict.fromkeys(cells["suite"]))
    page = Page(
        title=suites,
        facts=_facts(results),
        stand_in=bool(cells["stand_in"].any()),
        findings=findings(cells),
        columns=[],
        cells=[],
        superseded=results.superseded,
        reading=notes(cells["scenario"].unique(), bool(cells["modelled"].any())),
    )
    page.columns, common, page.cells = _cell_rows(results)
    if common:
        page.facts.append(("All cells", ", ".join(f"{name} {value}" for name, value in common)))
    page.throughput, page.stages, page.curves = _throughput(results), _stages(results), _curves(results)
    page.views = pictures.views(results)
    page.operators, page.workload = _operators(results), _workload(results)
    page.environment = _environment(results)
    return page


def _facts(results: frames.Results) -> list[tuple[str, str]]:
    records = [record for _, record in results.records.values()]
    started = sorted(record.started for record in records)
    first, last = (text[:16].replace("T", " ") for text in (started[0], started[-1]))
    if first != last:
        first += "–" + (last[11:] if last[:10] == first[:10] else last)
    return [
        ("Machine", "; ".join(dict.fromkeys(record.machine for record in records))),
        ("Commit", ", ".join(dict.fromkeys(record.commit for record in records))),
        ("Ran", f"{first} UTC"),
        ("Wall time of cells", duration(sum(record.seconds for record in records))),
        (
            "Cells",
            count(len(results.cells)) + ("" if len(records) == len(results.cells) else f", {len(records)} records"),
        ),
    ]


def _cell_rows(results: frames.Results) -> tuple[list[str], list[tuple[str, str]], list[CellRow]]:
    """The table of cells: its columns, what all cells have in common instead of a column, and the rows.

    Columns in which no cell has a value are left out.
    """
    facts = {cell: _cell_facts(row) for cell, row in results.cells.iterrows()}
    columns, common = [], []
    for column in next(iter(facts.values())):
        values = {found[column] for found in facts.values()}
        if column in _SETTINGS and len(values - {NONE}) == 1:
            common.append((column, (values - {NONE}).pop()))
        elif values - {"", NONE}:
            columns.append(column)
    rows = [
        CellRow(
            label=row["label"],
            group=row["title"],
            facts={column: facts[cell][column] for column in columns},
            status=row["status"],
            reason=row["reason"],
            command=row["command"],
            log_tail="\n".join(results.records[int(row["record"])][1].log_tail),
            modelled=bool(row["modelled"]),
        )
        for cell, row in results.cells.iterrows()
    ]
    return columns, common, rows


def _cell_facts(row: pd.Series) -> dict[str, str]:
    rate = number(row["views_per_second"])
    if not pd.isna(row["noise"]) and row["noise"] < float("inf"):
        rate += f" ±{row['noise']:.1%}"
    return {
        "views/s": rate,
        "× single": ratio(row["speedup"]),
        "ms a step": milliseconds(row["step_seconds"]),
        "PSNR, dB": decibels(row["psnr"]),
        "SSIM": NONE if pd.isna(row["ssim"]) else f"{row['ssim']:.4f}",
        "training": duration(row["train_seconds"]),
        "peak memory": memory(row["peak_memory_bytes"]),
        "repeats": f"{row['repeats_ok']} of {row['repeats']}"
        if row["repeats"] != row["repeats_ok"]
        else count(row["repeats"]),
        "device": row["device"],
        "kernels": NONE if row["kernels"] == "auto" else row["kernels"],
        "engine": NONE if row["engine"] == "auto" else row["engine"],
    }


def _groups(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(title), group) for title, group in frame.groupby("title", sort=False)] if len(frame) else []


def _throughput(results: frames.Results) -> list[Plot]:
    drawn = []
    speedups = results.cells.set_index(["title", "label"])["speedup"]
    for i, (title, group) in enumerate(_groups(frames.throughput(results))):
        text = "Throughput by strategy and ranks: bars are medians of repeats" + (
            "; hollow, hatched bars are modelled." if group["modelled"].any() else "."
        )
        drawn.append(Plot(f"throughput-{i + 1}", title, text, plots.throughput(group, speedups[title])))
        if group.groupby("strategy")["ranks"].nunique().max() >= 3:
            text = "Throughput against the number of ranks; dotted: perfect scaling from each line's first point."
            drawn.append(Plot(f"scaling-{i + 1}", title, text, plots.scaling(group)))
    return drawn


def _stages(results: frames.Results) -> list[Plot]:
    text = "Where a step's time goes. The figure at a bar's end is the sum of its stages."
    return _drawn("stages", text, frames.stages(results), plots.stages)


def _drawn(name: str, text: str, frame: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure]) -> list[Plot]:
    return [Plot(f"{name}-{i + 1}", title, text, draw(group)) for i, (title, group) in enumerate(_groups(frame))]


def _curves(results: frames.Results) -> list[Plot]:
    loss, quality = frames.loss(results), frames.quality(results)
    by_title: dict[str, list[pd.DataFrame]] = {}
    for position, frame in enumerate((loss, quality)):
        for title, group in _groups(frame):
            by_title.setdefault(title, [pd.DataFrame(), pd.DataFrame()])[position] = group
    text = "Training loss (smoothed; single values faint) and PSNR of held-out views, by images seen."
    return [
        Plot(f"curves-{i + 1}", title, text, plots.curves(*pair)) for i, (title, pair) in enumerate(by_title.items())
    ]


def _operators(results: frames.Results) -> list[Table]:
    """Milliseconds a call: a row an operator, a column a cell."""
    tables = []
    for title, group in _groups(frames.operators(results)):
        labels = list(dict.fromkeys(group["label"]))
        grid = group.pivot_table(index="stage", columns="label", values="value", sort=False)
        rows = [[str(name), *(milliseconds(values.get(label)) for label in labels)] for name, values in grid.iterrows()]
        steps = results.cells[results.cells["title"] == title].set_index("label")["step_seconds"]
        rows.append(["whole step", *(milliseconds(steps.get(label)) for label in labels)])
        tables.append(Table(title, ["operator", *labels], rows))
    return tables


def _workload(results: frames.Results) -> list[Table]:
    """What a view costs whatever the machine, and what it takes in memory."""
    tables = []
    facts = ["visible_gaussians", "tile_instances", "peak_tensor_bytes", "peak_memory_bytes"]
    measured = results.cells[results.cells[facts].notna().any(axis=1)]
    for title, group in _groups(measured):
        rows = []
        for _, row in group.iterrows():
            total = row["gaussians_count"] if not pd.isna(row["gaussians_count"]) else row["gaussians"]
            share = row["visible_gaussians"] / total if total else float("nan")
            visible = count(row["visible_gaussians"])
            rows.append(
                [
                    str(row["label"]),
                    count(total),
                    visible if pd.isna(share) else f"{visible} ({share:.1%})",
                    count(row["tile_instances"]),
                    memory(row["peak_tensor_bytes"]),
                    memory(row["peak_memory_bytes"]),
                ]
            )
        columns = ["cell", "Gaussians", "visible a view", "tile instances a view", "peak tensors", "peak memory"]
        tables.append(Table(title, columns, rows))
    return tables


def _environment(results: frames.Results) -> Table | None:
    """One column an environment, one row a fact; facts that every environment lacks are left out."""
    by_id: dict[str, dict[str, str]] = {}
    for _, record in results.records.values():
        if record.result and record.result.environment:
            name = f"{record.machine} ({record.environment_id[:8]})"
            by_id.setdefault(name, dict(_flat(record.result.environment)))
    if not by_id:
        return None
    keys = dict.fromkeys(key for facts in by_id.values() for key in facts)
    rows = [[key, *(facts.get(key, NONE) for facts in by_id.values())] for key in keys]
    return Table("", ["", *by_id], [row for row in rows if any(value != NONE for value in row[1:])])


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as (dotted key, text)."""
    flat: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = prefix + key.replace("_", " ")
        if isinstance(value, dict):
            flat += _flat(value, f"{name} · ")
        elif isinstance(value, list | tuple):
            flat.append((name, ", ".join(_fact(key, v) for v in value) or NONE))
        else:
            flat.append((name, _fact(key, value)))
    return flat


def _fact(key: str, value: Any) -> str:
    if value is None or value == "":
        return NONE
    return memory(value) if key.endswith("bytes") and isinstance(value, int | float) else str(value)
