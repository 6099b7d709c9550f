"""Cost curve: what a step costs as the scene grows around the same views."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report import palette
from harness.report.drawing import LINE, WIDTH, legend
from harness.report.frames import Results
from harness.report.labels import GROUP
from harness.report.parts import MOST_GROUPS, MOST_LINES, Lines, Plot, Section, Value, figure, some, tabulated, text
from harness.report.quantities import count, milliseconds, ratio
from harness.report.sections.stages import stages

_FEWEST_POINTS = 3
EQUAL_CONTENT = 0.02
"""Largest relative spread of visible Gaussians along a curve: beyond it views see more as the scene grows."""

_REPEATED = r",? tiled \d+ [x×] \d+$"
"""What a repeated scene's name ends in."""
_ALIKE = [field for field in GROUP if field not in ("gaussians", "scene")]


def curves(results: Results) -> pd.DataFrame:
    """Cells of curves: three scenes or more, of a city or its repetitions, that differ in Gaussians but not in what
    their views see. `curve` numbers the curves, `place` is the scene without its repetition, `project` the seconds of
    the stage that looks at every Gaussian, `rest` those of all other stages, which were timed beside it.
    """
    found = [line for line in _lines(results) if _spread(line) <= EQUAL_CONTENT]
    return pd.concat([line.assign(curve=number) for number, line in enumerate(found)]) if found else pd.DataFrame()


def refused(results: Results) -> list[tuple[str, str]]:
    """Strategies and scenes that grow by repetition and yet are no curve, with why."""
    lines = [line for line in _lines(results) if line["scene"].str.contains(_REPEATED).any()]
    return [
        (
            f"{line['place'].iloc[0]} · {line['label'].iloc[0]}",
            f"no curve: visible Gaussians differ by {_spread(line):.1%} from {count(line['gaussians'].iloc[0])} to "
            f"{count(line['gaussians'].iloc[-1])} Gaussians, expected at most {EQUAL_CONTENT:.0%}.",
        )
        for line in lines
        if _spread(line) > EQUAL_CONTENT
    ]


def _lines(results: Results) -> list[pd.DataFrame]:
    """Cells that differ in Gaussians alone, ascending, of those that ran at three sizes or more."""
    cells = results.cells
    if cells.empty or "visible_gaussians" not in cells:
        return []
    cells = cells[(cells["status"] == "ok") & cells["step_seconds"].notna() & cells["visible_gaussians"].notna()]
    cells = cells.assign(place=cells["scene"].str.replace(_REPEATED, "", regex=True))
    timed = stages(results).groupby(["cell", "stage"])["value"].sum().unstack("stage").reindex(cells.index)
    project = timed["project"] if "project" in timed else pd.Series(float("nan"), index=cells.index)
    cells = cells.assign(project=project, rest=timed.sum(axis=1) - project)
    keys = ["place", *_ALIKE, "strategy", "series", "ranks"]
    cells = cells[cells.groupby(keys, dropna=False)["gaussians"].transform("nunique") >= _FEWEST_POINTS]
    return [
        line.sort_values("gaussians").drop_duplicates("gaussians")
        for _, line in cells.groupby(keys, sort=False, dropna=False)
    ]


def _spread(line: pd.DataFrame) -> float:
    """Of what the views of a line see, relative."""
    seen = line["visible_gaussians"]
    return float((seen.max() - seen.min()) / seen.mean())


def section(results: Results) -> Section:
    """A plot a place, a table of all curves, and why others are none."""
    words = (
        "The same views, which see the same Gaussians, in scenes that grow around them. 'project' and 'rest' are "
        "stages timed one by one, so that their sum is above the step's time."
    )
    found = Section("cost_curve", "Cost against Gaussians", words)
    frame = curves(results)
    if told := refused(results):
        found.parts.append(Lines("Scenes whose views do not see the same", told))
    if frame.empty:
        return found
    bodies = []
    for number, (place, lines) in enumerate(frame.groupby("place", sort=False)):
        title = f"{place} · {lines['width'].iloc[0]} × {lines['height'].iloc[0]}"
        if number < MOST_GROUPS:
            caption = "Milliseconds a step against all Gaussians of the scene; dashed: the stage that looks at all."
            shown, left_out = some(lines, "curve", MOST_LINES)
            found.parts.append(Plot(f"cost-{number + 1}", title, caption + left_out, draw(shown)))
        for _, line in lines.groupby("curve", sort=False):
            bodies.append((f"{title} · {line['strategy'].iloc[0]}", _rows(line)))
    columns = ["Gaussians", "visible", "instances"]
    columns += [column for name in ("ms a step", "project", "rest") for column in (name, "over first")]
    found.parts += tabulated(columns, bodies)
    return found


def _rows(line: pd.DataFrame) -> list[list[Value]]:
    first = line.iloc[0]
    return [
        [
            text(count(row["gaussians"])),
            figure(row["visible_gaussians"], count),
            figure(row["tile_instances"], count),
            *(
                value
                for part in ("step_seconds", "project", "rest")
                for value in (figure(row[part], milliseconds), figure(row[part] / first[part], ratio))
            ),
        ]
        for _, row in line.iterrows()
    ]


def draw(frame: pd.DataFrame) -> Figure:
    """A line a curve, and a dashed one for its stage `project`; both axes start at zero."""
    drawing = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes: Axes = drawing.subplots()
    lines = [line for _, line in frame.groupby("curve", sort=False)]
    colours = palette.line_colours([str(line["strategy"].iloc[0]) for line in lines])
    handles: list[Line2D] = []
    for i, (line, colour) in enumerate(zip(lines, colours, strict=True)):
        marker = palette.MARKERS[i % len(palette.MARKERS)]
        millions = line["gaussians"] / 1e6
        name = str(line["strategy"].iloc[0])
        if line["variant"].iloc[0]:
            name += f" · {line['variant'].iloc[0]}"
        handles += axes.plot(millions, 1e3 * line["step_seconds"], color=colour, marker=marker, lw=1.9, label=name)
        if line["project"].notna().any():
            axes.plot(millions, 1e3 * line["project"], color=colour, marker=marker, ms=4, lw=1.2, ls=(0, (5, 2)))
    if frame["project"].notna().any():
        handles.append(Line2D([], [], color=palette.MUTED, lw=1.2, ls=(0, (5, 2)), label="of it, the stage project"))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("million Gaussians")
    axes.set_ylabel("ms a step")
    legend(drawing, handles, LINE)
    sns.despine(drawing)
    return drawing
