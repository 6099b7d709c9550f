"""The size of scene below which more devices do not pay, from cells that differ in their Gaussians alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from harness.report.frames import Results
from harness.report.labels import GROUP
from harness.report.parts import Table, Value, tabulated, text
from harness.report.quantities import count, ratio

_SCENE = [field for field in GROUP if field != "gaussians"]


def break_even(sizes: Sequence[float], factors: Sequence[float]) -> float | None:
    """Gaussians from which on the factor over one device is at least 1; sizes ascending, factors above 0.

    Between two sizes the logarithm of the factor is taken to run straight over that of the size. 0: it is at least 1
    wherever it was measured; None: not at the largest.
    """
    losing = [i for i, factor in enumerate(factors) if factor < 1]
    if not losing:
        return 0.0
    last = losing[-1]
    if last == len(factors) - 1:
        return None
    (low, high), (below, above) = sizes[last : last + 2], (math.log(f) for f in factors[last : last + 2])
    return math.exp(math.log(low) + (math.log(high) - math.log(low)) * -below / (above - below))


def tables(results: Results) -> list[Table]:
    """A row for each strategy, setting and number of ranks that ran at two sizes or more, beside `single` each time."""
    cells = results.cells
    cells = cells[(cells["status"] == "ok") & (cells["ranks"] > 1) & cells["speedup"].notna()]
    line = [*_SCENE, "strategy", "series", "ranks"]
    cells = cells[cells.groupby(line, dropna=False)["gaussians"].transform("nunique") > 1]
    bodies = []
    for _, scene in cells.groupby(_SCENE, sort=False, dropna=False):
        first = scene.iloc[0]
        title = f"{first['scene']} · {first['width']} × {first['height']} · batch {first['batch']}"
        lines = scene.groupby(["strategy", "series", "ranks"], sort=False, dropna=False)
        bodies.append((title, [_row(found.sort_values("gaussians")) for _, found in lines]))
    columns = ["cell", "× single, by Gaussians", "more devices pay"]
    return tabulated(columns, bodies, "The size below which more devices do not pay")


def _row(line: pd.DataFrame) -> list[Value]:
    sizes, factors = line["gaussians"].tolist(), line["speedup"].tolist()
    found = break_even(sizes, factors)
    if found is None:
        words = Value(f"at no size up to {count(sizes[-1])}")
    elif found == 0:
        words = Value(f"at every size from {count(sizes[0])} on", 0.0)
    else:
        words = Value(f"from about {count(float(f'{found:.2g}'))} on", found)
    shown = ", ".join(f"{count(size)}: {ratio(factor)}" for size, factor in zip(sizes, factors, strict=True))
    labels = sorted(line["label"], key=len)
    return [text(labels[0]), Value(shown, factors[-1]), words]
