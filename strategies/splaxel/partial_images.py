"""The partial images a rank renders of its own boxes, and their way back to gradients of splats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
from strategies.splaxel.depth_ranges import Boundary, DepthRanges
from strategies.splaxel.sight import Sharing
from strategies.splaxel.visibility import Rays
from strategies.training.occlusion import OcclusionHistory


@dataclass(frozen=True)
class BoxPlan:
    """What one box shows of a view. grid: on the host. tiles, subtiles, depth_range: as kernels are given them."""

    grid: torch.Tensor
    tiles: torch.Tensor
    subtiles: torch.Tensor
    depth_range: torch.Tensor | None


@dataclass(frozen=True)
class BoxImage:
    """What one box's forward leaves for its backward. rows: of the view's splats, those it holds, as `held` gives."""

    rows: torch.Tensor | slice
    splats: Splats
    bins: Bins
    raster: Raster
    plan: BoxPlan
    workspace: Workspace

    @property
    def instances(self) -> torch.Tensor:
        """Of each of its splats, [n] int64."""
        assert self.bins.splat_starts is not None  # Views are listed without rooms here.
        return torch.diff(self.bins.splat_starts)


@dataclass(frozen=True)
class OwnImages:
    """A rank's partial images of one view.

    layers: by number of the sight's layer, its boxes and how they compose. instances: of each splat of the view, [V].
    """

    camera: Camera
    layers: Mapping[int, tuple[list[BoxImage], Composite]]
    instances: torch.Tensor

    @property
    def total(self) -> int:
        """Instances of all splats."""
        return sum(image.bins.instances for images, _ in self.layers.values() for image in images)

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
        self._training, self._with_depth = ctx.training, with_depth
        self._device = ctx.world.devices[0]
        self.depths = DepthRanges(boundary, ctx.kernels.dtype, self._device)
        self._occlusion: dict[int, OcclusionHistory] = {}

    def forget(self) -> None:
        """The boxes are others and hold other Gaussians: what hid what in them means nothing any more."""
        self._occlusion = {}
        self.depths.forget()

    def plan(self, sharing: Sharing, boxes: Boxes, view: int | None) -> dict[int, BoxPlan]:
        """By own box in sight; queued ahead of the view's splats. view: whose depth intervals to keep; None for none.

        Nothing where the rank does not take part.
        """
        sight, rays, plans = sharing.sight, Rays(sharing.sight.camera, self._device), {}
        for layer in sight.layers:
            for box in layer.boxes if layer.rank == self._rank and self._rank in sharing.takes_part else ():
                grid = sight.box_grid(box, sharing.active)
                bits = subtiles.to_bits(grid)
                tiles, on_device = (queued_copy(part, self._device) for part in (subtiles.numbers(bits), bits))
                plans[box] = BoxPlan(grid, tiles, on_device, self.depths.of(sight, boxes, box, rays, view))
        return plans

    def forward(
        self,
        sharing: Sharing,
        plans: Mapping[int, BoxPlan],
        splats: Splats,
        held: Mapping[int, torch.Tensor | slice],
        workspace: Callable[[int], Workspace],
        view: int | None,
    ) -> OwnImages:
        """held: by box, the splats that it may show, distinct numbers or a slice. workspace: by box.

        view: whose occlusion history to use and to keep; None for neither.
        """
        camera, layers = sharing.sight.camera, {}
        for number, layer in enumerate(sharing.sight.layers):
            if not all(box in plans for box in layer.boxes):
                continue  # Another rank's.
            images = []
            grids = [plans[box].grid for box in layer.boxes]
            rendered = sharing.shown[number : number + 1] if len(grids) == 1 else sharing.pixels_of(grids)
            for box, pixels in zip(layer.boxes, rendered, strict=True):
                history = self._occlusion.setdefault(box, OcclusionHistory(self._training))
                limits = None if view is None else history.limits(view)
                image = self._render(camera, splats, held[box], plans[box], limits, workspace(box))
                if view is not None and history.on:
                    tiles = queued_copy(subtiles.tiles_of(plans[box].grid), self._device)
                    history.keep([view], [_examined(history, view, image.raster, tiles, pixels, camera)])
                images.append(image)
            with self._clock("compose"):
                layers[number] = (images, composite(self._stack(images, rendered)))
        every = [image for of_layer, _ in layers.values() for image in of_layer]
        instances = [image.instances for image in every]
        return OwnImages(camera, layers, _by_splat(every, instances, lambda: splats.rows.new_zeros(splats.count)))

    def backward(self, own: OwnImages, upstream: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Gradient of each splat of the view, [V, GRADIENT].

        upstream: by layer, dL/d colour and dL/d transmittance of its partial image, [H W, 3] and [H W].
        """
        camera, every, gradients = own.camera, [], []
        size = (camera.height, camera.width)
        for number, (images, composed) in own.layers.items():
            to_colour, to_transmittance = composite_backward(composed, *upstream[number])
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
                    depth_range=image.plan.depth_range,
                )
                every.append(image)
                gradients.append(gradient)
        size_of_all = len(own.instances), GRADIENT
        return _by_splat(every, gradients, lambda: own.instances.new_zeros(size_of_all, dtype=self._kernels.dtype))

    def _render(
        self,
        camera: Camera,
        splats: Splats,
        held: torch.Tensor | slice,
        plan: BoxPlan,
        depth_limit: torch.Tensor | None,
        workspace: Workspace,
    ) -> BoxImage:
        kernels, records = self._kernels, splats.records[held]
        if isinstance(held, torch.Tensor):
            # As the kernels read them, so that none of them makes a copy of its own.
            records = take_records(kernels, workspace, "box.records", len(held)).copy_(records)
        own, shown = Splats(splats.rows[held], splats.ids[held], records), plan.subtiles
        with self._clock("bin"):
            bins = op.bin_splats(kernels, own, camera, workspace, plan.tiles, shown, depth_limit)
        with self._clock("raster_forward"):
            raster = op.raster_forward(
                kernels, own, bins, camera, workspace, subtiles=shown, depth_range=plan.depth_range
            )
        return BoxImage(held, own, bins, raster, plan, workspace)

    def _stack(self, images: list[BoxImage], rendered: torch.Tensor) -> Partials:
        """The boxes' rasters, front to back, [n, H W]; nothing blended where a box is not `rendered`, [n, H W] bool."""
        rasters = [image.raster for image in images]
        transmittance = _together([r.transmittance.flatten() for r in rasters])
        return Partials(
            _together([r.colour.reshape(-1, 3) for r in rasters]),
            torch.where(rendered, transmittance, torch.ones_like(transmittance)),
            _together([r.stopped.flatten() for r in rasters]) > 0,
            _together([r.depth.flatten() for r in rasters]) if self._with_depth else None,
        )


def _together(parts: list[torch.Tensor]) -> torch.Tensor:
    """Along a new first dimension; a single one is not copied."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def _by_splat(images: list[BoxImage], values: list[torch.Tensor], zeros: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What boxes have for each splat of the view, added up; that of a rank's only box as it is.

    values: by box, [its splats, ...]. zeros: [V, ...].
    """
    if len(images) == 1 and isinstance(images[0].rows, slice):
        return values[0]
    total = zeros()
    for image, value in zip(images, values, strict=True):
        total[image.rows] += value
    return total


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
