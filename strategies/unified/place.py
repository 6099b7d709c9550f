"""One place of the aggregate device: what each operator does there, with its own arena and its own inbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from cuda_src import operators as op
from cuda_src.exchange import route_splats
from strategies.base import Context
from strategies.distribution.regions import Regions
from strategies.training.optimizer import RowAdam
from strategies.unified.arenas import Arena
from strategies.unified.frames import Frame
from strategies.unified.gradients import GradientReturn
from strategies.unified.push import Addressed, Route, addressed, shown

Truth = tuple[torch.Tensor, torch.Tensor | None]
"""A view's photograph [H, W, 3] uint8 and its mask [H, W] uint8, if it has one."""


class Place:
    """Runs on its own stream alone. number: of the place; arena: its memory."""

    def __init__(self, number: int, ctx: Context, arena: Arena):
        self.number, self.arena = number, arena
        self.training = ctx.training
        # A stream is one thread: kernels inside it add none.
        self.kernels = replace(ctx.kernels, threads=1)
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=arena.device)
        own = None if arena.owns_all_it_sees else arena.at
        self.optimizer = RowAdam(ctx.training, self.kernels, ctx.extent, arena.shared, own)

    def project(self, regions: Regions, degree: int) -> Addressed:
        """Project the rows that lie here, and test which places' tiles each splat meets."""
        arena, kernels, splats, routings = self.arena, self.kernels, [], []
        gaussians, owners = arena.gaussians, regions.owners(arena.device)
        for view, (camera, work) in enumerate(zip(regions.cameras, arena.works, strict=False)):
            rows, bounds = gaussians.parameters, gaussians.bounds(kernels)
            seen = op.project(kernels, rows, gaussians.ids, camera, degree, work, bounds=bounds)
            limit = self._limit(regions, view)
            routing = route_splats(kernels, seen, camera, owners[view], regions.ranks, work, limit)
            if limit is not None:
                seen, routing = shown(seen, routing)
            splats.append(seen)
            routings.append(routing)
        return addressed(splats, routings)

    def bin(self, regions: Regions, route: Route) -> dict[int, tuple[op.Splats, op.Bins]]:
        """Tile lists of this place's tiles from its inbox, by view; views without such tiles are left out."""
        binned = {}
        for view, (camera, work) in enumerate(zip(regions.cameras, self.arena.works, strict=False)):
            tiles = regions.of(self.number, view)
            if len(tiles):
                splats = route.received(view, self.number)
                limit = self._limit(regions, view)
                binned[view] = splats, op.bin_splats(self.kernels, splats, camera, work, tiles, depth_limit=limit)
        return binned

    def composite(self, regions: Regions, binned: Mapping[int, tuple[op.Splats, op.Bins]]) -> dict[int, Frame]:
        """The pixels of this place, by view."""
        frames = {}
        for view, (splats, bins) in binned.items():
            camera, work = regions.cameras[view], self.arena.works[view]
            raster = op.raster_forward(self.kernels, splats, bins, camera, work, background=self.background)
            frames[view] = Frame(splats, bins, raster, raster.colour)
        return frames

    def losses(self, frames: Mapping[int, Frame], truths: Sequence[Truth]) -> dict[int, op.Loss]:
        """Loss of this place's tiles and its gradient, by view; the halo must have been read."""
        losses, weight = {}, self.training.ssim_weight
        for view, frame in frames.items():
            (target, mask), work = truths[view], self.arena.works[view]
            losses[view] = op.l1_ssim(
                self.kernels, frame.image, target, work, mask, frame.bins.tiles, ssim_weight=weight
            )
        return losses

    def raster_backward(
        self, regions: Regions, frames: Mapping[int, Frame], losses: Mapping[int, op.Loss], back: GradientReturn
    ) -> None:
        """Gradients of the splats of the inbox, left where their owners find them."""
        for view, frame in frames.items():
            splats, bins = back.summed_by(frame)
            gradients = op.raster_backward(
                self.kernels,
                splats,
                bins,
                frame.raster,
                regions.cameras[view],
                losses[view].gradient,
                self.arena.works[view],
                self.background,
            )
            back.leave(view, self.number, frame, gradients)

    def project_backward(self, regions: Regions, degree: int, own: Addressed, partials: Sequence[torch.Tensor]) -> None:
        """From the gradients of this place's splats, by view, to those of its rows."""
        for splats, camera, partial, work in zip(own.splats, regions.cameras, partials, self.arena.works, strict=True):
            self.optimizer.add_splats(self.arena.gaussians, splats, camera, degree, partial, work)

    def optimize(self, images_seen: int) -> None:
        """One optimizer step on the rows that lie here."""
        self.optimizer.step(self.arena.gaussians, images_seen)

    def _limit(self, regions: Regions, view: int) -> torch.Tensor | None:
        """Depth limits of the view's tiles, which are kept on the host, where they are used."""
        limit = regions.limit(view)
        return None if limit is None else limit.to(self.arena.device)
