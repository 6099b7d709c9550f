"""Batch rules: how far a step of several views keeps what as many steps of one view would have done."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.report import palette
from harness.report.drawing import WIDTH, legend
from harness.report.frames import Results
from harness.report.parts import MOST_GROUPS, Lines, Plot, Section, Table, figure, tabulated, text
from harness.report.quantities import number

_METRICS = {
    "update_cosine": "cosine",
    "update_length_ratio": "length ratio",
    "second_moment_ratio": "second-moment ratio",
}
_RULES = ("rows", "batch", "none")
_WIDE = 12.0
"""Largest over smallest value from which on an axis is logarithmic."""


def updates(results: Results) -> pd.DataFrame:
    """Values by rule, batch and parameter group, mean over repeats: title (without the batch), rule, batch, case,
    group, and a column a metric."""
    values = results.of_ok(*_METRICS)
    if values.empty:
        return pd.DataFrame()
    values = values.dropna(subset="stage")
    mean = values.groupby(["cell", "stage", "metric"], sort=False)["value"].mean().unstack("metric").reset_index()
    frame = mean.join(
        results.cells[["order", "scene", "strategy", "ranks", "batch", "batch_rule", "machine"]], on="cell"
    )
    frame = frame.rename(columns={"stage": "group", "batch_rule": "rule"})
    frame["title"] = (
        frame["scene"].astype(str) + " · " + frame["strategy"] + " · " + frame["ranks"].astype(str) + " ranks"
    )
    frame["case"] = frame["rule"] + " · batch " + frame["batch"].astype(str)
    twins = frame.duplicated(["title", "case", "group"], keep=False)
    frame["case"] = frame["case"].where(~twins, frame["case"] + " · " + frame["cell"].map(results.cells["label"]))
    return frame.sort_values(["batch", "order"], kind="stable")


def section(results: Results) -> Section:
    """A sentence a batch, a plot and a table for each scene and strategy."""
    found = Section(
        "batch-rules",
        "Batch rules",
        "The same images, trained on once with one view a step and once with the cell's batch. Cosine and length "
        "compare the sums of updates; the second moment is taken times the batch. 1 is a step that changes nothing.",
    )
    frame = updates(results)
    if frame.empty:
        return found
    for i, (title, rows) in enumerate(frame.groupby("title", sort=False), start=1):
        found.parts.append(Lines(str(title), _sentences(rows)))
        if i <= MOST_GROUPS:
            words = "By parameter group; colours are rules, marks are batches. The line at 1 is what batch 1 does."
            found.parts.append(Plot(f"batch-rules-{i}", str(title), words, draw(rows)))
        found.parts += _table(str(title), rows)
    return found


def _sentences(rows: pd.DataFrame) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for batch, of_batch in rows.groupby("batch", sort=True):
        worst = of_batch.loc[of_batch.groupby("case", sort=False)["update_cosine"].idxmin()]
        worst = worst.sort_values("update_cosine", ascending=False)
        told = [f"{row['rule']} {row['update_cosine']:.3f} ({row['group']})" for _, row in worst.iterrows()]
        found.append((f"batch {batch}", f"lowest cosine of any parameter group by rule: {', '.join(told)}."))
    return found


def _table(title: str, rows: pd.DataFrame) -> list[Table]:
    shown = [m for m in _METRICS if m in rows]
    entries = [
        [text(row["case"]), text(row["group"]), *(figure(row[metric], _ratio) for metric in shown)]
        for _, row in rows.iterrows()
    ]
    columns = ["rule", "parameters", *(_METRICS[m] for m in shown)]
    return tabulated(columns, [(title, entries)], summary=f"All values: {title}")


def _ratio(value: float | None) -> str:
    return f"{value:.4f}" if value is not None and abs(value) < 10 else number(value)


def draw(frame: pd.DataFrame) -> Figure:
    """A panel a metric: parameter groups below one another, a mark a rule and batch."""
    metrics = [m for m in _METRICS if m in frame and frame[m].notna().any()]
    names = list(dict.fromkeys(frame["group"]))
    cases = list(dict.fromkeys(frame["case"]))
    batches = sorted(frame["batch"].unique())
    drawing = Figure(figsize=(WIDTH, 1.2 + 0.5 * len(names)), layout="constrained")
    panels = drawing.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for case in cases:
            of = frame[frame["case"] == case]
            step = (cases.index(case) + 0.5) / len(cases) - 0.5
            rows = [names.index(group) + 0.7 * step for group in of["group"]]
            marker = palette.MARKERS[batches.index(of["batch"].iloc[0]) % len(palette.MARKERS)]
            axes.plot(of[metric], rows, ls="", marker=marker, ms=6.5, color=_colour(of["rule"].iloc[0]))
        axes.axvline(1.0, color=palette.MUTED, lw=1.0)
        positive = frame[metric][frame[metric] > 0]
        if len(positive) == len(frame) and positive.max() / positive.min() > _WIDE:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] == "3" else "")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel(_METRICS[metric])
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    panels[0].tick_params(axis="y", length=0)
    rules = sorted(frame["rule"].unique(), key=lambda rule: _RULES.index(rule) if rule in _RULES else len(_RULES))
    handles = [Line2D([], [], color=_colour(rule), marker="o", ls="", ms=6.5, label=f"rule {rule}") for rule in rules]
    for i, batch in enumerate(batches if len(batches) > 1 else ()):
        marker = palette.MARKERS[i % len(palette.MARKERS)]
        handles.append(Line2D([], [], color=palette.MUTED, marker=marker, ls="", ms=6.5, label=f"batch {batch}"))
    legend(drawing, handles)
    sns.despine(drawing, left=True)
    return drawing


def _colour(rule: str) -> str:
    return palette.SERIES[_RULES.index(rule) if rule in _RULES else len(_RULES)]
