"""One place of the aggregate device: what each operator does there, with its own arena and its own inbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from cuda_src import operators as op
from cuda_src.exchange import OVERFLOWED, OWN_SPLATS, OWN_UNDRAWN, route_splats
from cuda_src.layout import RECORD_DEPTH
from strategies.base import Context
from strategies.distribution.host_copies import HostCopies, HostCopy
from strategies.distribution.placed_regions import PlacedRegionsKept
from strategies.distribution.regions import Regions
from strategies.distribution.tile_lists import TileLists
from strategies.training.optimizer import RowAdam
from strategies.training.rooms import Rooms
from strategies.unified.arenas import Arena
from strategies.unified.frames import Frame
from strategies.unified.gradients import GradientReturn
from strategies.unified.pixels import HaloReads
from strategies.unified.push import Addressed, Route, Routed, ViewCounts, addressed

Truth = tuple[torch.Tensor, torch.Tensor | None]
"""A view's photograph [H, W, 3] uint8 and its mask [H, W] uint8, if it has one."""


@dataclass(frozen=True)
class Projected:
    """A place's splats of a batch and where they go, by view, and their counts on the way to the host."""

    views: Sequence[int | None]
    regions: Regions
    degree: int
    rooms: Sequence[op.Room | None]
    found: Sequence[Routed]
    counts: HostCopy


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
        self.rooms = Rooms[int](arena.device)
        self.copies = HostCopies()
        self.placed = PlacedRegionsKept(number, arena.device)
        self.halo = HaloReads(number, ctx.world.devices)

    def project(self, views: Sequence[int | None], regions: Regions, degree: int) -> Projected:
        """Project the rows that lie here, and test which places' tiles each splat meets.

        views: by number; None for one without. The host waits for nothing where kernels take rooms and the views have
        been visited before.
        """
        owners, rooms = self.placed.of(regions).owners, [self._room(view) for view in views]
        found = [self._route(regions, n, owners[n], degree, room) for n, room in enumerate(rooms)]
        return Projected(views, regions, degree, rooms, found, self._counts(found))

    def address(self, projected: Projected) -> Addressed:
        """What comes of it, once the host knows all counts."""
        regions, found = projected.regions, list(projected.found)
        counts = projected.counts.read(_as_numbers)
        for n, (view, room) in enumerate(zip(projected.views, projected.rooms, strict=True)):
            if counts[n][0][OVERFLOWED]:
                self.rooms.overflow.zero_()
                found[n] = self._route(regions, n, self.placed.of(regions).owners[n], projected.degree)
                (counts[n],), room = self._counts([found[n]]).read(_as_numbers), None
            if room is not None:
                found[n] = _in_use(found[n], counts[n])
            if view is not None:
                self.rooms.learn(view, counts[n][0][OWN_SPLATS], 0)
            if regions.limit(n) is not None:
                found[n] = found[n].shown
        return addressed(found, counts)

    def _room(self, view: int | None) -> op.Room | None:
        """For as many splats as the view had at its last visit, where kernels can make use of it."""
        rooms = self.rooms.of([view]) if self.kernels.takes_rooms and view is not None else None
        return None if rooms is None else rooms[0]

    def _route(
        self, regions: Regions, number: int, owners: torch.Tensor, degree: int, room: op.Room | None = None
    ) -> Routed:
        """Splats of one view of the batch and where they go; owners: place of each tile."""
        arena, kernels, camera = self.arena, self.kernels, regions.cameras[number]
        gaussians, work = arena.gaussians, arena.works[number]
        rows, bounds = gaussians.parameters, gaussians.bounds(kernels)
        splats = op.project(kernels, rows, gaussians.ids, camera, degree, work, room, bounds)
        limit = self._limit(regions, number)
        return Routed(splats, route_splats(kernels, splats, camera, owners, regions.ranks, work, limit))

    def _counts(self, found: Sequence[Routed]) -> HostCopy:
        """Of each view, on their way to the host."""
        return self.copies.start(torch.stack([one.routing.counts for one in found]))

    def bin(self, regions: Regions, route: Route) -> dict[int, tuple[op.Splats, op.Bins]]:
        """Tile lists of this place's tiles from its inbox, by view; views without such tiles are left out."""
        binned = {}
        for view, (camera, work) in enumerate(zip(regions.cameras, self.arena.works, strict=False)):
            own = regions.segment(self.number, view)
            if own:
                splats = route.received(view, self.number, self.kernels, work)
                tiles = work.numbers(camera.tiles)[own.start : own.stop]
                instances, limit = route.instances(view, self.number), self._limit(regions, view)
                lists = TileLists(self.kernels, splats, instances, self.rooms.overflow, camera, tiles, work, limit)
                binned[view] = splats, lists.made()
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
        """Depth limits of the view's tiles, which are kept on the first place's device, where they are used."""
        limit = regions.limit(view)
        return None if limit is None else limit.to(self.arena.device)


def _as_numbers(counts: torch.Tensor) -> list[ViewCounts]:
    return counts.tolist()


def _in_use(found: Routed, counts: ViewCounts) -> Routed:
    """Of splats in a room, those that are there and drawn: what `project` gives without one."""
    splats, undrawn = counts[0][OWN_SPLATS], counts[0][OWN_UNDRAWN]
    found = found.those(slice(splats))
    if undrawn:  # Very few, and seldom.
        found = found.those(torch.isfinite(found.splats.records[:, RECORD_DEPTH]).nonzero()[:, 0])
    return found
