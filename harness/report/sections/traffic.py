"""Traffic: bytes a view by stage, and from place to place, as the ledger counted them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from harness.report import palette
from harness.report.drawing import WIDTH, bars, beside, legend, stacked
from harness.report.frames import Results
from harness.report.parts import Plot, Section, Value, drawn, figure, groups, tabulated, text
from harness.report.quantities import byte_unit, memory, milliseconds
from harness.report.sections.stages import waits

_MATRICES = 6
"""Most cells whose traffic is drawn from place to place."""
_ABREAST = 3
"""Matrices side by side."""
_MOST_PLACES = 32
"""A matrix of more places than this cannot be read."""
_MOST_NUMBERS = 8
"""Up to so many places a matrix holds its figures."""


def ledger(results: Results) -> pd.DataFrame:
    """Bytes a view (`value`) by cell, kind (payload or metadata), stage, place and peer, mean over repeats."""
    moved = results.of_ok("payload_bytes", "metadata_bytes")
    if moved.empty:
        return pd.DataFrame()
    moved = moved.dropna(subset=["place", "peer"])
    keys = ["cell", "metric", "stage", "place", "peer"]
    repeats = moved.groupby("cell")["record"].nunique()
    # A route without bytes in one of the repeats has no row there, so the mean is over all repeats of the cell.
    sums = moved.groupby(keys, sort=False)["value"].sum().reset_index()
    sums["value"] /= sums["cell"].map(repeats) * sums["cell"].map(results.cells["views_a_step"])
    sums["kind"] = sums["metric"].str.removesuffix("_bytes")
    return results.of_cells(sums.astype({"place": int, "peer": int}))


def section(results: Results) -> Section:
    """Stacked bars for each group, matrices of the cells with the most traffic, and the ledger by stage."""
    frame = ledger(results)
    found = Section(
        "traffic",
        "Traffic",
        "Bytes as the ledger counts them where an exchange is called. Totals leave out what stays at its place.",
    )
    if frame.empty:
        return found
    crossing = frame[frame["place"] != frame["peer"]]
    words = "Bytes a view that cross from one place to another, by stage; hatched: metadata (counts, ids, padding)."
    found.parts += drawn("traffic", groups(crossing), lambda _: words, draw_stages)
    most = _most(results, crossing)
    if most:
        words = "Bytes a view from place (row) to place (column); grey: stays where it is, not part of any total."
        shown = frame[frame["cell"].isin(most)]
        titles = shown["title"].unique()
        title = "Cells with the most traffic" if len(titles) > 1 else str(titles[0])
        found.parts.append(Plot("matrices", title, words, draw_matrices(shown, most)))
    moving = frame[frame["cell"].isin(crossing["cell"])]
    waited = waits(results)
    columns = ["cell", "stage", "payload a view", "metadata a view", "both", "stays", "ms exposed", "ms hidden"]
    bodies = [(title, _rows(group, waited)) for title, group in groups(moving)]
    found.parts += tabulated(columns, bodies, summary="The ledger by stage")
    return found


def _most(results: Results, crossing: pd.DataFrame) -> list[int]:
    """Cells whose matrix is drawn, the most bytes first."""
    sizes = crossing.groupby("cell")["value"].sum()
    sizes = sizes[results.cells.loc[sizes.index, "ranks"] <= _MOST_PLACES]
    # Two places have two routes: a row of such matrices is enough.
    most = _ABREAST if results.cells.loc[sizes.index, "ranks"].max() <= 2 else _MATRICES
    return [int(cell) for cell in sizes.sort_values(ascending=False, kind="stable").index[:most]]


def _rows(group: pd.DataFrame, waited: pd.DataFrame) -> list[list[Value]]:
    """The ledger of a group: a row a cell and stage; what stays at its place has a column of its own."""
    # Sums by kind of all cells and stages at once: a lookup a row takes longer than all of them.
    kinds = group["kind"].where(group["place"] != group["peer"], "stays")
    sums = group.groupby(["cell", "stage", kinds], sort=False)["value"].sum().unstack(fill_value=0)
    order = pd.MultiIndex.from_frame(group[["cell", "stage"]].drop_duplicates())
    sums = sums.reindex(order).reindex(columns=["payload", "metadata", "stays"], fill_value=0.0)
    labels = group.drop_duplicates("cell").set_index("cell")["label"].to_dict()
    times = waited.reindex(index=sums.index, columns=["exposed", "hidden"]).to_numpy()
    return [
        [
            text(labels[cell]),
            text(stage),
            *(figure(v, memory) for v in (payload, metadata, payload + metadata, stays)),
            *(figure(seconds, _milliseconds) for seconds in waits),
        ]
        for ((cell, stage), payload, metadata, stays), waits in zip(sums.itertuples(), times, strict=True)
    ]


def _milliseconds(seconds: float | None) -> str:
    return "< 0.001" if seconds is not None and 0 < seconds < 1e-6 else milliseconds(seconds)


def draw_stages(frame: pd.DataFrame) -> Figure:
    """Stacked bars of bytes a view: payload by stage, then metadata by stage hatched."""
    labels = list(dict.fromkeys(frame["label"]))
    names = sorted(frame["stage"].unique(), key=palette.stage_order)
    parts = frame.groupby(["label", "kind", "stage"], sort=False)["value"].sum()
    totals = frame.groupby("label")["value"].sum()
    scale, unit = byte_unit(float(totals.max()))
    drawing, axes = bars(labels, [*names, "metadata"])
    for row, label in enumerate(labels):
        left = 0.0
        for kind in ("payload", "metadata"):
            sizes = [float(parts.get((label, kind, stage), 0.0)) / scale for stage in names]
            stacked(axes, row, left, sizes, [palette.stage_colour(stage) for stage in names], kind == "metadata")
            left += sum(sizes)
        beside(axes, memory(totals[label]), left, row)
    axes.set_xlim(0, 1.14 * float(totals.max()) / scale)
    axes.set_xlabel(f"{unit} a view, from one place to another")
    handles = [Patch(color=palette.stage_colour(name), label=name) for name in names]
    handles.append(Patch(facecolor=palette.MUTED, edgecolor="white", hatch="////", lw=0, label="metadata"))
    legend(drawing, handles)
    sns.despine(drawing, left=True)
    return drawing


def draw_matrices(frame: pd.DataFrame, cells: list[int]) -> Figure:
    """Heat maps place x peer of bytes a view, each against its own largest route; the diagonal is grey."""
    matrices = [_matrix(frame[frame["cell"] == cell]) for cell in cells]
    rows = math.ceil(len(cells) / _ABREAST)
    drawing = Figure(figsize=(WIDTH, 0.3 + 3.3 * rows), layout="constrained")
    axes = drawing.subplots(rows, _ABREAST, squeeze=False).ravel()
    mesh: Any = None
    for panel, name, matrix in zip(axes, _names(frame, cells), matrices, strict=False):
        largest = float(matrix[~np.eye(len(matrix), dtype=bool)].max())
        scale, unit = byte_unit(largest)
        mesh = _heat_map(panel, matrix / largest, largest / scale)
        panel.set_title(f"{name}, {unit}", fontsize=9, loc="left")
    for empty in axes[len(cells) :]:
        empty.set_axis_off()
    bar = drawing.colorbar(mesh, ax=list(axes), shrink=0.7, aspect=30, label="of the cell's largest route")
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return drawing


def _names(frame: pd.DataFrame, cells: list[int]) -> list[str]:
    """What each of the cells is called: its label, and on a line above what its group has that others have not."""
    found = [frame[frame["cell"] == cell].iloc[0] for cell in cells]
    parts = [str(of["title"]).split(" · ") for of in found]
    common = set.intersection(*map(set, parts))
    apart = [" · ".join(word for word in words if word not in common) for words in parts]
    return [f"{above}\n{of['label']}" if above else str(of["label"]) for above, of in zip(apart, found, strict=True)]


def _matrix(moved: pd.DataFrame) -> np.ndarray:
    """[places, places] bytes a view, source by destination."""
    size = int(max(moved["place"].max(), moved["peer"].max(), moved["ranks"].iloc[0] - 1)) + 1
    matrix = np.zeros((size, size))
    np.add.at(matrix, (moved["place"].to_numpy(), moved["peer"].to_numpy()), moved["value"].to_numpy())
    return matrix


def _heat_map(axes: Axes, shares: np.ndarray, largest: float) -> Any:
    """One matrix. shares: [places, places] of the largest route, which moves `largest` of the unit in the title."""
    places = len(shares)
    stays = np.eye(places, dtype=bool)
    mesh = axes.pcolormesh(np.ma.masked_array(shares, stays), cmap="cividis", vmin=0, vmax=1)
    axes.pcolormesh(np.ma.masked_array(np.zeros_like(shares), ~stays), cmap=ListedColormap(["#9aa1ab"]), alpha=0.4)
    if places <= _MOST_NUMBERS:
        for place, peer in np.ndindex(places, places):
            value = shares[place, peer] * largest
            colour = palette.MUTED if place == peer else "#ffffff" if shares[place, peer] < 0.55 else "#000000"
            # Three digits in small matrices; two where a field has room for no more.
            words = f"{value:.3g}" if places <= 4 else f"{value:.0f}" if value >= 10 else f"{value:.1f}"
            size = 9 if places <= 4 else 6.5
            axes.text(peer + 0.5, place + 0.5, words, ha="center", va="center", fontsize=size, color=colour)
    ticks = range(0, places, max(1, places // 8))
    axes.set_xticks([t + 0.5 for t in ticks], [str(t) for t in ticks])
    axes.set_yticks([t + 0.5 for t in ticks], [str(t) for t in ticks])
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xlabel("to place")
    axes.set_ylabel("from place")
    sns.despine(ax=axes, left=True, bottom=True)
    return mesh
