"""Stages: where a step's time goes, and how much of it waits for the exchange."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report import palette
from harness.report.drawing import bars, beside, legend, stacked
from harness.report.frames import Results
from harness.report.parts import Section, drawn, groups
from harness.report.quantities import number


def stages(results: Results) -> pd.DataFrame:
    """Seconds of each stage (`value`), mean over repeats; of several places the slowest, in the order they ran.

    `exposed`: of those, seconds in which computation waited for the exchange, 0 where none was recorded. `step`: the
    time of the whole step, or image.
    """
    mean = _slowest_mean(results, "stage_seconds").reset_index()
    waited = _slowest_mean(results, "exposed_seconds").rename("exposed")
    whole = results.cells["step_seconds"].fillna(results.cells["render_seconds"]).rename("step")
    frame = mean.join(waited, on=["cell", "stage"]).join(whole, on="cell")
    frame["exposed"] = frame[["exposed", "value"]].min(axis=1).where(frame["exposed"].notna(), 0.0)
    return results.of_cells(frame)


def waits(results: Results) -> pd.DataFrame:
    """Exposed and hidden seconds a step, by cell and stage of the exchange; of several places the slowest."""
    found = {m: _slowest_mean(results, f"{m}_seconds") for m in ("exposed", "hidden")}
    return pd.DataFrame(found).rename_axis(["cell", "stage"])


def _slowest_mean(results: Results, metric: str) -> pd.Series:
    seconds = results.of_ok(metric)
    if seconds.empty:
        index = pd.MultiIndex.from_arrays([[], []], names=["cell", "stage"])
        return pd.Series([], index=index, name="value", dtype="float64")
    seconds = seconds.dropna(subset="stage")
    slowest = seconds.groupby(["cell", "record", "stage"], sort=False)["value"].max()
    return slowest.groupby(["cell", "stage"], sort=False).mean()


def section(results: Results) -> Section:
    """A plot of stacked bars for each group."""

    def describe(group: pd.DataFrame) -> str:
        waits = " Hatched: the part that waits for the exchange." if (group["exposed"] > 0).any() else ""
        return "Where a step's time goes. The figure at a bar's end is the sum of its stages." + waits

    return Section("stages", "Stages of a step", parts=[*drawn("stages", groups(stages(results)), describe, draw)])


def draw(frame: pd.DataFrame) -> Figure:
    """Stacked bars: milliseconds of each stage in the order it runs, the exchange's exposed part hatched.

    A tick marks the step's own time.
    """
    labels = list(dict.fromkeys(frame["label"]))
    names = sorted(frame["stage"].unique(), key=palette.stage_order)
    exposed = bool((frame["exposed"] > 0).any())
    marks = ["waits"] * exposed + ["whole step"]
    figure, axes = bars(labels, [*names, *marks])
    longest = 0.0
    for row, label in enumerate(labels):
        cell = frame[frame["label"] == label]
        times, waits = 1e3 * cell["value"].to_numpy(), 1e3 * cell["exposed"].to_numpy()
        colours = [palette.stage_colour(stage) for stage in cell["stage"]]
        stacked(axes, row, 0.0, times, colours)
        ends = np.cumsum(times)
        for end, waited, colour in zip(ends, waits, colours, strict=True):
            if waited > 0:
                stacked(axes, row, end - waited, [waited], [colour], hatched=True)
        left = float(ends[-1])
        step = 1e3 * float(cell["step"].iloc[0])
        right = left if np.isnan(step) else max(left, step)
        if not np.isnan(step):
            axes.plot([step, step], [row - 0.43, row + 0.43], color=palette.INK, lw=1.8, solid_capstyle="butt")
        beside(axes, number(left), right, row)
        longest = max(longest, right)
    axes.set_xlim(0, longest * 1.1)
    axes.set_xlabel("ms a step, stages one after another")
    handles: list[Any] = [Patch(color=palette.stage_colour(name), label=name) for name in names]
    if exposed:
        handles.append(Patch(facecolor=palette.MUTED, edgecolor="white", hatch="////", lw=0, label="waits"))
    if frame["step"].notna().any():
        mark = Line2D([], [], color=palette.INK, ls="", marker="|", ms=12, mew=1.8, label="whole step")
        handles.append(mark)
    legend(figure, handles)
    sns.despine(figure, left=True)
    return figure
