"""Mechanisms: what a strategy counts about itself, such as the share of pixels it did not send."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from harness.records.schema import METRICS
from harness.report.frames import Results
from harness.report.parts import Section, Table, Value, figure, groups, tabulated, text
from harness.report.quantities import memory, milliseconds, number, percent

_ELSEWHERE = (
    "views_per_second optimizer_steps_per_second step_seconds render_seconds train_seconds stage_seconds "
    "exposed_seconds hidden_seconds operator_seconds payload_bytes metadata_bytes collectives peak_memory_bytes "
    "peak_tensor_bytes psnr ssim loss visible_gaussians tile_instances gaussians_count update_cosine "
    "update_length_ratio second_moment_ratio roofline_seconds kernel_seconds compulsory_bytes dram_bytes "
    "dram_over_compulsory l2_bytes l2_reductions warp_instructions issue_active warps_active copy_bandwidth issue_rate "
    "step_over_floor instances_forward "
    "instances_backward blended_pairs evaluations_forward evaluations_backward evaluations_blending "
    "cells_forward cells_backward active_lanes exchange_bandwidth all_to_all_bandwidth "
    "image_bytes energy_joules link_bandwidth wire_over_ledger"
)
"""Metrics that other sections show."""


def mechanisms(results: Results) -> pd.DataFrame:
    """Job-level values that no other section shows, mean over repeats: metric, stage or "", unit, value; the last of a
    run."""
    values = results.measurements
    if values.empty:
        return pd.DataFrame()
    values = results.of_ok(*(set(values["metric"]) - set(_ELSEWHERE.split())))
    values = values[values["place"].isna() & values["peer"].isna()]
    values = values.sort_values("images_seen", kind="stable").drop_duplicates(
        ["record", "metric", "stage"], keep="last"
    )
    if values.empty:
        return pd.DataFrame()
    values = values.assign(stage=values["stage"].fillna("").astype(str))
    mean = values.groupby(["cell", "metric", "stage", "unit"], sort=False)["value"].mean().reset_index()
    return results.of_cells(mean)


def section(results: Results) -> Section:
    """A row a cell: one table of the metrics that a cell has once, and one for each that it has by stage or phase."""
    found = Section("mechanisms", "Mechanisms")
    frame = mechanisms(results)
    if frame.empty:
        return found
    by_stage = frame["stage"] != ""
    found.parts += _table(frame[~by_stage], "metric", summary="All counts")
    for metric, of_metric in frame[by_stage].groupby("metric", sort=False):
        name = _words(str(metric)).capitalize()
        found.parts += _table(of_metric, "stage", name, name)
    told = dict.fromkeys(frame["metric"])
    found.intro = "; ".join(f"{_words(name)}: {METRICS[name][1]}" for name in told if name in METRICS) + "."
    return found


def _table(frame: pd.DataFrame, by: str, title: str = "", summary: str = "") -> list[Table]:
    """by: what has a column each, `metric` or `stage`."""
    columns = frame.drop_duplicates(by)
    headings = [_words(name) + _suffix(unit) for name, unit in zip(columns[by], columns["unit"], strict=True)]
    bodies = [(cells, _rows(group, columns, by)) for cells, group in groups(frame)]
    return tabulated(["cell", *headings], bodies, title, summary)


def _rows(group: pd.DataFrame, columns: pd.DataFrame, by: str) -> list[list[Value]]:
    values = group.drop_duplicates(["label", by]).pivot(index="label", columns=by, values="value")
    values = values.reindex(index=group["label"].unique(), columns=columns[by])
    shown = [_shown(metric, unit) for metric, unit in zip(columns["metric"], columns["unit"], strict=True)]
    return [[text(label), *map(figure, row, shown)] for label, row in zip(values.index, values.to_numpy(), strict=True)]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _suffix(unit: str) -> str:
    """The unit behind a heading; shares, counts, bytes and milliseconds say it in their entries."""
    return "" if unit in ("1", "B") else ", ms" if unit == "s" else f", {unit}"


def _shown(metric: str, unit: str) -> Callable[[float | None], str]:
    if unit == "B":
        return memory
    if unit == "s":
        return milliseconds
    return percent if metric.endswith(("_share", "_rate")) and unit == "1" else number
