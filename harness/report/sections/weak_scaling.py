"""Weak scaling: a view a device on more and more devices, against `single` with one view on one."""

from __future__ import annotations

import pandas as pd

from harness.report.frames import Results
from harness.report.headlines import over_single
from harness.report.labels import GROUP, size
from harness.report.parts import Table, Value, figure, tabulated, text
from harness.report.quantities import count, number, percent, ratio

_SCENE = [field for field in GROUP if field != "batch"]


def weak_scaling(results: Results) -> pd.DataFrame:
    """Cells of several ranks with as many views a step, in report order: `factor`, their views/s over those of `single`
    on one rank with one view a step, and `efficiency`, that over the number of ranks. Those without a single are left
    out."""
    cells = results.cells
    cells = cells[(cells["status"] == "ok") & cells["views_per_second"].notna()]
    factor = over_single(cells, _SCENE, cells[cells["batch"] == 1])
    cells = cells.assign(factor=factor, efficiency=factor / cells["ranks"])
    return cells[(cells["ranks"] > 1) & (cells["batch"] == cells["ranks"]) & factor.notna()]


def tables(results: Results) -> list[Table]:
    """A row a cell, a body a scene."""
    bodies = []
    for _, scene in weak_scaling(results).groupby(_SCENE, sort=False, dropna=False):
        first = scene.iloc[0]
        title = f"{first['scene']} · {count(first['gaussians'])} Gaussians · {size(first['width'], first['height'])}"
        bodies.append((title, [_row(row) for _, row in scene.iterrows()]))
    columns = ["cell", "ranks", "views/s", "× single, one view", "weak efficiency"]
    return tabulated(columns, bodies, "Weak scaling: a view a device", "Weak scaling of every cell")


def _row(row: pd.Series) -> list[Value]:
    return [
        text(f"{row['label']} (modelled)" if row["modelled"] else row["label"]),
        Value(str(row["ranks"]), row["ranks"]),
        figure(row["views_per_second"], number),
        figure(row["factor"], ratio),
        figure(row["efficiency"], percent),
    ]
