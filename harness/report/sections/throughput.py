"""Throughput: views/s of every cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.report import palette, quantities
from harness.report.drawing import bars, beside, legend
from harness.report.frames import Results
from harness.report.parts import Section, drawn, groups


def throughput(results: Results) -> pd.DataFrame:
    """views/s of each repeat that ended ok: title, label, strategy, ranks, value, modelled, order."""
    rates = results.of_ok("views_per_second")
    rates = rates[rates["place"].isna()]
    return results.of_cells(rates.assign(modelled=rates["source"] == "modelled"))


def section(results: Results) -> Section:
    """A plot of bars for each group of several cells."""
    speedups = results.cells.set_index(["title", "label"])["speedup"]

    def describe(group: pd.DataFrame) -> str:
        marks = "; hollow, hatched bars are modelled." if group["modelled"].any() else "."
        return "Throughput by strategy and ranks: bars are medians of repeats" + marks

    titled = groups(throughput(results))
    # A lone bar compares nothing; the table of cells has its figure.
    several = [(title, rows) for title, rows in titled if rows["label"].nunique() > 1]
    plots = drawn("throughput", several or titled, describe, lambda rows: draw(rows, speedups[rows["title"].iloc[0]]))
    return Section("throughput", "Throughput", parts=[*plots])


def draw(frame: pd.DataFrame, speedups: pd.Series) -> Figure:
    """Bars of views/s, the median of repeats; repeats as points; modelled values hatched.

    frame: of one group. speedups: over `single` on one rank, by label.
    """
    labels = list(dict.fromkeys(frame["label"]))
    hatched = bool(frame["modelled"].any())
    figure, axes = bars(labels, ["measured", "modelled"] if hatched else [])
    longest = float(frame["value"].max())
    for row, label in enumerate(labels):
        repeats = frame[frame["label"] == label]
        median, modelled = float(repeats["value"].median()), bool(repeats["modelled"].any())
        colour = palette.strategy_colour(repeats["strategy"].iloc[0])
        # The hatch takes the edge's colour: a hollow bar with coloured strokes reads as "not measured".
        style: dict[str, Any] = {"facecolor": "none", "hatch": "////"} if modelled else {"facecolor": colour}
        axes.barh(row, median, height=0.66, edgecolor=colour, linewidth=1.0, **style)
        right = median
        if len(repeats) > 1:
            axes.plot(repeats["value"], [row] * len(repeats), "o", ms=4.5, mfc="white", mec=palette.INK, mew=0.9)
            right = max(right, float(repeats["value"].max()))
        text = quantities.number(median)
        if label in speedups.index and not np.isnan(speedups[label]):
            text += f"  ({quantities.ratio(float(speedups[label]))})"
        beside(axes, text, right, row)
    axes.set_xlim(0, longest * 1.18)
    axes.set_xlabel(
        "views/s of the whole job   (in brackets: over single on one rank)"
        if speedups.notna().any()
        else "views/s of the whole job"
    )
    if hatched:
        handles = [
            Patch(facecolor=palette.MUTED, edgecolor=palette.MUTED, label="measured"),
            Patch(facecolor="none", edgecolor=palette.MUTED, hatch="////", label="modelled"),
        ]
        legend(figure, handles[bool(frame["modelled"].all()) :])
    sns.despine(figure, left=True)
    return figure
