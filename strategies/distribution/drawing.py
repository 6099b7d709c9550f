"""Regions as pictures, for the figures of the strategies' READMEs."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workspace import Workspace
from strategies.distribution.regions import Regions

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")
"""Of Tol's bright scheme, told apart by colour-blind readers."""


def crowded_views() -> tuple[list[Camera], list[torch.Tensor]]:
    """Two cameras before a cloud that is dense on one side, and the tile instances of each tile, [tiles]."""
    kernels = op.KernelSet("reference")
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
        splats = op.project(kernels, parameters, torch.arange(700), camera, 0, work)
        cameras.append(camera)
        costs.append(op.bin_splats(kernels, splats, camera, work).starts.diff())
    return cameras, costs


def draw_tiles(axes: Axes, regions: Regions, costs: list[torch.Tensor], view: int) -> None:
    """Tiles of a view, coloured by who renders them, with their instances."""
    camera = regions.cameras[view]
    grid = regions.owner(view).view(camera.tiles_y, camera.tiles_x)
    axes.imshow(grid, cmap=ListedColormap(COLOURS), vmin=0, vmax=len(COLOURS) - 1, aspect="equal")
    for tile, cost in enumerate(costs[view].tolist()):
        row, column = divmod(tile, camera.tiles_x)
        axes.text(column, row, str(cost), ha="center", va="center", fontsize=4.5, color="white")
    axes.set_xticks([])
    axes.set_yticks([])
