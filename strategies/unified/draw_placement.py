"""Draws what the code decides: where rows of the table lie, and which tiles each place renders.

python -m strategies.unified.draw_placement strategies/unified/placement.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from strategies.distribution.drawing import COLOURS, crowded_views, draw_tiles
from strategies.distribution.regions import cut_regions
from strategies.unified.info import MEBIBYTE, ROW_BYTES, UnifiedOptions
from strategies.unified.placement import spans_of

PLACES = 4
ROWS = 120_000


def draw_table(axes: Axes, options: UnifiedOptions) -> None:
    """The address range of one table, coloured by the place that holds it."""
    for place in range(PLACES):
        spans = spans_of(options, ROWS, place, PLACES)
        bars = [(s.offset * ROW_BYTES / MEBIBYTE, s.count * ROW_BYTES / MEBIBYTE) for s in spans]
        axes.broken_barh(bars, (0, 1), facecolors=COLOURS[place], edgecolors="white", linewidth=0.6)
    axes.set_xlim(0, ROWS * ROW_BYTES / MEBIBYTE)
    axes.set_yticks([])
    axes.set_title(f"placement: {options.placement}", loc="left", fontsize=9)


def draw(file: Path) -> None:
    """Write the figure."""
    figure = Figure(figsize=(7.2, 5.0), layout="constrained")
    rows = figure.add_gridspec(4, 2, height_ratios=[1, 1, 5, 5])
    for number, placement in enumerate(("round_robin", "striped")):
        table = figure.add_subplot(rows[number, :])
        draw_table(table, UnifiedOptions.model_validate({"placement": placement}))
        if number == 1:
            table.set_xlabel(f"address in one table of {ROWS:,} Gaussians, MiB", fontsize=8)
        table.tick_params(labelsize=7)
    cameras, costs = crowded_views()
    flat = [torch.ones_like(cost) for cost in costs]
    for number, (balance, used) in enumerate((("work", costs), ("off", flat))):
        regions = cut_regions(cameras, used, PLACES, "block")
        for view in range(2):
            axes = figure.add_subplot(rows[2 + number, view])
            draw_tiles(axes, regions, costs, view)
            axes.set_title(f"balance: {balance}, view {view + 1} of a batch of 2", loc="left", fontsize=9)
    handles = [Patch(color=colour, label=f"place {place}") for place, colour in enumerate(COLOURS)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
