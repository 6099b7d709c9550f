"""Condition of the GPUs while a cell was measured: energy, clocks, how busy they were, and what disturbed them."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from harness.report.frames import Results
from harness.report.parts import Section, Value, figure, groups, tabulated, text
from harness.report.quantities import NONE, count, milliseconds, number, percent

_BY_GPU = {"sm_clock_hertz": "min", "sm_utilization": "mean", "dram_utilization": "mean"}
"""Metrics of each GPU, and which of several GPUs is told: the slowest clock, or the mean."""


def condition(results: Results) -> pd.DataFrame:
    """Cells whose GPUs were watched, in report order, mean over repeats.

    joules: a view, of all GPUs. Columns of _BY_GPU. throttled, errors: in words. Null where not measured.
    """
    cells = results.cells
    watched = _measured(results, "energy_joules", *_BY_GPU)
    if watched.empty:
        return pd.DataFrame()
    found = {"joules": _joules_a_view(results)}
    for metric, how in _BY_GPU.items():
        values = watched[watched["metric"] == metric]
        found[metric] = values.groupby(["cell", "record"])["value"].agg(how).groupby("cell").mean()
    frame = pd.DataFrame(found).reindex(cells.index[cells.index.isin(watched["cell"])])
    return cells[["title", "label"]].join(
        frame.assign(
            throttled=pd.Series(_told(results, "throttled_seconds", milliseconds), dtype="object"),
            errors=pd.Series(_told(results, "device_errors", count), dtype="object"),
        ),
        how="right",
    )


def _joules_a_view(results: Results) -> pd.Series:
    """By cell: energy of the measured passes over their views, as throughput and render take them."""
    energy, raw = _measured(results, "energy_joules"), results.samples
    if energy.empty or raw.empty:
        return pd.Series(dtype="float64")
    kept = raw[(raw["series"] == "passes") & (raw["warmup"] != True)]  # noqa: E712
    passes = kept.groupby("record").size()
    views = {}
    for record in energy["record"]:
        result, cell = results.records[record][1].result, results.records[record][1].cell
        if result is not None and result.scene is not None:
            whole = 1 if cell["scenario"] == "render" else int(cell["batch"])
            views[record] = min(result.scene.views, max(1, result.scene.views // whole) * whole)
    total = energy["record"].map(views) * energy["record"].map(passes)
    return (energy["value"] / total).groupby(energy["cell"]).mean()


def _told(results: Results, metric: str, shown: Callable[[float | None], str]) -> dict[int, str]:
    """By cell that told it: what occurred (`power 3.20`), of all GPUs in the worst repeat; `none` for all zero."""
    values = _measured(results, metric)
    if values.empty:
        return {}
    worst = values.groupby(["cell", "record", "stage"])["value"].sum().groupby(["cell", "stage"]).max().reset_index()
    return {
        int(str(cell)): ", ".join(f"{stage} {shown(v)}" for stage, v in zip(of["stage"], of["value"], strict=True) if v)
        or "none"
        for cell, of in worst.groupby("cell")
    }


def _measured(results: Results, *metrics: str) -> pd.DataFrame:
    """Of invalid records too: a disturbance is why they are."""
    frame = results.measurements
    return frame[frame["metric"].isin(metrics)] if len(frame) else frame


def section(results: Results) -> Section:
    """One table, a row a cell."""
    found = Section("condition", "Condition of the GPUs", "During the measured passes, of all GPUs of a cell.")
    columns = ["cell", "J a view", "SM clock, MHz", "SM busy", "DRAM busy", "held down, ms", "ECC and link errors"]
    bodies = [(title, [_row(row) for _, row in group.iterrows()]) for title, group in groups(condition(results))]
    found.parts += tabulated(columns, bodies, summary="The GPUs of every cell")
    return found


def _row(row: pd.Series) -> list[Value]:
    return [
        text(row["label"]),
        figure(row["joules"], number),
        figure(row["sm_clock_hertz"] / 1e6, count),
        figure(row["sm_utilization"], percent),
        figure(row["dram_utilization"], percent),
        *(text(NONE if pd.isna(told) else told) for told in (row["throttled"], row["errors"])),
    ]
