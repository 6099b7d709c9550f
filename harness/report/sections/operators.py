"""Operators: seconds of one call, by back end."""

from __future__ import annotations

import pandas as pd

from harness.report.frames import Results
from harness.report.parts import Section, Table, figure, groups, text
from harness.report.quantities import milliseconds


def operators(results: Results) -> pd.DataFrame:
    """Seconds of one call of each operator (`stage`), median over repeats."""
    seconds = results.of_ok("operator_seconds")
    if seconds.empty:
        return pd.DataFrame()
    seconds = seconds.dropna(subset="stage")
    median = seconds.groupby(["cell", "stage"], sort=False)["value"].median().reset_index()
    return results.of_cells(median)


def section(results: Results) -> Section:
    """Milliseconds a call: a row an operator, a column a cell."""
    found = Section("operators", "Operators", "Milliseconds of one call, median over calls and views.")
    for title, group in groups(operators(results)):
        labels = list(dict.fromkeys(group["label"]))
        grid = group.pivot_table(index="stage", columns="label", values="value", sort=False)
        rows = [
            [text(name), *(figure(values.get(label), milliseconds) for label in labels)]
            for name, values in grid.iterrows()
        ]
        steps = results.cells[results.cells["title"] == title].set_index("label")["step_seconds"]
        rows.append([text("whole step"), *(figure(steps.get(label), milliseconds) for label in labels)])
        found.parts.append(Table(title, ["operator", *labels], [("", rows)]))
    return found
