"""Kernels: each operator's time beside its floor, what it moves, the counted work, and the step beside the sum."""

from __future__ import annotations

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.measure.floors import OPERATORS
from harness.report import palette
from harness.report.drawing import bars, beside, legend
from harness.report.frames import Results
from harness.report.parts import Lines, Section, Table, Value, drawn, figure, groups, tabulated, text
from harness.report.quantities import NONE, count, memory, millions, milliseconds, number, percent, ratio

_OF_VIEWS = ("operator_seconds", "roofline_seconds", "compulsory_bytes")
"""Means over the timed views."""
_OF_ONE_VIEW = ("kernel_seconds", "dram_bytes", "dram_over_compulsory", "warp_instructions")
"""What the profiler counted, of another view than the mean one: never divided by means."""

_EQUAL = 1e-3
"""Relative difference up to which a floor is that of its bytes."""

GOAL, TAIL_GOAL = 1.6, 3.0
"""Of a step over the sum of its operators' floors, at 20 million Gaussians; of p99 over p50 of single steps."""

COUNTED = {
    "visible_gaussians": "visible Gaussians",
    "tile_instances": "tile instances",
    "instances_forward": "of them, read forward",
    "instances_backward": "of them, read back",
    "blended_pairs": "blended pairs",
    "evaluations_forward": "8 x 4 px (warp) evaluations forward",
    "evaluations_backward": "8 x 4 px (warp) evaluations back",
    "evaluations_blending": "of them, with a pixel that blends",
    "cells_forward": "4 x 4 px evaluations forward",
    "cells_backward": "4 x 4 px evaluations back",
    "active_lanes": "pixels of 32 that blend",
}
"""Counted work by metric, as the table calls it."""

_STEP = ("project", "bin_splats", "raster_forward", "l1_ssim", "raster_backward", "project_backward_adam")
_IN_TWO = ("project_backward", "adam_rows")
"""What a step has in the place of project_backward_adam, where a back end does not move rows at once."""

STAGE_OF = {"bin_splats": "bin", "l1_ssim": "loss", "project_backward_adam": "optimize", "adam_rows": "optimize"}
"""Operators whose stage of a step has another name; a bar has its stage's colour."""


def operators(results: Results) -> pd.DataFrame:
    """A row an operator (`stage`) of a cell, in the order of a step, with a column a metric, mean over repeats.

    Columns: _OF_VIEWS and _OF_ONE_VIEW, nan where a metric was not measured; `bytes_seconds`: compulsory bytes over the
    bandwidth of a copy; `issue_rate` of the device; `in_step`: whether a step of the cell's back end consists of it.
    """
    columns = (*_OF_VIEWS, *_OF_ONE_VIEW)
    found = results.of_ok(*columns)
    if found.empty or found["stage"].isna().all():
        return pd.DataFrame()
    means = found.dropna(subset="stage").groupby(["cell", "stage", "metric"], sort=False)["value"].mean()
    frame = means.unstack("metric").reindex(columns=columns).dropna(subset="operator_seconds").reset_index()
    rates = results.of_ok("copy_bandwidth", "issue_rate")
    rates = rates.groupby(["cell", "metric"])["value"].mean().unstack("metric")
    frame = frame.join(rates.reindex(columns=["copy_bandwidth", "issue_rate"]), on="cell")
    frame["bytes_seconds"] = frame["compulsory_bytes"] / frame["copy_bandwidth"]
    order = {name: i for i, name in enumerate((*_STEP, *_IN_TWO))}
    at_once = frame["cell"].isin(frame.loc[frame["stage"] == _STEP[-1], "cell"])
    frame["in_step"] = ~(at_once & frame["stage"].isin(_IN_TWO))
    frame["place"] = frame["stage"].map(order).fillna(len(order))
    return results.of_cells(frame.sort_values(["cell", "place"], kind="stable"))


def steps(results: Results) -> pd.DataFrame:
    """A row a cell of groups with timed operators: step_seconds, floor of the step, and of its slowest views.

    Columns: step, floor, over_median, over_p99; nan where not measured.
    """
    cells = results.cells
    timed = operators(results)
    if timed.empty:
        return pd.DataFrame()
    cells = cells[cells["title"].isin(timed["title"]) & cells["step_seconds"].notna()]
    whole = results.of_ok("roofline_seconds")
    of_views = _over_floor(results).groupby("cell")["value"]
    frame = pd.DataFrame(
        {
            "step": cells["step_seconds"],
            "floor": whole[whole["stage"].isna()].groupby("cell")["value"].mean().reindex(cells.index),
            "over_median": of_views.quantile(0.5).reindex(cells.index),
            "over_p99": of_views.quantile(0.99).reindex(cells.index),
        }
    )
    frame = frame.rename_axis("cell").reset_index()
    return results.of_cells(frame)


def _over_floor(results: Results) -> pd.DataFrame:
    """`cell` and `value`: each view's median single step over the view's own floor."""
    raw = results.samples
    if raw.empty or (raw["series"] == "tail").sum() == 0:
        return pd.DataFrame({"cell": pd.Series(dtype="int64"), "value": pd.Series(dtype="float64")})
    raw = raw[raw["series"] == "tail"]
    by_view = raw.groupby(["cell", "record", "index", "metric"])["value"].median().unstack("metric")
    return (by_view["step_seconds"] / by_view["roofline_seconds"]).rename("value").reset_index()


def section(results: Results) -> Section:
    """For each scene a plot and a table of its operators, the step beside their sum, and the counted work."""
    found = Section(
        "kernels",
        "Kernels",
        "Milliseconds of one call, in the order of a step. The floor is the larger of two times: compulsory bytes over "
        "the bandwidth of a copy, and warp instructions over the issue rate, both from counted work; 'bound by' says "
        "which. The floor of a whole step is the sum of its operators'.",
    )
    timed = operators(results)
    found.parts += drawn("kernels", groups(timed), lambda group: _caption(group), draw)
    work = dict(groups(_counted(results)))
    whole = dict(groups(steps(results)))
    for title, group in groups(timed):
        of_cells = [(str(label), rows) for label, rows in group.groupby("label", sort=False)]
        alone = len(of_cells) == 1
        bodies = [(f"{title} · {label}" if alone else label, _times(rows)) for label, rows in of_cells]
        found.parts += tabulated(_TIMES, bodies, "" if alone else title)
        bodies = [("" if alone else label, _profiled(rows)) for label, rows in of_cells]
        found.parts += tabulated(_PROFILED, bodies)
        if title in whole:
            found.parts += tabulated(_WHOLE, [("", _step_rows(whole[title]))])
        if title in work:
            found.parts += _work_table(work[title])
    if found.parts:
        notes = _notes(results)
        found.parts += [Lines("Measured beside them", notes)] if notes else []
        shown = set(timed.loc[timed["roofline_seconds"].notna(), "stage"])
        demands = [(name, demand.why) for name, demand in OPERATORS.items() if name in shown]
        found.parts += [Lines("Bytes that an operator must move", demands)] if demands else []
    return found


def _caption(group: pd.DataFrame) -> str:
    words = "Milliseconds of each operator."
    return words + " A tick marks its floor." if group["roofline_seconds"].notna().any() else words


_TIMES = ["operator", "ms", "floor", "over floor", "bound by", "must move"]


def _times(rows: pd.DataFrame) -> list[list[Value]]:
    """Means over views of one cell's operators, those of a step first with their sum."""
    shown = [_time_row(name, row) for name, row in _named(rows)]
    sums = rows.loc[rows["in_step"], [*_OF_VIEWS, "bytes_seconds"]].sum(skipna=False)
    shown.insert(
        int(rows["in_step"].sum()), [*_time_row("sum", sums)[:4], text(NONE), figure(sums["compulsory_bytes"], memory)]
    )
    return shown


def _named(rows: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """Operators of a step, then the others in brackets."""
    of_step, others = rows[rows["in_step"]], rows[~rows["in_step"]]
    return [
        *((str(row["stage"]), row) for _, row in of_step.iterrows()),
        *((f"({row['stage']})", row) for _, row in others.iterrows()),
    ]


def _time_row(name: str, row: pd.Series) -> list[Value]:
    seconds, floor, of_bytes = row["operator_seconds"], row["roofline_seconds"], row["bytes_seconds"]
    bound = NONE
    if pd.notna(floor) and pd.notna(of_bytes):
        bound = "bytes" if floor <= (1 + _EQUAL) * of_bytes else "issue"
    return [
        text(name),
        figure(seconds, milliseconds),
        figure(floor, milliseconds),
        figure(seconds / floor, ratio),
        text(bound),
        figure(row["compulsory_bytes"], memory),
    ]


_PROFILED = ["profiled, one view", "ms", "DRAM", "over must", "GB/s", "instructions", "of issue"]


def _profiled(rows: pd.DataFrame) -> list[list[Value]]:
    """What the profiler counted of one view of the cell; no rows where it did not run."""
    rows = rows[rows["kernel_seconds"].notna()].copy()
    if rows.empty:
        return []
    rows["must"] = rows["dram_bytes"] / rows["dram_over_compulsory"]
    shown = [_profiled_row(name, row) for name, row in _named(rows)]
    sums = rows.loc[rows["in_step"], ["kernel_seconds", "dram_bytes", "must", "warp_instructions"]].sum(skipna=False)
    sums["issue_rate"] = rows["issue_rate"].iloc[0]
    shown.insert(int(rows["in_step"].sum()), _profiled_row("sum", sums))
    return shown


def _profiled_row(name: str, row: pd.Series) -> list[Value]:
    seconds, instructions = row["kernel_seconds"], row["warp_instructions"]
    return [
        text(name),
        figure(seconds, milliseconds),
        figure(row["dram_bytes"], memory),
        figure(row["dram_bytes"] / row["must"], ratio),
        figure(row["dram_bytes"] / seconds / 1e9, number),
        figure(instructions, millions),
        figure(instructions / (seconds * row["issue_rate"]), percent),
    ]


_WHOLE = ["whole step", "ms", "floor", f"over floor (goal {GOAL})", "p50", "p99", f"p99 / p50 (goal {TAIL_GOAL:g})"]


def _step_rows(rows: pd.DataFrame) -> list[list[Value]]:
    return [
        [
            text(row["label"]),
            figure(row["step"], milliseconds),
            figure(row["floor"], milliseconds),
            figure(row["step"] / row["floor"], ratio),
            figure(row["over_median"], ratio),
            figure(row["over_p99"], ratio),
            figure(row["over_p99"] / row["over_median"], ratio),
        ]
        for _, row in rows.iterrows()
    ]


def _counted(results: Results) -> pd.DataFrame:
    """Counted work of the first cell of each group that has it: columns metric, value."""
    frame = results.of_ok(*COUNTED)
    if frame.empty or (frame["metric"] == "blended_pairs").sum() == 0:
        return pd.DataFrame()
    frame = frame[frame["cell"].isin(frame.loc[frame["metric"] == "blended_pairs", "cell"])]
    means = results.of_cells(frame.groupby(["cell", "metric"], sort=False)["value"].mean().reset_index())
    first = means.groupby("title", sort=False)["cell"].transform("first")
    return means[means["cell"] == first]


def _work_table(rows: pd.DataFrame) -> list[Table]:
    values = rows.set_index("metric")["value"]
    shown = [
        [text(words), figure(values.get(metric), number if metric == "active_lanes" else count)]
        for metric, words in COUNTED.items()
        if metric in values
    ]
    return [Table("", ["counted work, mean of a view", "count"], [("", shown)])]


def _notes(results: Results) -> list[tuple[str, str]]:
    """Rates of the device, and what was not measured."""
    notes = []
    for metric, unit, scale in (("copy_bandwidth", "GB/s", 1e9), ("issue_rate", "G warp instructions/s", 1e9)):
        values = results.of_ok(metric)
        if len(values):
            notes.append((metric.replace("_", " "), f"{number(values['value'].median() / scale)} {unit}"))
    missing = {
        record.result.environment["dram_bytes"]
        for _, record in results.records.values()
        if record.result is not None and "dram_bytes" in record.result.environment
    }
    return notes + [("DRAM bytes", f"not measured: {reason}") for reason in sorted(missing)]


def draw(frame: pd.DataFrame) -> Figure:
    """A bar an operator of each cell, coloured by its stage, and a tick at its floor."""
    several = frame["label"].nunique() > 1
    labels = [f"{row['stage']} · {row['label']}" if several else str(row["stage"]) for _, row in frame.iterrows()]
    floors = frame["roofline_seconds"].notna().any()
    drawing, axes = bars(labels, ["floor"] if floors else [])
    for place, (_, row) in enumerate(frame.iterrows()):
        seconds, floor = 1e3 * row["operator_seconds"], 1e3 * row["roofline_seconds"]
        colour = palette.stage_colour(STAGE_OF.get(row["stage"], row["stage"]))
        axes.barh(place, seconds, height=0.66, color=colour, lw=0, alpha=1.0 if row["in_step"] else 0.45)
        if pd.notna(floor):
            axes.plot([floor, floor], [place - 0.43, place + 0.43], color=palette.INK, lw=1.8, solid_capstyle="butt")
        over = f" ({ratio(seconds / floor)})" if floor > 0 else ""
        beside(axes, number(seconds) + over, max(seconds, floor) if floor > 0 else seconds, place)
    axes.set_xlim(0, 1.22 * 1e3 * frame[["operator_seconds", "roofline_seconds"]].max().max())
    axes.set_xlabel("ms a call")
    handles: list[Any] = []
    if floors:
        handles.append(Line2D([], [], color=palette.INK, ls="", marker="|", ms=12, mew=1.8, label="floor"))
    if not frame["in_step"].all():
        handles.append(Patch(color=palette.MUTED, alpha=0.45, label="not part of this step"))
    if handles:
        legend(drawing, handles)
    sns.despine(drawing, left=True)
    return drawing
