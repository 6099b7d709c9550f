"""Draws what the code decides: who renders which tiles of a batch, by unit and with or without balance.

python -m strategies.grendel.draw_regions strategies/grendel/regions.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from strategies.distribution.drawing import COLOURS, crowded_views, draw_tiles
from strategies.distribution.regions import Unit, cut_regions

RANKS = len(COLOURS)
ROWS: tuple[tuple[Unit, str], ...] = (("block", "work"), ("row", "work"), ("image", "work"), ("block", "off"))


def draw(file: Path) -> None:
    """Write the figure: a row a setting, a column a view, and each setting's largest share of the work."""
    cameras, costs = crowded_views()
    figure = Figure(figsize=(7.2, 7.2), layout="constrained")
    panels = figure.subplots(len(ROWS), 2)
    for (unit, balance), axes in zip(ROWS, panels, strict=True):
        used = costs if balance == "work" else [torch.ones_like(cost) for cost in costs]
        regions = cut_regions(cameras, used, RANKS, unit)
        work = [sum(int(c[regions.of(r, v).long()].sum()) for v, c in enumerate(costs)) for r in range(RANKS)]
        for view, panel in enumerate(axes):
            draw_tiles(panel, regions, costs, view)
            panel.set_title(f"unit: {unit}, balance: {balance}, view {view + 1} of 2", loc="left", fontsize=9)
        axes[1].set_xlabel(f"busiest rank: {max(work) / sum(work):.0%} of all tile instances", fontsize=8)
    handles = [Patch(color=colour, label=f"rank {rank}") for rank, colour in enumerate(COLOURS)]
    figure.legend(handles=handles, loc="outside lower center", ncols=RANKS, fontsize=8)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
