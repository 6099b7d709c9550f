"""Loss and held-out quality by images seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report import palette, quantities
from harness.report.drawing import LINE, WIDTH, legend
from harness.report.frames import Results
from harness.report.parts import MOST_LINES, Plot, Section, groups, some, to_draw

_POINTS = 300
"""Most points a raw curve is drawn with; more could not be told apart and only grow the page."""


def quality(results: Results) -> pd.DataFrame:
    """Held-out PSNR by images seen, mean over repeats."""
    values = results.of_ok("psnr")
    if values.empty:
        return pd.DataFrame()
    values = values.dropna(subset="images_seen")
    values = values[values["place"].isna() & values["stage"].isna()]
    return results.of_cells(values.groupby(["cell", "images_seen"])["value"].mean().reset_index())


def loss(results: Results) -> pd.DataFrame:
    """Training loss by images seen of each cell's first repeat that ended ok."""
    if results.samples.empty:
        return pd.DataFrame()
    values = results.samples[(results.samples["series"] == "training") & (results.samples["metric"] == "loss")]
    values = values[values["record"].isin(results.first_ok().values())]
    values = values[["cell", "images_seen", "value"]].astype({"images_seen": "float64", "value": "float64"}).dropna()
    return results.of_cells(values.drop_duplicates(["cell", "images_seen"]).sort_values(["cell", "images_seen"]))


def section(results: Results) -> Section:
    """A plot of both for each group."""
    by_title: dict[str, list[pd.DataFrame]] = {}
    for position, frame in enumerate((loss(results), quality(results))):
        for title, group in groups(frame):
            by_title.setdefault(title, [pd.DataFrame(), pd.DataFrame()])[position] = group
    text = "Training loss (smoothed; single values faint) and PSNR of held-out views, by images seen."
    found = Section("quality", "Loss and quality")
    for number, (title, pair) in enumerate(to_draw(by_title.items()), start=1):
        both, left_out = some(pd.concat(pair).sort_values("order", kind="stable"), "label", MOST_LINES)
        shown = [frame[frame["label"].isin(both["label"])] if len(frame) else frame for frame in pair]
        found.parts.append(Plot(f"curves-{number}", title, text + left_out, draw(*shown)))
    return found


def draw(loss: pd.DataFrame, quality: pd.DataFrame) -> Figure:
    """Training loss (smoothed, raw values faint) and held-out PSNR, by images seen.

    Exact strategies coincide: later lines are thinner and their markers smaller, so that those beneath stay visible.
    """
    panels = [(draw, frame) for draw, frame in ((_loss, loss), (_quality, quality)) if len(frame)]
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    handles: dict[str, Line2D] = {}
    everything = pd.concat([frame for _, frame in panels]).drop_duplicates("label").sort_values("order")
    colours = palette.line_colours(list(everything["strategy"]))
    for i, (label, colour) in enumerate(zip(everything["label"], colours, strict=True)):
        handles[label] = Line2D(
            [],
            [],
            color=colour,
            ls=palette.DASHES[i % len(palette.DASHES)],
            marker=palette.MARKERS[i % len(palette.MARKERS)],
            ms=max(4.0, 9.0 - 0.7 * i),
            lw=max(1.3, 3.4 - 0.5 * i),
            label=label,
        )
    for axes, (draw, frame) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axes, frame, handles)
        axes.set_xlabel("images seen")
        axes.xaxis.set_major_formatter(lambda value, _: quantities.count(value))
        axes.set_xlim(left=0)
    legend(figure, list(handles.values()), LINE)
    sns.despine(figure)
    return figure


def _line_style(handle: Line2D) -> dict[str, Any]:
    return {"color": handle.get_color(), "linewidth": handle.get_linewidth(), "linestyle": handle.get_linestyle()}


def _loss(axes: Axes, frame: pd.DataFrame, handles: dict[str, Line2D]) -> None:
    faint = 0.3 / max(1.0, frame["label"].nunique() ** 0.5)
    for label, cell in frame.groupby("label", sort=False):
        style = _line_style(handles[str(label)])
        smooth = cell["value"].ewm(span=max(2, len(cell) // 15)).mean()
        shown = np.unique(np.linspace(0, len(cell) - 1, min(_POINTS, len(cell))).astype(int))
        seen = cell["images_seen"].to_numpy()[shown]
        axes.plot(seen, cell["value"].to_numpy()[shown], color=style["color"], lw=0.7, alpha=faint)
        axes.plot(seen, smooth.to_numpy()[shown], **style)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("training loss (smoothed)")


def _quality(axes: Axes, frame: pd.DataFrame, handles: dict[str, Line2D]) -> None:
    for label, cell in frame.groupby("label", sort=False):
        handle = handles[str(label)]
        axes.plot(
            cell["images_seen"],
            cell["value"],
            marker=handle.get_marker(),
            ms=handle.get_markersize(),
            **_line_style(handle),
        )
    axes.set_ylabel("PSNR of held-out views, dB")
