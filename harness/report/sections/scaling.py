"""Scaling: throughput and efficiency against the number of ranks."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from harness.report import palette
from harness.report.drawing import LINE, WIDTH, bars, beside, legend
from harness.report.frames import Results
from harness.report.labels import series
from harness.report.parts import MOST_LINES, Section, Value, drawn, figure, groups, tabulated, text
from harness.report.quantities import number, percent, ratio
from harness.report.sections import break_even, link_use, weak_scaling

_FEWEST_POINTS = 3
"""Rank counts from which on a line says more than the table."""

_WORD = 0.08
"""Of a plot's width: a figure beside a bar."""


def efficiency(results: Results) -> pd.DataFrame:
    """Cells of strategies that ran on two rank counts or more, or on several ranks beside `single`, in report order:
    value (views/s), modelled, `own` and `over_single`: views/s over ranks times the one-rank figure of the same
    strategy and settings, and of `single`, at the same batch.

    Null where that one-rank figure is missing or ambiguous. One rank has no link, so its figure serves all of them.
    balance: the slowest rank's time over the mean.
    """
    cells = results.cells
    cells = cells[(cells["status"] == "ok") & cells["views_per_second"].notna()]
    cells = cells.assign(settings=series(cells, but="link"))
    line = ["title", "settings"]
    several = cells.groupby(line)["ranks"].transform("nunique") > 1
    cells = cells[several | ((cells["ranks"] > 1) & cells["speedup"].notna())]
    alone = cells[cells["ranks"] == 1].drop_duplicates(line, keep=False).set_index(line)["views_per_second"]
    frame = cells.join(alone.rename("alone"), on=line).rename(columns={"views_per_second": "value"})
    return frame.assign(
        own=frame["value"] / (frame["ranks"] * frame["alone"]),
        over_single=frame["speedup"] / frame["ranks"],
        balance=link_use.balance(results),
    )


def section(results: Results) -> Section:
    """For each group a plot of lines where there are three rank counts or more, of bars where there are fewer; and
    tables."""
    found = Section(
        "scaling",
        "Scaling",
        "Efficiency is views/s over the number of ranks times views/s on one rank at the same batch: 100 % is perfect "
        "scaling.",
    )
    titled = groups(efficiency(results))
    long = [(t, g) for t, g in titled if g.groupby("series")["ranks"].nunique().max() >= _FEWEST_POINTS]

    def describe(group: pd.DataFrame) -> str:
        marks = "; ringed points are modelled." if group["modelled"].any() else "."
        return "Throughput and efficiency against the number of ranks; dotted: perfect scaling" + marks

    found.parts += drawn("scaling", long, describe, draw, "series", MOST_LINES)
    short = [(t, g[_several(g)]) for t, g in titled if t not in dict(long) and _several(g).any()]
    words = "Throughput over single on one rank at the same batch, by link; a tick marks perfect scaling."
    found.parts += drawn("factors", short, lambda _: words, draw_factors)
    columns = ["cell", "ranks", "views/s", "× single", "efficiency", "efficiency over single", "slowest / mean"]
    bodies = [(title, _rows(group)) for title, group in titled]
    found.parts += tabulated(columns, bodies, summary="Efficiency of every cell")
    found.parts += weak_scaling.tables(results)
    found.parts += link_use.tables(results)
    found.parts += break_even.tables(results)
    return found


def _several(group: pd.DataFrame) -> pd.Series:
    """Cells of several ranks whose group has a `single` to compare with."""
    return (group["ranks"] > 1) & group["speedup"].notna()


def _rows(group: pd.DataFrame) -> list[list[Value]]:
    return [
        [
            text(f"{row['label']} (modelled)" if row["modelled"] else row["label"]),
            Value(str(row["ranks"]), row["ranks"]),
            figure(row["value"], number),
            figure(row["speedup"], ratio),
            figure(row["own"], percent),
            figure(row["over_single"], percent),
            figure(row["balance"], lambda value: f"{value:.2f}"),
        ]
        for _, row in group.iterrows()
    ]


def draw(frame: pd.DataFrame) -> Figure:
    """views/s and, where one-rank figures are there, efficiency against ranks; a line a strategy and case."""
    panels = ["value", *[c for c in ("own", "over_single") if frame[c].notna().any()][:1]]
    drawing = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    handles: list[Line2D] = []
    for axes, column in zip(drawing.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        handles = _lines(axes, frame, column)
    handles.append(Line2D([], [], color=palette.MUTED, lw=0.9, ls=(0, (2, 3)), label="perfect scaling"))
    if frame["modelled"].any():
        handles.append(Line2D([], [], ls="", marker="o", ms=13, mfc="none", mec=palette.MUTED, label="modelled"))
    legend(drawing, handles, LINE)
    sns.despine(drawing)
    return drawing


def _lines(axes: Axes, frame: pd.DataFrame, column: str) -> list[Line2D]:
    """Draws one panel; returns the legend's lines."""
    handles = []
    top = 1.0 if column != "value" else float(frame["value"].max())
    lines = [line.sort_values("ranks") for _, line in frame.groupby("series", sort=False)]
    colours = palette.line_colours([str(line["strategy"].iloc[0]) for line in lines])
    for i, (line, colour) in enumerate(zip(lines, colours, strict=True)):
        strategy, variant = str(line["strategy"].iloc[0]), str(line["variant"].iloc[0])
        if column == "value":
            ideal = line["value"].iloc[0] * line["ranks"] / line["ranks"].iloc[0]
            top = max(top, min(float(ideal.max()), 1.6 * float(frame["value"].max())))
            axes.plot(line["ranks"], ideal, color=colour, lw=0.9, ls=(0, (2, 3)), alpha=0.8)
        label = f"{strategy} · {variant}" if variant else strategy
        style = {"color": colour, "marker": palette.MARKERS[i % len(palette.MARKERS)], "ms": 6.5, "lw": 1.9}
        dashes = palette.DASHES[i % len(palette.DASHES)]
        handles += axes.plot(line["ranks"], line[column], ls=dashes, label=label, **style)  # type: ignore[arg-type]
        top = max(top, float(line[column].max()))
    modelled = frame[frame["modelled"]]
    axes.plot(modelled["ranks"], modelled[column], ls="", marker="o", ms=13, mfc="none", mec=palette.MUTED, mew=0.9)
    ticks = sorted(int(r) for r in frame["ranks"].unique())
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_ylim(0, 1.06 * top)
    axes.set_xlabel("ranks")
    if column == "value":
        axes.set_ylabel("views/s of the whole job")
    else:
        axes.axhline(1.0, color=palette.MUTED, lw=0.9, ls=(0, (2, 3)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylabel("efficiency over single" if column == "over_single" else "efficiency")
    return handles


def draw_factors(frame: pd.DataFrame) -> Figure:
    """Bars of views/s over `single`'s on one rank, link by link; modelled ones hollow and hatched."""
    links = sorted(frame["link"].unique(), key=lambda link: (link != "native", link))
    frame = frame.sort_values("link", key=lambda link: link.map(links.index), kind="stable")
    longest = 1.2 * float(frame[["speedup", "ranks"]].max().max())
    modelled = bool(frame["modelled"].any())
    key = ["perfect scaling", "single on one rank", *["modelled"] * modelled]
    drawing, axes = bars(list(frame["label"]), key)
    for place, (_, row) in enumerate(frame.iterrows()):
        colour, factor, ranks = palette.strategy_colour(row["strategy"]), float(row["speedup"]), int(row["ranks"])
        style = {"facecolor": "none", "hatch": "////"} if row["modelled"] else {"facecolor": colour}
        axes.barh(place, factor, height=0.66, edgecolor=colour, lw=1.0, **style)
        axes.plot([ranks, ranks], [place - 0.43, place + 0.43], color=palette.INK, lw=1.8, solid_capstyle="butt")
        end = factor
        for line in (1.0, ranks):  # On which the figure would lie.
            end = line if end < line < end + _WORD * longest else end
        beside(axes, ratio(factor), end, place)
    axes.axvline(1.0, color=palette.MUTED, lw=0.9, ls=(0, (2, 3)))
    axes.set_xlim(0, longest)
    axes.set_xlabel("views/s over single's on one rank at the same batch")
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=palette.INK, ls="", marker="|", ms=12, mew=1.8, label="perfect scaling"),
        Line2D([], [], color=palette.MUTED, lw=0.9, ls=(0, (2, 3)), label="single on one rank"),
    ]
    if modelled:
        handles.append(Patch(facecolor="none", edgecolor=palette.MUTED, hatch="////", label="modelled"))
    legend(drawing, handles, LINE)
    sns.despine(drawing, left=True)
    return drawing
