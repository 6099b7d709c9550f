"""Draws what the code decides: the boxes, what a view sees of each, and what masks leave out of it.

python -m strategies.splaxel.draw_sight strategies/splaxel/sight.png
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from strategies.base import Context, Rect, World
from strategies.distribution.communicator import Communicator
from strategies.distribution.virtual import VirtualWorld
from strategies.splaxel import subtiles
from strategies.splaxel.info import SplaxelOptions
from strategies.splaxel.strategy import Splaxel
from strategies.training.config import Training
from strategies.views import ViewQueue

RANKS = 4
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")
"""Of Tol's bright scheme, told apart by colour-blind readers."""
PRUNED = "#555555"
VISITS = 3
CAMERA = Camera(
    256, 144, 150.0, 150.0, 128.0, 72.0, np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1.0], [0, 0, 0, 1]])
)


@dataclass
class Street:
    """A GaussianSource and ImageSource: facades on both sides of a street that ends at a house, of opaque discs."""

    parameters: torch.Tensor

    @classmethod
    def built(cls) -> Street:
        grid = torch.cartesian_prod(torch.arange(0.0, 24.0, 0.25), torch.arange(-2.2, 0.8, 0.25))
        left, right = (torch.stack([torch.full((len(grid),), x), grid[:, 1], grid[:, 0]], dim=1) for x in (-2.0, 2.0))
        house = torch.cartesian_prod(torch.arange(-1.5, 1.6, 0.25), torch.arange(-1.4, 0.8, 0.25))
        front = torch.cat([house, torch.full((len(house), 1), 7.0)], dim=1)
        behind = [front + torch.tensor([0.0, 0.0, 0.2 * n]) for n in range(1, 5)]
        means = torch.cat([left, right, front, *behind])
        table = torch.zeros(len(means), layout.PARAMETERS)
        table[:, layout.MEAN] = means
        table[:, layout.LOG_SCALE] = np.log(0.16)
        table[:, 6] = 1.0
        table[:, layout.OPACITY_LOGIT] = 6.0
        table[:, layout.SH_DC] = torch.rand(len(means), 3, generator=torch.Generator().manual_seed(0)) * 3 - 1.2
        return cls(table)

    @property
    def count(self) -> int:
        return len(self.parameters)

    @property
    def bounds(self) -> np.ndarray:
        means = self.parameters[:, layout.MEAN]
        return torch.stack([means.amin(0), means.amax(0)]).numpy()

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        return self.parameters[lo:hi, layout.MEAN]

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        return self.parameters[indices]

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        return torch.full((rect.y1 - rect.y0, rect.x1 - rect.x0, 3), 128, dtype=torch.uint8)

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        return None


class NoClock:
    """Measures nothing."""

    watched = False

    def __call__(self, stage: str) -> AbstractContextManager[None]:
        return nullcontext()


def visited(street: Street) -> tuple[Splaxel, torch.Tensor]:
    """Rank 0's strategy after some visits of the view with nothing moving, and its image."""

    def rank_main(comm: Communicator) -> tuple[Splaxel, torch.Tensor | None]:
        strategy = Splaxel()
        context = Context(
            world=World(comm.rank, comm.ranks, (comm.device,), comm.ranks),
            comm=comm,
            kernels=KernelSet("reference"),
            clock=NoClock(),
            training=Training(rate_scale=0.0, background=(0.75, 0.85, 1.0)),
            cameras=[CAMERA],
            batch=1,
            seed=0,
            bounds=street.bounds,
            extent=1.0,
        )
        strategy.setup(context, street, street, SplaxelOptions())
        queue = ViewQueue([0])
        for _ in range(VISITS):
            strategy.step(queue)
        return strategy, strategy.render(CAMERA)

    strategy, image = VirtualWorld(RANKS).run(rank_main)[0]
    assert image is not None
    return strategy, image


def draw_plan(axes: Axes, street: Street, strategy: Splaxel) -> None:
    """Boxes from above, in their ranks' colours, with the camera's field of view."""
    boxes, bounds = strategy.territory.boxes, street.bounds
    for box in range(boxes.count):
        low = np.maximum(boxes.corners[box, 0], bounds[0] - 0.3)
        high = np.minimum(boxes.corners[box, 1], bounds[1] + 0.3)
        corner, size = (low[2], low[0]), (high[2] - low[2], high[0] - low[0])
        colour = COLOURS[boxes.owner[box]]
        axes.add_patch(Rectangle(corner, *size, facecolor=colour, alpha=0.35, edgecolor=colour))
    means = street.parameters[:, layout.MEAN]
    axes.plot(means[:, 2], means[:, 0], ".", color="black", markersize=1)
    half = CAMERA.width / 2 / CAMERA.fx
    axes.plot([4.0, -1.0, 4.0], [5 * half, 0.0, -5 * half], color="black", linewidth=1)
    axes.set_xlim(-1.6, 24.6)
    axes.set_ylim(-2.9, 2.9)
    axes.set_aspect("equal")
    axes.set_title("boxes from above; the camera looks along the street", loc="left", fontsize=9)
    axes.tick_params(labelsize=7)


def draw_box(axes: Axes, strategy: Splaxel, box: int) -> None:
    """The box's region in the image, and the sub-tiles of it that its mask leaves out."""
    sight, rank = strategy.territory.sight(CAMERA, 0), int(strategy.territory.boxes.owner[box])
    picture = np.ones((CAMERA.height, CAMERA.width, 3))
    if box in sight.regions:
        active = strategy.masks.active(0).get(box, torch.ones_like(sight.regions[box]))
        region = subtiles.pixels_of(sight.regions[box], CAMERA).numpy()
        shown = subtiles.pixels_of(sight.box_grid(box, {box: active}), CAMERA).numpy()
        picture[region] = to_rgb(PRUNED)
        picture[shown] = to_rgb(COLOURS[rank])
        text = f"{region.mean():.0%} seen, {shown.mean():.0%} after masks"
    else:
        text = "not seen"
    axes.imshow(picture)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"rank {rank}: {text}", loc="left", fontsize=8)


def draw(file: Path) -> None:
    """Write the figure."""
    street = Street.built()
    strategy, image = visited(street)
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    rows = figure.add_gridspec(3, 2, height_ratios=[1.1, 1, 1])
    draw_plan(figure.add_subplot(rows[0, 0]), street, strategy)
    picture = figure.add_subplot(rows[0, 1])
    picture.imshow(image)
    picture.set_xticks([])
    picture.set_yticks([])
    picture.set_title("the composited view", loc="left", fontsize=9)
    order = strategy.territory.boxes.front_to_back(CAMERA.centre)
    for number, box in enumerate(order):
        draw_box(figure.add_subplot(rows[1 + number // 2, number % 2]), strategy, box)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
