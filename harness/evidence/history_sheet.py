"""Histories as a table: a row a commit, steps marked."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evidence.history import Series
from harness.evidence.sheet import Sheet
from harness.measure.statistics import median
from harness.report.quantities import change, milliseconds


def history_sheet(title: str, series: Sequence[Series]) -> Sheet:
    rows, data = [], []
    for one in series:
        label = one.label + (f" · {one.stage}" if one.stage else "")
        for i, point in enumerate(one.points):
            step = "" if point.step is None else f"{'slower' if point.step > 0 else 'faster'} {change(point.step)}"
            middle = median(point.seconds)
            shown = label if i == 0 else ""
            rows.append([shown, point.commit, point.started[:10], str(len(point.seconds)), milliseconds(middle), step])
            data.append(
                {
                    "cell": label,
                    "metric": one.metric,
                    "machine": one.machine,
                    "commit": point.commit,
                    "started": point.started,
                    "repeats": len(point.seconds),
                    "seconds": middle,
                    "step": point.step,
                }
            )
    steps = sum(point.step is not None for one in series for point in one.points)
    return Sheet(
        title=title,
        columns=("cell", "commit", "ran", "repeats", "ms", "step"),
        rows=rows,
        right=frozenset({"repeats", "ms"}),
        below=[f"{len(series)} cells with a time, {steps} steps."],
        data=data,
    )
