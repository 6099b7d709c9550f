"""Workload and memory: what a view costs whatever the machine, and what each place holds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from cuda_src.layout import PARAMETERS
from harness.report import palette
from harness.report.drawing import bars, beside
from harness.report.frames import Results
from harness.report.parts import Section, Value, drawn, figure, groups, tabulated, text
from harness.report.quantities import byte_unit, count, memory, number, ratio

_TABLES = 3
"""Parameters and two moments."""
ALLOWED_A_GAUSSIAN, ALLOWED_A_PIXEL = 64, 200
"""Bytes that one GPU may hold beside its tables and images: the project's bar for 20 million Gaussians and more."""

_FACTS = ["visible_gaussians", "tile_instances", "peak_tensor_bytes", "peak_memory_bytes"]


def tensors(results: Results) -> pd.DataFrame:
    """Peak tensor bytes of each place (`value`), mean over repeats."""
    held = results.of_ok("peak_tensor_bytes")
    if held.empty:
        return pd.DataFrame()
    held = held.dropna(subset="place")
    return results.of_cells(held.groupby(["cell", "place"])["value"].mean().reset_index())


def section(results: Results) -> Section:
    """A plot of memory by place where cells have several, and a table for each group."""
    found = Section("workload", "Workload and memory")
    held = tensors(results)
    several = [(title, group) for title, group in groups(held) if group["ranks"].max() > 1]
    words = "Peak tensors of each place: one mark a place, a line from the emptiest to the fullest."
    found.parts += drawn("memory", several, lambda _: words, draw)
    measured = results.cells[results.cells[_FACTS].notna().any(axis=1)]
    balance = held.groupby("cell")["value"].agg(lambda v: v.max() / v.mean()) if len(held) else pd.Series(dtype=float)
    calls = results.of_ok("collectives")
    collectives = calls.groupby("cell")["value"].mean() if len(calls) else pd.Series(dtype=float)
    columns = [
        "cell",
        "Gaussians",
        "visible a view",
        "tile instances",
        "collectives",
        "peak tensors",
        "over mean",
        "peak memory",
        "beside tables",
        "allowed",
    ]
    bodies = [(title, _rows(group, balance, collectives)) for title, group in groups(measured)]
    found.parts += tabulated(columns, bodies, summary="Workload and memory of every cell")
    return found


def _rows(group: pd.DataFrame, balance: pd.Series, collectives: pd.Series) -> list[list[Value]]:
    rows = []
    for cell, row in group.iterrows():
        beside_tables, allowed = _beside_tables(row)
        total = row["gaussians_count"] if not pd.isna(row["gaussians_count"]) else row["gaussians"]
        share = row["visible_gaussians"] / total if total else float("nan")
        visible = figure(row["visible_gaussians"], count)
        rows.append(
            [
                text(row["label"]),
                figure(total, count),
                visible if pd.isna(share) else Value(f"{visible.text} ({share:.1%})", visible.key),
                figure(row["tile_instances"], count),
                figure(collectives.get(cell), number),
                figure(row["peak_tensor_bytes"], memory),
                figure(balance.get(cell) if row["ranks"] > 1 else None, ratio),
                figure(row["peak_memory_bytes"], memory),
                figure(beside_tables, memory),
                figure(allowed, memory),
            ]
        )
    return rows


def _beside_tables(row: pd.Series) -> tuple[float | None, float | None]:
    """Of a GPU that holds all Gaussians: peak memory without parameters, moments and images, and what is allowed."""
    if row["ranks"] > 1 or pd.isna(row["image_bytes"]) or pd.isna(row["gaussians_count"]):
        return None, None
    total, real = row["gaussians_count"], 8 if row["precision"] == "float64" else 4
    pixels = row["width"] * row["height"] * row["views_a_step"]
    beside = row["peak_memory_bytes"] - _TABLES * PARAMETERS * real * total - row["image_bytes"]
    return beside, ALLOWED_A_GAUSSIAN * total + ALLOWED_A_PIXEL * pixels


def draw(frame: pd.DataFrame) -> Figure:
    """Peak tensors of every place, a row a cell."""
    labels = list(dict.fromkeys(frame["label"]))
    scale, unit = byte_unit(float(frame["value"].max()))
    drawing, axes = bars(labels)
    longest = float(frame["value"].max()) / scale
    for row, label in enumerate(labels):
        cell = frame[frame["label"] == label]
        held = cell["value"].to_numpy() / scale
        colour = palette.strategy_colour(cell["strategy"].iloc[0])
        axes.plot([held.min(), held.max()], [row, row], color=colour, lw=2.2, alpha=0.5)
        axes.plot(held, np.full(len(held), row), ls="", marker="|", ms=13, mew=2.0, color=colour)
        beside(axes, memory(cell["value"].max()), held.max(), row)
    axes.set_xlim(0, 1.14 * longest)
    axes.set_xlabel(f"{unit} of parameters, moments and workspaces a place")
    sns.despine(drawing, left=True)
    return drawing
