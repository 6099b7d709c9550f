"""Whose space is where, and what a view sees of it: the part of the strategy that no pixel passes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from cuda_src.camera import Camera
from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT
from cuda_src.operators import KernelSet, Splats
from strategies.distribution.communicator import Communicator
from strategies.gaussians import Gaussians
from strategies.splaxel import subtiles
from strategies.splaxel.boxes import Boxes
from strategies.splaxel.info import SplaxelOptions
from strategies.splaxel.sight import Sight, look
from strategies.splaxel.visibility import footprint_rectangles, meets, plates, region, straddles

SURVEY_IMAGES = 100
"""Images between two measurements of the splats' bounds; in that time a Gaussian moves little."""
FILTER_MARGIN = 2.0
"""Pixels by which the screen-space dilation of 0.3 px^2 lets a splat reach beyond its extent in the world."""


class Territory:
    """The boxes, the bounds of the splats in them, and the sights of views; the same on all ranks.

    box_of: of each of this rank's Gaussians, the box it belongs to, [N] int64: that of its mean when last settled.
    """

    def __init__(self, comm: Communicator, kernels: KernelSet, options: SplaxelOptions):
        self._comm, self._kernels, self._options = comm, kernels, options
        self._sights: dict[int, Sight] = {}
        self._margins: dict[int, list[float]] = {}
        self.boxes = Boxes(None, comm.ranks)
        self.box_of = torch.empty(0, dtype=torch.int64)

    def settle(self, boxes: Boxes, gaussians: Gaussians) -> None:
        """Take these boxes, and each Gaussian to the box of its mean. Collective."""
        self.boxes = boxes
        self.box_of = boxes.leaf_of(gaussians.parameters[:, MEAN])
        self.survey(gaussians)

    def survey(self, gaussians: Gaussians) -> None:
        """Measure the bounds of the splats of each box anew, means ± full extent. Collective."""
        convention = self._kernels.convention
        own = self.boxes.of(self._comm.rank)
        means, log_scales, logits = (gaussians.parameters[:, c].double() for c in (MEAN, LOG_SCALE, OPACITY_LOGIT))
        reach = torch.log(torch.sigmoid(logits) / convention.alpha_min)
        extent = torch.sqrt(2 * reach.clamp(min=0)) * log_scales.amax(dim=1).exp()
        bounds = torch.empty((len(own), 2, 3), dtype=torch.float64)
        bounds[:, 0], bounds[:, 1] = torch.inf, -torch.inf
        for number, box in enumerate(own):
            mine = (self.box_of == box) & (reach >= 0)
            if bool(mine.any()):
                mean, around = means[mine], extent[mine, None]
                bounds[number, 0], bounds[number, 1] = (mean - around).amin(dim=0), (mean + around).amax(dim=0)
        told = self._comm.gather("regions", bounds)
        self.bounds = torch.empty((self.boxes.count, 2, 3), dtype=torch.float64)
        for rank, part in enumerate(told):
            self.bounds[self.boxes.of(rank)] = part
        self._sights, self._margins = {}, {}

    def sight(self, camera: Camera, view: int | None = None, margins: Sequence[float] | None = None) -> Sight:
        """The camera's sight of the boxes; kept by view where it does not change from visit to visit.

        margins: with `boundary: keep`, by box the pixels that its largest boundary splat reaches out.
        """
        if view is not None and view in self._sights:
            return self._sights[view]
        corners = torch.from_numpy(self.boxes.corners)
        by_box = [0.0] * self.boxes.count
        if self._options.boundary != "exact":
            corners = torch.stack(
                [torch.maximum(corners[:, 0], self.bounds[:, 0]), torch.minimum(corners[:, 1], self.bounds[:, 1])], 1
            )
            by_box = [FILTER_MARGIN + m for m in (margins or by_box)]
        whole = self._options.regions == "whole"
        near = self._kernels.convention.near
        sight = look(camera, self.boxes, near, list(corners), whole, by_box)
        if view is not None and self._options.boundary != "keep":
            self._sights[view] = sight
        return sight

    def margins(self, views: Sequence[int], cameras: Sequence[Camera], splats: Sequence[Splats]) -> list[list[float]]:
        """By view and box, the pixels that its largest straddling splat reaches from its centre. Collective."""
        own = self.boxes.of(self._comm.rank)
        reached = torch.zeros((len(own), len(views)), dtype=torch.float64, device=self.box_of.device)
        for number, (camera, of_view) in enumerate(zip(cameras, splats, strict=True)):
            if not of_view.count:
                continue
            rectangle = footprint_rectangles(self._kernels, of_view.records, camera, clip=False)
            radius = 0.5 * (rectangle[:, 2:] - rectangle[:, :2]).amax(dim=1)
            plate, box_of = plates(self._kernels, of_view, camera), self.box_of[of_view.rows]
            for n, box in enumerate(own):
                mine = (box_of == box) & straddles(plate, self.boxes.corners[box])
                reached[n, number] = torch.where(mine, radius, 0.0).amax()
        largest = reached.cpu()
        told = torch.zeros((self.boxes.count, len(views)), dtype=torch.float64)
        for rank, part in enumerate(self._comm.gather("regions", largest)):
            told[self.boxes.of(rank)] = part
        by_view: list[list[float]] = told.T.tolist()
        self._margins |= dict(zip(views, by_view, strict=True))
        return by_view

    def seen_by(self, view: int, camera: Camera, active: Mapping[int, torch.Tensor]) -> frozenset[int]:
        """Ranks that the view may need: they have a box in sight that no mask hides, or splats that may be shipped."""
        everyone = frozenset(range(self._comm.ranks))
        options = self._options
        margins = self._margins.get(view)
        if options.regions == "whole" or (options.boundary == "keep" and margins is None):
            return everyone
        sight = self.sight(camera, view, margins)
        seen = {layer.rank for layer in sight.layers if subtiles.count(sight.layer_grid(layer, active))}
        if options.boundary == "exact":
            near = self._kernels.convention.near
            for rank in everyone - seen:
                own = self.bounds[self.boxes.of(rank)]
                around = torch.stack([own[:, 0].amin(dim=0), own[:, 1].amax(dim=0)]).numpy()
                if bool((around[0] <= around[1]).all()) and bool(region(camera, near, around, FILTER_MARGIN).any()):
                    seen.add(rank)
        return frozenset(seen)

    def held(self, splats: Splats, sight: Sight) -> dict[int, torch.Tensor | slice]:
        """By own box in sight, the splats that it may show: their numbers, or a slice where it is all of them."""
        own = [box for box in sight.order if self.boxes.owner[box] == self._comm.rank]
        if not own:
            return {}
        if self._options.boundary == "exact":
            plate = plates(self._kernels, splats, sight.camera)
            met = torch.stack([meets(plate, self.boxes.corners[box]) for box in own])
            return dict(zip(own, subtiles.numbers_of(met, met.sum(dim=1).tolist()), strict=True))
        if len(self.boxes.of(self._comm.rank)) == 1:
            return dict.fromkeys(own, slice(None))
        box_of, order = self.box_of[splats.rows].sort(stable=True)
        ends = torch.searchsorted(box_of, torch.arange(self.boxes.count + 1, device=box_of.device)).tolist()
        return {box: order[ends[box] : ends[box + 1]] for box in own}

    def wanted(self, splats: Splats, sight: Sight, takes_part: frozenset[int]) -> list[torch.Tensor]:
        """By rank, which of this rank's splats have a plate that meets a box of it in sight, [V] bool."""
        plate = plates(self._kernels, splats, sight.camera)
        wanted = [torch.zeros(splats.count, dtype=torch.bool, device=splats.rows.device)] * self._comm.ranks
        for box in sight.order:
            rank = int(self.boxes.owner[box])
            if rank in takes_part and rank != self._comm.rank:
                wanted[rank] = wanted[rank] | meets(plate, self.boxes.corners[box])
        return wanted
