"""The table of cells: what ran where, how it ended, and its headline values."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from harness.report.convergence import TOLERANCE_DB
from harness.report.frames import Results
from harness.report.labels import short_commit
from harness.report.parts import Value, figure, text
from harness.report.peer import FORMS
from harness.report.quantities import NONE, count, decibels, difference, duration, memory, milliseconds, number, ratio

_SETTINGS = ("repeats", "device", "kernels", "engine", "commit")
"""Columns that go to the head of the report when all cells agree."""


@dataclass(frozen=True)
class CellRow:
    """A line of the table of cells, and what only some cells have."""

    label: str
    group: str
    facts: dict[str, Value]
    status: str
    reason: str
    command: str
    log_tail: str
    modelled: bool


def cell_rows(results: Results) -> tuple[list[str], list[tuple[str, str]], list[CellRow]]:
    """The table of cells: its columns, what all cells have in common instead of a column, and the rows.

    Columns in which no cell has a value are left out.
    """
    facts = {cell: _facts(row) for cell, row in results.cells.iterrows()}
    columns, common = [], []
    for column in next(iter(facts.values())):
        values = {found[column].text for found in facts.values()}
        if column in _SETTINGS and len(values - {NONE}) == 1:
            common.append((column, (values - {NONE}).pop()))
        elif values - {"", NONE}:
            columns.append(column)
    rows = [
        CellRow(
            label=row["label"],
            group=row["title"],
            facts={column: facts[cell][column] for column in columns},
            status=row["status"],
            reason=row["reason"],
            command=row["command"],
            log_tail="\n".join(results.records[int(row["record"])][1].log_tail),
            modelled=bool(row["modelled"]),
        )
        for cell, row in results.cells.iterrows()
    ]
    return columns, common, rows


def _facts(row: pd.Series) -> dict[str, Value]:
    rate = figure(row["views_per_second"], number)
    if not pd.isna(row["noise"]) and row["noise"] < float("inf"):
        rate = Value(f"{rate.text} ±{row['noise']:.1%}", rate.key)
    if abs(row["quality_gap"]) > TOLERANCE_DB and not pd.isna(row["views_per_second"]):
        rate = Value(f"{rate.text} ≠", rate.key)
    partial = row["repeats"] != row["repeats_ok"]
    return {
        "views/s": rate,
        "× single": figure(row["speedup"], ratio),
        **{f"× gsplat {form}": _over_peer(row, form) for form in FORMS},
        "ms a step": figure(row["step_seconds"], milliseconds),
        "ms an image": figure(row["render_seconds"], milliseconds),
        "bytes a view": figure(row["bytes_a_view"], memory),
        "PSNR, dB": figure(row["psnr"], decibels),
        "− single, dB": figure(row["quality_gap"], difference),
        "SSIM": figure(row["ssim"], lambda value: f"{value:.4f}"),
        "training": figure(row["train_seconds"], duration),
        "peak memory": figure(row["peak_memory_bytes"], memory),
        "repeats": Value(
            f"{row['repeats_ok']} of {row['repeats']}" if partial else count(row["repeats"]), row["repeats_ok"]
        ),
        "device": text(row["device"]),
        "kernels": text(NONE if row["kernels"] == "auto" else row["kernels"]),
        "engine": text(NONE if row["engine"] == "auto" else row["engine"]),
        "commit": text(short_commit(row["commit"])),
    }


def _over_peer(row: pd.Series, form: str) -> Value:
    """The rate over gsplat's in that form, marked where the peer is one of another run."""
    shown = figure(row[f"over_gsplat_{form}"], ratio)
    return Value(f"{shown.text} (other run)", shown.key) if row[f"{form}_of_other_run"] else shown
