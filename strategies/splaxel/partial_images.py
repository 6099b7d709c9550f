"""The partial images a rank renders of its own boxes, and their way back to gradients of splats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.exchange import take_records
from cuda_src.layout import GRADIENT
from cuda_src.operators import Bins, Raster, Splats
from cuda_src.workspace import Workspace
from strategies.base import Context
from strategies.distribution.regions import queued_copy
from strategies.splaxel import subtiles
from strategies.splaxel.boxes import Boxes
from strategies.splaxel.composition import Composite, Partials, composite, composite_backward
from strategies.splaxel.sight import Sharing, Sight
from strategies.splaxel.visibility import depth_interval, rays
from strategies.training.occlusion import OcclusionHistory

Boundary = Literal["drop", "keep", "exact"]


@dataclass(frozen=True)
class BoxImage:
    """What one box's forward leaves for its backward. rows: of the view's splats, those it holds, as `held` gives."""

    rows: torch.Tensor | slice
    splats: Splats
    bins: Bins
    raster: Raster
    depth_range: torch.Tensor | None
    workspace: Workspace


@dataclass(frozen=True)
class OwnImages:
    """A rank's partial images of one view.

    layers: by number of the sight's layer, its boxes and how they compose. instances: of each splat of the view, [V].
    """

    camera: Camera
    layers: Mapping[int, tuple[list[BoxImage], Composite]]
    instances: torch.Tensor

    def partials(self) -> dict[int, Partials]:
        """By layer, its one partial image, [1, H W]."""
        return {
            number: Partials(
                c.colour[None], c.transmittance[None], c.stopped[None], None if c.depth is None else c.depth[None]
            )
            for number, (_, c) in self.layers.items()
        }


class BoxRenderer:
    """Renders the boxes of one rank, each apart, and composites those of a layer."""

    def __init__(self, ctx: Context, boundary: Boundary, with_depth: bool):
        self._kernels, self._clock, self._rank = ctx.kernels, ctx.clock, ctx.world.rank
        self._training, self._boundary, self._with_depth = ctx.training, boundary, with_depth
        self._device = ctx.world.devices[0]
        self._occlusion: dict[int, OcclusionHistory] = {}

    def forget(self) -> None:
        """The boxes hold other Gaussians now: what hid what in them means nothing any more."""
        self._occlusion = {}

    def forward(
        self,
        sharing: Sharing,
        boxes: Boxes,
        splats: Splats,
        held: Mapping[int, torch.Tensor | slice],
        workspace: Callable[[int], Workspace],
        view: int | None,
    ) -> OwnImages:
        """held: by box, the splats that it may show, distinct numbers or a slice. workspace: by box.

        view: whose occlusion history to use and to keep; None for neither.
        """
        sight, camera = sharing.sight, sharing.sight.camera
        with self._clock("raster_forward"):
            directions = None if self._boundary == "keep" else rays(camera, self._device)
        instances = torch.zeros(splats.count, dtype=torch.int64, device=splats.rows.device)
        layers = {}
        for number, layer in enumerate(sight.layers):
            if layer.rank != self._rank or self._rank not in sharing.takes_part:
                continue
            images = []
            grids = [sight.box_grid(box, sharing.active) for box in layer.boxes]
            rendered = sharing.pixels_of(grids)
            for box, grid, pixels in zip(layer.boxes, grids, rendered, strict=True):
                with self._clock("raster_forward"):
                    depth_range = self._depth_range(sight, boxes, box, directions)
                history = self._occlusion.setdefault(box, OcclusionHistory(self._training))
                limits = None if view is None else history.limits(view)
                image = self._render(camera, splats, held[box], grid, depth_range, limits, workspace(box))
                if view is not None and history.on:
                    tiles = queued_copy(subtiles.tiles_of(grid), self._device)
                    history.keep([view], [_examined(history, view, image.raster, tiles, pixels, camera)])
                assert image.bins.splat_starts is not None  # Views are listed without rooms here.
                instances[image.rows] += torch.diff(image.bins.splat_starts)
                images.append(image)
            with self._clock("compose"):
                layers[number] = (images, composite(self._stack(images, rendered)))
        return OwnImages(camera, layers, instances)

    def backward(self, own: OwnImages, upstream: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Gradient of each splat of the view, [V, GRADIENT].

        upstream: by layer, dL/d colour and dL/d transmittance of its partial image, [H W, 4].
        """
        camera = own.camera
        size = (camera.height, camera.width)
        total = torch.zeros((len(own.instances), GRADIENT), dtype=self._kernels.dtype, device=own.instances.device)
        for number, (images, composed) in own.layers.items():
            asked = upstream[number]
            to_colour, to_transmittance = composite_backward(composed, asked[:, :3], asked[:, 3])
            for n, image in enumerate(images):
                gradient = op.raster_backward(
                    self._kernels,
                    image.splats,
                    image.bins,
                    image.raster,
                    camera,
                    to_colour[n].reshape(*size, 3),
                    image.workspace,
                    grad_transmittance=to_transmittance[n].reshape(size),
                    depth_range=image.depth_range,
                )
                total[image.rows] += gradient
        return total

    def _render(
        self,
        camera: Camera,
        splats: Splats,
        held: torch.Tensor | slice,
        grid: torch.Tensor,
        depth_range: torch.Tensor | None,
        depth_limit: torch.Tensor | None,
        workspace: Workspace,
    ) -> BoxImage:
        records = splats.records[held]
        if isinstance(held, torch.Tensor):
            # As the kernels read them, so that none of them makes a copy of its own.
            records = take_records(self._kernels, workspace, "box.records", len(held)).copy_(records)
        own = Splats(splats.rows[held], splats.ids[held], records)
        on_host = subtiles.to_bits(grid)
        bits = queued_copy(on_host, self._device)
        tiles = queued_copy(torch.nonzero(on_host).flatten().to(torch.int32), self._device)
        with self._clock("bin"):
            bins = op.bin_splats(self._kernels, own, camera, workspace, tiles, bits, depth_limit)
        with self._clock("raster_forward"):
            raster = op.raster_forward(
                self._kernels, own, bins, camera, workspace, subtiles=bits, depth_range=depth_range
            )
        return BoxImage(held, own, bins, raster, depth_range, workspace)

    def _depth_range(
        self, sight: Sight, boxes: Boxes, box: int, directions: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Depths at which the box's splats are blended, [H, W, 2]; None for all.

        `exact`: the ray's stretch inside the box. `drop`: the same where another box's region lies too, everything
        elsewhere (Splaxel).
        """
        if directions is None:
            return None
        contested = None
        if self._boundary == "drop":
            grid = sight.crowded & sight.projected[box]
            if not bool(grid.any()):
                return None
            contested = subtiles.pixels_of(queued_copy(grid, self._device), sight.camera)
        interval = depth_interval(sight.camera, directions, boxes.corners[box])
        if contested is not None:
            enter, leave = interval.unbind(dim=-1)
            interval = torch.stack(
                [torch.where(contested, enter, -torch.inf), torch.where(contested, leave, torch.inf)], dim=-1
            )
        return interval.to(self._kernels.dtype)

    def _stack(self, images: list[BoxImage], rendered: torch.Tensor) -> Partials:
        """The boxes' rasters, front to back, [n, H W]; nothing blended where a box is not `rendered`, [n, H W] bool."""
        rasters = [image.raster for image in images]
        transmittance = torch.stack([r.transmittance.flatten() for r in rasters])
        return Partials(
            torch.stack([r.colour.reshape(-1, 3) for r in rasters]),
            torch.where(rendered, transmittance, torch.ones_like(transmittance)),
            torch.stack([r.stopped.flatten() for r in rasters]) > 0,
            torch.stack([r.depth.flatten() for r in rasters]) if self._with_depth else None,
        )


def _examined(
    history: OcclusionHistory, view: int, raster: Raster, tiles: torch.Tensor, pixels: torch.Tensor, camera: Camera
) -> torch.Tensor:
    """Depth limits of the view's tiles for the next visit, [tiles]; a pixel that was not rendered has no say.

    tiles, pixels: which were rendered, [tiles] and [H W] bool.
    """
    rendered = pixels.view(camera.height, camera.width)
    silent = torch.zeros_like(raster.transmittance)
    judged = replace(
        raster,
        stop_depth=torch.where(rendered, raster.stop_depth, silent),
        transmittance=torch.where(rendered, raster.transmittance, silent),
    )
    limits = history.examined(view, judged, camera)
    known = history.limits(view)
    before = torch.full_like(limits, torch.inf) if known is None else known
    return torch.where(tiles, limits, before)
