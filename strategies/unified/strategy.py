"""`unified`: one aggregate device. One table over the memory of all places; the model code has no communication."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from cuda_src.camera import Camera
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport, Strategy
from strategies.distribution.cuts import Cuts
from strategies.distribution.regions import Regions
from strategies.distribution.tile_costs import tile_work
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.training.occlusion import OcclusionHistory
from strategies.training.schedule import sh_degree
from strategies.unified.arenas import Streams
from strategies.unified.frames import Frames
from strategies.unified.gradients import GRADIENT_RETURNS
from strategies.unified.info import UnifiedOptions, lacks
from strategies.unified.pixels import enter_reads, read_image
from strategies.unified.place import Place, Truth
from strategies.unified.push import Route
from strategies.unified.table import SharedRows, lay_out
from strategies.views import ViewQueue

T = TypeVar("T")


class Unified(Strategy):
    """Owners project, every place renders one range of the batch's tiles, owners take the gradients back."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, UnifiedOptions)
        if lacking := lacks(options, ctx.world.devices[0].type):
            raise ValueError(lacking)
        self.ctx, self.images, self.options = ctx, images, options
        self.cuts = Cuts(ctx.world.places, "block")
        self.occlusion = OcclusionHistory(ctx.training)
        self._images_seen = 0
        self._release: weakref.finalize | None = None
        host = torch.device("cpu")
        self._allot(source.count, lambda rows: Gaussians.from_source(source, rows, host, ctx.kernels.dtype).tables)

    def step(self, queue: ViewQueue) -> StepReport:
        ctx, clock, ledger, each = self.ctx, self.ctx.clock, self.ctx.comm.ledger, self._each
        views = queue.take(queue.peek(ctx.batch))
        limits = tuple(self.occlusion.limits(view) for view in views)
        regions = replace(self._cut(views, [ctx.cameras[v] for v in views]), limits=limits)
        degree = sh_degree(ctx.training, self._images_seen)
        route = self._push_splats(views, regions, degree)
        frames = self._raster(regions, route)
        with clock("exchange_loss"):
            enter_reads(ledger, "exchange_loss", each(lambda p: p.halo.read(p.placed.of(regions), frames)))
        with clock("loss"):
            devices = ctx.world.devices
            truths = {device: [self._truth(view, device) for view in views] for device in dict.fromkeys(devices)}
            losses = each(lambda p: p.losses(frames[p.number], truths[devices[p.number]]))
        with clock("raster_backward"):
            arenas = [place.arena for place in self.places]
            back = GRADIENT_RETURNS[self.options.exchange](route, arenas, ctx.kernels)
            self._streams.meet()
            each(lambda p: p.raster_backward(regions, frames[p.number], losses[p.number], back))
        with clock("exchange_backward"):
            partials = each(lambda p: [back.collect(view, p.number) for view in range(ctx.batch)])
        # Outside the stage: to count what moved can cost more than to move it.
        moved = back.count_bytes(frames, [place.copies for place in self.places])
        with clock("project_backward"):
            each(lambda p: p.project_backward(regions, degree, route.owners[p.number], partials[p.number]))
        with clock("optimize"):
            self._images_seen += ctx.batch
            each(lambda p: p.optimize(self._images_seen))
        with clock("rebalance"):
            self._learn(views, regions, frames)
        # Known by now, and the GPUs still have what is queued since.
        for place, bytes_to in enumerate(moved()):
            ledger.add("exchange_backward", place, bytes_to)
        visible = sum(splats.count for owner in route.owners for splats in owner.splats)
        instances = sum(frame.bins.instances for of_place in frames for frame in of_place.values())
        home = self.places[0].arena.device
        values = [loss.value.to(home) for of_place in losses for loss in of_place.values()]
        return StepReport(ctx.batch, 1, torch.stack(values).sum() / ctx.batch, visible, instances)

    def render(self, camera: Camera) -> torch.Tensor | None:
        regions = self._cut([-1], [camera])
        route = self._push_splats([None], regions, sh_degree(self.ctx.training, self._images_seen))
        device = self.places[0].arena.device
        image, read = read_image(regions, self._raster(regions, route), view=0, place=0, device=device)
        enter_reads(self.ctx.comm.ledger, "render", [read, *([0] * len(self.places) for _ in self.places[1:])])
        return image.clamp(0, 1)

    def shards(self) -> Iterator[Shard]:
        for place in self.places:
            yield from place.arena.shards()

    def load(self, reader: ShardReader) -> None:
        everything = Gaussians.from_reader(reader, torch.device("cpu"), self.ctx.kernels.dtype)
        self.occlusion.clear()
        by_id = torch.argsort(everything.ids)  # Rows of the table stand for ids.
        self._allot(everything.count, lambda rows: everything.rows(by_id[rows]).tables)

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        return [place.arena.peak_bytes + place.placed.bytes for place in self.places]

    @property
    def mapped_bytes(self) -> list[int]:
        tables = [place.arena.gaussians for place in self.places]
        return [table.mapped_bytes if isinstance(table, SharedRows) else 0 for table in tables]

    def _allot(self, count: int, read: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        """Lay a table of `count` rows out over the places. read: parameters and both moments of some rows."""
        ctx = self.ctx
        if self._release is not None:
            self.places = []
            self._release()
        arenas, release = lay_out(self.options, count, ctx.world.devices, ctx.kernels, ctx.batch)
        # The tables' memory is this strategy's: what leaves it are copies.
        self._release = weakref.finalize(self, release)
        self._release.atexit = False
        for arena in arenas:
            arena.fill(read)
        self.places = [Place(number, ctx, arena) for number, arena in enumerate(arenas)]
        self._streams = Streams(self.places, [arena.device for arena in arenas])

    def _each(self, work: Callable[[Place], T]) -> list[T]:
        """Launch on every place, and join: results by place."""
        return self._streams.join(self._streams.launch(work))

    def _cut(self, views: Sequence[int], cameras: Sequence[Camera]) -> Regions:
        """One range of the batch's tiles a place, by the work that each view was at its last visit."""
        return self.cuts.of(views, cameras, even=self.options.balance == "off")

    def _push_splats(self, views: Sequence[int | None], regions: Regions, degree: int) -> Route:
        """Project on the owners, and store each splat in the inboxes of the places whose tiles it meets."""
        with self.ctx.clock("project"):
            projected = self._each(lambda p: p.project(views, regions, degree))
            owners = self._each(lambda p: p.address(projected[p.number]))
        with self.ctx.clock("exchange_forward"):
            arenas = [place.arena for place in self.places]
            route = Route.reserve(owners, arenas, self.options.record, self.ctx.kernels.dtype)
            self._each(lambda p: route.store(p.number))
            route.enter(self.ctx.comm.ledger, "exchange_forward")
        return route

    def _raster(self, regions: Regions, route: Route) -> Frames:
        """On every place, composite its own tiles of every view from its own inbox."""
        with self.ctx.clock("bin"):
            binned = self._each(lambda p: p.bin(regions, route))
        with self.ctx.clock("raster_forward"):
            return self._each(lambda p: p.composite(regions, binned[p.number]))

    def _truth(self, view: int, device: torch.device) -> Truth:
        """Photograph and mask of the view where places of that device compute."""
        whole = Rect.whole(self.ctx.cameras[view])
        return self.images.region(view, whole, device), self.images.mask(view, whole, device)

    def _learn(self, views: Sequence[int], regions: Regions, frames: Frames) -> None:
        """Keep what each tile cost, and how deep it must be rendered.

        Ranges follow one another in the order of places, as the batch's tiles do.
        """
        parts = [(place, view, of_place[view]) for place, of_place in enumerate(frames) for view in sorted(of_place)]
        if self.options.balance == "work" and self.cuts.due(views):
            works = [tile_work(frame.raster, frame.bins, regions.cameras[view]) for _, view, frame in parts]
            copies = [self.places[place].copies.start(work) for (place, *_), work in zip(parts, works, strict=True)]
            self.cuts.learn(views, regions, lambda: [copy.read(torch.clone) for copy in copies])
        if self.occlusion.on:
            home = self.places[0].arena.device
            limits = [
                self.occlusion.examined(views[view], frame.raster, regions.cameras[view], frame.bins.tiles).to(home)
                for _, view, frame in parts
            ]
            self.occlusion.keep(views, torch.cat(limits).split([c.tiles for c in regions.cameras]))
