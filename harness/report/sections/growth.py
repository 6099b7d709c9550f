"""Growth: how the bytes of a view grow with Gaussians and with ranks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report import palette
from harness.report.drawing import LINE, WIDTH, legend
from harness.report.frames import Results
from harness.report.labels import GROUP
from harness.report.parts import MOST_GROUPS, MOST_LINES, Plot, Section, Table, Value, figure, some, tabulated, text
from harness.report.quantities import byte_unit, count, memory, ranks, ratio

_FEWEST_POINTS = 3
"""Points from which on a line says more than the table."""

_SCENE = [field for field in GROUP if field != "gaussians"]
_AXES = {"gaussians": ["strategy", "series", "ranks"], "ranks": ["strategy", "series", "gaussians"]}


def lines(results: Results, axis: str) -> pd.DataFrame:
    """Cells with traffic, of lines along `axis` with two points or more: `line` numbers the lines, `name` names them.

    axis: gaussians or ranks; all else is equal along a line.
    """
    cells = results.cells
    cells = cells[(cells["status"] == "ok") & (cells["bytes_a_view"] > 0)]
    keys = [*_SCENE, *_AXES[axis]]
    cells = cells[cells.groupby(keys, dropna=False)[axis].transform("nunique") > 1].sort_values([*keys, axis])
    if cells.empty:
        return cells
    numbers = cells.groupby(keys, sort=False, dropna=False).ngroup()
    names = _names(cells, axis)
    cells = cells.assign(line=numbers, name=names).drop_duplicates(["line", axis])
    return cells.sort_values("order").sort_values("line", kind="stable")


def _names(cells: pd.DataFrame, axis: str) -> list[str]:
    """What the line of each cell is called: its strategy, its settings if the strategy has several, what is equal."""
    several = cells.groupby("strategy")["series"].transform("nunique") > 1
    told = cells[cells["variant"] != ""].sort_values("variant", key=lambda said: said.str.len(), kind="stable")
    shortest = told.groupby(["strategy", "series"])["variant"].first().to_dict()
    names = []
    for strategy, series, many, size, places in zip(
        cells["strategy"], cells["series"], several, cells["gaussians"], cells["ranks"], strict=True
    ):
        words = [strategy, shortest.get((strategy, series), "") if many else ""]
        words.append(ranks(int(places)) if axis == "gaussians" else f"{count(size)} Gaussians")
        names.append(" · ".join(word for word in words if word))
    return names


def section(results: Results) -> Section:
    """A plot and a table for each scene and axis along which the suite has at least two points."""
    found = Section("growth", "Growth of traffic")
    tables: list[Table] = []
    drawn = 0
    for axis, noun in (("gaussians", "Gaussians"), ("ranks", "ranks")):
        frame = lines(results, axis)
        if frame.empty:
            continue
        bodies = []
        for _, scene in frame.groupby(_SCENE, sort=False, dropna=False):
            first = scene.iloc[0]
            title = f"{first['scene']} · {first['width']} × {first['height']} · batch {first['batch']}"
            if drawn < MOST_GROUPS and scene.groupby("line")[axis].nunique().max() >= _FEWEST_POINTS:
                drawn += 1
                words = f"Bytes a view against {noun}, all else equal; dotted: in proportion to {noun}."
                shown, left_out = some(scene, "line", MOST_LINES)
                found.parts.append(Plot(f"growth-{drawn}", title, words + left_out, draw(shown, axis, noun)))
            bodies.append((title, [_row(line, axis) for _, line in scene.groupby("line", sort=False)]))
        columns = ["line", noun, "grow by", "bytes a view", "grow by", "exponent"]
        tables += tabulated(columns, bodies, f"Bytes a view against {noun}", f"Bytes a view against {noun}")
    found.parts += tables
    return found


def _row(line: pd.DataFrame, axis: str) -> list[Value]:
    first, last = line.iloc[0], line.iloc[-1]
    sizes = line["bytes_a_view"]
    slope = np.polyfit(np.log(line[axis].astype(float)), np.log(sizes), 1)[0]
    return [
        text(first["name"]),
        Value(f"{count(first[axis])} – {count(last[axis])}", float(last[axis])),
        figure(last[axis] / first[axis], ratio),
        Value(f"{memory(sizes.iloc[0])} – {memory(sizes.iloc[-1])}", float(sizes.iloc[-1])),
        figure(sizes.iloc[-1] / sizes.iloc[0], ratio),
        figure(float(slope), lambda value: f"{value:.2f}"),
    ]


def draw(frame: pd.DataFrame, axis: str, noun: str) -> Figure:
    """A line for each strategy and setting, both axes logarithmic: its slope is the exponent of growth."""
    drawing = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes: Axes = drawing.subplots()
    scale, unit = byte_unit(float(frame["bytes_a_view"].max()))
    handles: list[Line2D] = []
    lines = [line for _, line in frame.groupby("line", sort=False)]
    colours = palette.line_colours([str(line["strategy"].iloc[0]) for line in lines])
    for i, (line, colour) in enumerate(zip(lines, colours, strict=True)):
        size = line["bytes_a_view"] / scale
        ideal = size.iloc[0] * line[axis] / line[axis].iloc[0]
        style = {"marker": palette.MARKERS[i % len(palette.MARKERS)], "ms": 6.5, "lw": 1.9}
        dashes = palette.DASHES[i % len(palette.DASHES)]
        axes.plot(line[axis], ideal, color=colour, lw=0.9, ls=(0, (2, 3)), alpha=0.8)
        name = str(line["name"].iloc[0])
        handles += axes.plot(line[axis], size, color=colour, ls=dashes, label=name, **style)  # type: ignore[arg-type]
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted(frame[axis].unique())
    axes.set_xticks(ticks, [count(t) for t in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
    axes.set_xlabel(noun)
    axes.set_ylabel(f"{unit} a view")
    handles.append(Line2D([], [], color=palette.MUTED, lw=0.9, ls=(0, (2, 3)), label=f"in proportion to {noun}"))
    legend(drawing, handles, LINE)
    sns.despine(drawing)
    return drawing
