"""Draws what the code decides: where rows of the table lie, and which tiles each place renders.

python -m strategies.unified.draw_placement strategies/unified/placement.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workspace import Workspace
from strategies.distribution.regions import Regions, cut_regions
from strategies.unified.info import MEBIBYTE, ROW_BYTES, UnifiedOptions
from strategies.unified.placement import spans_of

PLACES = 4
ROWS = 120_000
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")
"""Of Tol's bright scheme, told apart by colour-blind readers."""
KERNELS = op.KernelSet("reference")


def crowded_views() -> tuple[list[Camera], list[torch.Tensor]]:
    """Two cameras before a cloud that is dense on one side, and the tile instances of each tile, [tiles]."""
    generator = torch.Generator().manual_seed(1)
    parameters = torch.zeros(700, layout.PARAMETERS)
    parameters[:, layout.MEAN] = torch.randn(700, 3, generator=generator) * torch.tensor([0.9, 0.35, 0.3])
    parameters[:350, layout.MEAN] += torch.tensor([1.2, 0.3, 0.0])
    parameters[:, layout.LOG_SCALE] = -3.0
    cameras, costs = [], []
    for shift in (0.0, -1.0):
        pose = np.eye(4)
        pose[:3, 3] = [shift, 0.0, 4.0]
        camera = Camera(256, 144, 190.0, 190.0, 128.0, 72.0, pose)
        work = Workspace()
        splats = op.project(KERNELS, parameters, torch.arange(700), camera, 0, work)
        cameras.append(camera)
        costs.append(op.bin_splats(KERNELS, splats, camera, work).starts.diff())
    return cameras, costs


def draw_table(axes: Axes, options: UnifiedOptions) -> None:
    """The address range of one table, coloured by the place that holds it."""
    for place in range(PLACES):
        spans = spans_of(options, ROWS, place, PLACES)
        bars = [(s.offset * ROW_BYTES / MEBIBYTE, s.count * ROW_BYTES / MEBIBYTE) for s in spans]
        axes.broken_barh(bars, (0, 1), facecolors=COLOURS[place], edgecolors="white", linewidth=0.6)
    axes.set_xlim(0, ROWS * ROW_BYTES / MEBIBYTE)
    axes.set_yticks([])
    axes.set_title(f"placement: {options.placement}", loc="left", fontsize=9)


def draw_tiles(axes: Axes, regions: Regions, costs: list[torch.Tensor], view: int) -> None:
    """Tiles of a view, coloured by the place that renders them, with their instances."""
    camera = regions.cameras[view]
    grid = regions.owner(view).view(camera.tiles_y, camera.tiles_x)
    axes.imshow(grid, cmap=ListedColormap(COLOURS), vmin=0, vmax=PLACES - 1, aspect="equal")
    for tile, cost in enumerate(costs[view].tolist()):
        row, column = divmod(tile, camera.tiles_x)
        axes.text(column, row, str(cost), ha="center", va="center", fontsize=4.5, color="white")
    axes.set_xticks([])
    axes.set_yticks([])


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
