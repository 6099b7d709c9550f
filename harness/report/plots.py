"""Figures of the report: each a function from a tidy frame of one group of cells to a Figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report import palette, quantities

_WIDTH = 9.5
"""Inches; at 72 SVG points an inch about the width of the page's text."""

_ROW = 0.36
"""Inches a bar takes, its gap included."""

_POINTS = 300
"""Most points a raw curve is drawn with; more could not be told apart and only grow the page."""


def _bars(rows: int, legend: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, 0.75 + legend + _ROW * rows), layout="constrained")
    axes = figure.subplots()
    axes.set_ylim(rows - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def throughput(frame: pd.DataFrame, speedups: pd.Series) -> Figure:
    """Bars of views/s, the median of repeats; repeats as points; modelled values hatched.

    frame: frames.throughput of one group. speedups: over `single` on one rank, by label.
    """
    labels = list(dict.fromkeys(frame["label"]))
    hatched = bool(frame["modelled"].any())
    figure, axes = _bars(len(labels), 0.3 if hatched else 0.0)
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
        axes.annotate(text, (right, row), (7, 0), textcoords="offset points", va="center", color=palette.INK)
    axes.set_yticks(range(len(labels)), labels)
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
        figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)
    sns.despine(figure, left=True)
    return figure


def scaling(frame: pd.DataFrame) -> Figure:
    """views/s against ranks, one line a strategy and case, with the line of perfect scaling from its first point."""
    figure = Figure(figsize=(_WIDTH, 3.9), layout="constrained")
    axes = figure.subplots()
    median = frame.groupby(["strategy", "variant", "ranks"], sort=False)["value"].median().reset_index()
    top = float(frame["value"].max())
    for i, ((strategy, variant), line) in enumerate(median.groupby(["strategy", "variant"], sort=False)):
        line = line.sort_values("ranks")
        colour = palette.strategy_colour(str(strategy))
        label = f"{strategy} · {variant}" if variant else str(strategy)
        if len(line) > 1:
            ideal = line["value"].iloc[0] * line["ranks"] / line["ranks"].iloc[0]
            top = max(top, min(float(ideal.max()), 1.6 * float(frame["value"].max())))
            axes.plot(line["ranks"], ideal, color=colour, lw=0.9, ls=(0, (2, 3)), alpha=0.8)
        marker = palette.MARKERS[i % len(palette.MARKERS)]
        axes.plot(line["ranks"], line["value"], color=colour, marker=marker, ms=6.5, lw=1.9, label=label)
    modelled = frame[frame["modelled"]].groupby(["strategy", "variant", "ranks"])["value"].median().reset_index()
    axes.plot(modelled["ranks"], modelled["value"], ls="", marker="o", ms=13, mfc="none", mec=palette.MUTED, mew=0.9)
    ticks = sorted(int(r) for r in frame["ranks"].unique())
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_ylim(0, 1.04 * top)
    axes.set_xlabel("ranks")
    axes.set_ylabel("views/s of the whole job")
    handles, _ = axes.get_legend_handles_labels()
    handles.append(Line2D([], [], color=palette.MUTED, lw=0.9, ls=(0, (2, 3)), label="perfect scaling"))
    if len(modelled):
        ring = Line2D([], [], ls="", marker="o", ms=13, mfc="none", mec=palette.MUTED, label="modelled")
        handles.append(ring)
    figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(handles)), frameon=False)
    sns.despine(figure)
    return figure


def stages(frame: pd.DataFrame) -> Figure:
    """Stacked bars: milliseconds of each stage in the order it runs, and a tick at the step's unsynchronised time."""
    labels = list(dict.fromkeys(frame["label"]))
    names = sorted(frame["stage"].unique(), key=palette.stage_order)
    figure, axes = _bars(len(labels), 0.27 * -(-(len(names) + 1) // 5))
    longest = 0.0
    for row, label in enumerate(labels):
        cell = frame[frame["label"] == label]
        left = 0.0
        for stage, seconds in zip(cell["stage"], cell["value"], strict=True):
            axes.barh(row, 1e3 * seconds, left=left, height=0.66, color=palette.stage_colour(stage), lw=0)
            left += 1e3 * seconds
        step = 1e3 * float(cell["step"].iloc[0])
        right = left if np.isnan(step) else max(left, step)
        if not np.isnan(step):
            axes.plot([step, step], [row - 0.43, row + 0.43], color=palette.INK, lw=1.8, solid_capstyle="butt")
        axes.annotate(
            quantities.number(left), (right, row), (7, 0), textcoords="offset points", va="center", color=palette.INK
        )
        longest = max(longest, right)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlim(0, longest * 1.1)
    axes.set_xlabel("ms a step, stages one after another")
    handles: list[Any] = [Patch(color=palette.stage_colour(name), label=name) for name in names]
    if frame["step"].notna().any():
        mark = Line2D([], [], color=palette.INK, ls="", marker="|", ms=12, mew=1.8, label="whole step")
        handles.append(mark)
    figure.legend(
        handles=handles, loc="outside upper left", ncols=5, frameon=False, columnspacing=1.4, handlelength=1.1
    )
    sns.despine(figure, left=True)
    return figure


def curves(loss: pd.DataFrame, quality: pd.DataFrame) -> Figure:
    """Training loss (smoothed, raw values faint) and held-out PSNR, by images seen.

    Exact strategies coincide: later lines are thinner and their markers smaller, so that those beneath stay visible.
    """
    panels = [(draw, frame) for draw, frame in ((_loss, loss), (_quality, quality)) if len(frame)]
    figure = Figure(figsize=(_WIDTH, 3.9), layout="constrained")
    handles: dict[str, Line2D] = {}
    everything = pd.concat([frame for _, frame in panels]).drop_duplicates("label").sort_values("order")
    for i, (label, strategy) in enumerate(zip(everything["label"], everything["strategy"], strict=True)):
        handles[label] = Line2D(
            [],
            [],
            color=palette.strategy_colour(strategy),
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
    figure.legend(
        handles=list(handles.values()),
        loc="outside upper left",
        ncols=min(4, len(handles)),
        frameon=False,
        handlelength=3.2,
    )
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
