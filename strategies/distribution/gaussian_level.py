"""What strategies on Gaussian-level exchange share: every rank owns Gaussians and renders pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.exchange import check_ids, route_splats, take_records
from cuda_src.workspace import Workspace
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport, Strategy
from strategies.distribution.balance import Balance
from strategies.distribution.exchange_options import ExchangeOptions
from strategies.distribution.gaussian_exchange import GaussianExchange, Passage
from strategies.distribution.halo import Halo, exchange_halo
from strategies.distribution.host_copies import HostCopies
from strategies.distribution.image_gathering import gather_image
from strategies.distribution.late_batches import LateBatch, outcome_of
from strategies.distribution.migration import migrate
from strategies.distribution.ownership import dealt_owners, owned_ids, random_owners
from strategies.distribution.passage_rooms import PassageRoom, PassageRooms
from strategies.distribution.placed_regions import PlacedRegions, PlacedRegionsKept
from strategies.distribution.regions import Regions
from strategies.distribution.segment_time import SegmentTime
from strategies.distribution.share import Picture, Share
from strategies.distribution.taped_batches import TapedBatches
from strategies.distribution.tile_costs import tile_work
from strategies.distribution.tile_lists import list_tiles
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.training.late_steps import Outcome, Plan, StepQueue, report_of
from strategies.training.occlusion import OcclusionHistory
from strategies.training.optimizer import RowAdam
from strategies.training.rooms import Rooms
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue


class GaussianLevel(Strategy):
    """Owns rows, renders regions; a subclass sets `balance` and `exchange` up, and says how it computes.

    Where kernels take rooms and gradients return as they are, a batch that was visited before is queued without waiting
    for any count (strategies/distribution/late_batches.py); whatever reads the Gaussians settles such batches first.
    """

    balance: Balance
    exchange: GaussianExchange
    min_opacity = 0.0
    compute_is_taped = False
    """Whether all that `_compute` does is done by `act`, so that a batch that comes again is played from a tape."""

    @abstractmethod
    def _halo(self, placed: PlacedRegions) -> Halo | None:
        """The pixels that windows of the loss need from other ranks; None where they need none."""

    @abstractmethod
    def _compute(self, shares: Sequence[Share], halo: Halo | None, plan: Plan) -> None:
        """Forward, loss and backward of this rank's tiles of every view."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, ExchangeOptions)
        self.ctx, self.images, self.comm = ctx, images, ctx.comm
        self.device = ctx.world.devices[0]
        ids = owned_ids(options.ownership, source, ctx.world.rank, ctx.world.ranks, ctx.seed, self.device)
        check_ids(ctx.kernels, ids)
        self.gaussians = Gaussians.from_source(source, ids, self.device, ctx.kernels.dtype)
        # A workspace a view of the step: what its forward leaves lives until its backward.
        self.workspaces = [Workspace(self.device) for _ in range(ctx.batch)]
        self.shared = Workspace(self.device)
        self.optimizer = RowAdam(ctx.training, ctx.kernels, ctx.extent, self.shared)
        self.occlusion = OcclusionHistory(ctx.training)
        # Hidden Gaussians are taken out of a view's splats by number, which the host must know.
        self.rooms = Rooms[int](self.device) if ctx.kernels.takes_rooms and not self.occlusion.on else None
        # Of training, and of two pictures at a time: one that is too small leaves the other as it is.
        self.overflow, *self.picture_flags = torch.zeros((3, 1), dtype=torch.int32, device=self.device)
        if self.rooms is not None:
            self.overflow = self.rooms.overflow
        self.late = None if self.rooms is None else StepQueue(self.overflow, self._exactly)
        self.batch_rooms = PassageRooms()
        self.taped = TapedBatches((*self.workspaces, self.shared))
        self.copies = HostCopies()
        self.placed = PlacedRegionsKept(ctx.world.rank, self.device)
        self.segment_time = SegmentTime(ctx.comm, options.balance == "measured")
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=self.device)
        self._view_numbers = {id(camera): view for view, camera in enumerate(ctx.cameras)}
        self._redistribution = options.redistribute, options.redistribute_images
        self._images_seen = 0

    def step(self, queue: ViewQueue) -> StepReport:
        self._begin(queue)
        plan = Plan(tuple(queue.take(queue.peek(self.ctx.batch))), self._images_seen)
        self._images_seen += len(plan.views)
        regions = self._regions(plan.views)
        rooms = self._rooms_of(plan.views, regions)
        if self.late is None or rooms is None:
            self.settle()
            done = self._exactly(plan, regions)
            report = StepReport(len(plan.views), 1, done.loss, done.visible_gaussians, done.tile_instances)
        else:
            report = report_of(len(plan.views), self.late.put(self._queued(plan, regions, rooms)))
        with self.ctx.clock("rebalance"):
            self._redistribute()
        return report

    def _begin(self, queue: ViewQueue) -> None:
        """What comes before a step."""

    def _queued(self, plan: Plan, regions: Regions, rooms: Sequence[PassageRoom]) -> LateBatch:
        """A step that nobody has waited for."""
        shares = self._train(plan, regions, rooms)
        flag = self.copies.start(self.overflow)
        passages, losses = [share.passage for share in shares], [share.loss for share in shares]
        return LateBatch(plan, regions, passages, losses, flag, self.batch_rooms)

    def _exactly(self, plan: Plan, regions: Regions | None = None) -> Outcome:
        """One step with the counts that the host reads."""
        regions = regions or self._regions(plan.views)
        shares = self._train(plan, regions, [None] * len(plan.views))
        self._learn_rooms(plan.views, regions, shares)
        return outcome_of([share.passage for share in shares], [share.loss for share in shares])

    def _train(self, plan: Plan, regions: Regions, rooms: Sequence[PassageRoom | None]) -> list[Share]:
        """All views of a step, and the optimizer."""
        shares = self._done(plan, regions, rooms)
        with self.ctx.clock("rebalance"):
            self._learn(plan.views, regions, shares)
        return shares

    def _done(self, plan: Plan, regions: Regions, rooms: Sequence[PassageRoom | None]) -> list[Share]:
        """From projection to the move of the Gaussians; a batch that comes again is played from its tape."""
        degree, images_seen = sh_degree(self.ctx.training, plan.images_seen), plan.images_seen + len(plan.views)
        truths = []
        for view, whole in zip(plan.views, map(Rect.whole, regions.cameras), strict=True):
            truths.append((self.images.region(view, whole, self.device), self.images.mask(view, whole, self.device)))

        def do() -> list[Share]:
            shares = self._embark(plan.views, regions, self.workspaces, degree, rooms)
            for share, truth in zip(shares, truths, strict=True):
                share.truth = truth
            halo = self._halo(self.placed.of(regions))  # While the device projects.
            self._depart(shares)
            self._compute(shares, halo, plan)
            self._update(shares, images_seen)
            return shares

        plain = None in rooms or self.ctx.clock.watched or self.segment_time.wanted
        if plain or not (self.compute_is_taped and self.optimizer.moves_own_first):
            return do()
        self.optimizer.pace(images_seen)
        same = regions, self.gaussians, self.gaussians.bounds(self.ctx.kernels), *rooms
        return self.taped.do(plan.views, same, degree, truths, do)

    @property
    def _reads_counts(self) -> bool:
        """The host has to: kernels take no rooms, or a codec's bytes follow from exact counts."""
        return self.late is None or self.exchange.codec.moves_own

    def _rooms_of(self, views: Sequence[int], regions: Regions) -> list[PassageRoom] | None:
        return None if self._reads_counts else self.batch_rooms.of(views, regions)

    def _learn_rooms(self, views: Sequence[int], regions: Regions, shares: Sequence[Share]) -> None:
        if not self._reads_counts:
            self.batch_rooms.learn(views, regions, [share.passage.counts for share in shares])

    def _regions(self, views: Sequence[int]) -> Regions:
        """Who renders what of the batch, and how deep, from what the last visits say."""
        regions = self.balance.cut(views, [self.ctx.cameras[view] for view in views])
        return replace(regions, limits=tuple(map(self.occlusion.limits, views))) if self.occlusion.on else regions

    def settle(self) -> None:
        if self.late is not None:
            self.late.settle()

    def render(self, camera: Camera) -> torch.Tensor | None:
        (picture,) = self.pictures([camera])
        return picture

    def pictures(self, cameras: Iterable[Camera]) -> Iterator[torch.Tensor | None]:
        """While a picture is composited the next one's records are on their way, and nobody waits for their counts."""
        self.settle()
        places = cycle(zip((self.shared, self.workspaces[0]), self.picture_flags, strict=True))
        begun: Picture | None = None
        try:
            for camera in cameras:
                following = self._begin_picture(camera, *next(places))
                if begun is not None:
                    self._composite([begun.share])
                self._depart([following.share])
                done, begun = begun, following
                if done is not None:
                    yield self._finished(done)
            if begun is not None:
                self._composite([begun.share])
                done, begun = begun, None
                yield self._finished(done)
        finally:
            if begun is not None:  # Nobody wants it; its memory is free once it is there.
                begun.share.passage.arrive()

    def _begin_picture(self, camera: Camera, work: Workspace, flag: torch.Tensor, with_room: bool = True) -> Picture:
        """Project and pack what others need of a picture."""
        view = self._view_numbers.get(id(camera))
        regions = self.balance.cut([-1 if view is None else view], [camera])
        rooms = self._rooms_of([view], regions) if with_room and view is not None else None
        flag.zero_()  # Of a picture before: counts say as much.
        degree = sh_degree(self.ctx.training, self._images_seen)
        (share,) = self._embark([view], regions, [work], degree, rooms or (None,), flag=flag)
        return Picture(regions, share)

    def _finished(self, picture: Picture) -> torch.Tensor | None:
        """A picture that has been composited; once more, by exact counts, if any rank had too little room for it."""
        share = picture.share
        if share.room is not None:
            share.passage.settle(share.passage.counted, returned=False)
            if not share.room.holds(share.passage.counts):
                picture = self._begin_picture(share.camera, share.work, share.overflow, with_room=False)
                self._depart([picture.share])
                self._composite([picture.share])
        regions, share = picture.regions, picture.share
        if share.view is not None:
            self._learn_rooms([share.view], regions, [share])
            self.balance.learn_work([share.view], regions, [share.cost])
        self.segment_time.take()  # A forward alone is not what a step's seconds are compared with.
        whole = gather_image(self.comm, regions, share.raster.colour)
        return None if whole is None else whole.clamp(0, 1)

    def shards(self) -> Iterator[Shard]:
        self.settle()
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        self.settle()
        everything = Gaussians.from_reader(reader, self.device, self.ctx.kernels.dtype)
        check_ids(self.ctx.kernels, everything.ids)
        owner = random_owners(everything.ids, self.comm.ranks, self.ctx.seed, 0)
        self._own(everything.rows(owner == self.comm.rank))
        self.occlusion.clear()

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        works = sum(w.peak_bytes for w in (*self.workspaces, self.shared))
        return [self.gaussians.bytes + works + self.exchange.codec.bytes + self.placed.bytes]

    def statistics(self) -> dict[str, float]:
        counts = torch.tensor([self.exchange.zeros, self.exchange.records], dtype=torch.float64)
        zeros, records = self.comm.reduce("statistics", counts).tolist()
        self.exchange.clear()
        return {"zero_gradient_share": zeros / records} if records else {}

    def _embark(
        self,
        views: Sequence[int | None],
        regions: Regions,
        works: Sequence[Workspace],
        degree: int,
        rooms: Sequence[PassageRoom | None] = (None,),
        stage: str = "exchange_forward",
        flag: torch.Tensor | None = None,
    ) -> list[Share]:
        """Project this rank's Gaussians for every view, and pack each splat for the ranks whose tiles it touches.

        Nobody waits: what the host does before `_depart` costs nothing as long as the device has this to do.
        """
        placed, shares = self.placed.of(regions), []
        for number, (view, camera, work, room) in enumerate(zip(views, regions.cameras, works, rooms, strict=True)):
            tiles, owners, limit = placed.tiles[number], placed.owners[number], regions.limit(number)
            overflow = self.overflow if flag is None else flag
            shares.append(Share(view, camera, degree, tiles, owners, limit, work, room, overflow))
            self._pack(shares[-1], self._room(shares[-1]), stage)
        return shares

    def _depart(self, shares: Sequence[Share]) -> None:
        """Start the exchanges of records: one view's cross while the next is still projected."""
        for share in shares:
            stage = share.passage.stage
            if share.room is not None:
                with self.ctx.clock(stage):
                    share.passage.depart()
                continue
            with self.ctx.clock(stage):
                fits = share.passage.fits
            if not fits:
                self.overflow.zero_()
                self._pack(share, None, stage)
            with self.ctx.clock(stage):
                share.passage.depart()
            if self.rooms is not None and share.view is not None:
                self.rooms.learn(share.view, share.passage.needed, 0)

    def _pack(self, share: Share, room: op.Room | None, stage: str) -> None:
        """Splats of this rank's Gaussians, packed for the ranks that render them.

        What lies behind the limit of each of its tiles is left out of the view: neither sent nor moved.
        """
        kernels, camera, work = self.ctx.kernels, share.camera, share.work
        with self.ctx.clock("project"):
            rows, bounds = self.gaussians.parameters, self.gaussians.bounds(kernels)
            splats = op.project(kernels, rows, self.gaussians.ids, camera, share.degree, work, room, bounds)
            if share.limit is not None:
                anywhere = torch.zeros_like(share.owners)
                shown = route_splats(kernels, splats, camera, anywhere, 1, work, share.limit).splats_to(0)
                records = take_records(kernels, work, "exchange.shown", len(shown)).copy_(splats.records[shown])
                splats = op.Splats(splats.rows[shown], splats.ids[shown], records)
        with self.ctx.clock(stage):
            share.passage = Passage(
                self.exchange, splats, camera, share.owners, work, share.limit, self.min_opacity, stage, share.room
            )

    def _room(self, share: Share) -> op.Room | None:
        """What the view's splats needed at its last visit, where kernels can make use of it."""
        if share.room is not None:
            return op.Room(share.room.splats[self.comm.rank], 0, share.overflow)
        rooms = None if self.rooms is None or share.view is None else self.rooms.of([share.view])
        return None if rooms is None else rooms[0]

    def _composite(self, shares: Sequence[Share]) -> None:
        """Composite this rank's tiles of every view, as their records arrive; other pixels hold zeros."""
        for share in shares:
            with self.ctx.clock(share.passage.stage):
                share.splats = share.passage.arrive()
            self._list(share)
            self._raster_forward(share)

    def _list(self, share: Share) -> None:
        """Instances of this rank's tiles."""
        room = share.room
        with self.ctx.clock("bin"), self.segment_time.stage():
            share.bins = list_tiles(
                self.ctx.kernels,
                share.splats,
                share.passage.told.instances if room is None else room.instances_at(self.comm.rank),
                share.overflow,
                share.camera,
                share.tiles,
                share.work,
                share.limit,
            )

    def _raster_forward(self, share: Share) -> None:
        with self.ctx.clock("raster_forward"), self.segment_time.stage():
            share.raster = op.raster_forward(
                self.ctx.kernels, share.splats, share.bins, share.camera, share.work, background=self.background
            )
        share.cost = lambda: tile_work(share.raster, share.bins, share.camera)

    def _raster(self, shares: Sequence[Share], halo: Halo | None, window: op.LossWindow = op.WHOLE_IMAGE) -> None:
        """Forward, loss and backward of this rank's tiles, an operator each; gradients leave as they are made.

        halo: the pixels that windows need from other ranks; None cuts windows, or they are such as need none.
        """
        kernels, weight = self.ctx.kernels, self.ctx.training.ssim_weight
        whole = halo is not None or window.kind != "exact"
        self._composite(shares)
        with self.ctx.clock("exchange_loss"):
            if halo is not None:
                pictures = [share.raster.colour for share in shares]
                exchange_halo(self.comm, "exchange_loss", halo, pictures, self.shared)
        for share in shares:
            camera, work, image = share.camera, share.work, share.raster.colour
            with self.ctx.clock("loss"), self.segment_time.stage(weight=2.0):
                target, mask = share.truth
                reach: op.Halo = "exact" if whole else "none"
                loss = op.l1_ssim(kernels, image, target, work, mask, share.tiles, reach, weight, window)
                share.keep_loss(loss.value)
            with self.ctx.clock("raster_backward"), self.segment_time.stage():
                gradients = op.raster_backward(
                    kernels, share.splats, share.bins, share.raster, camera, loss.gradient, work, self.background
                )
            self._give_back(share, gradients)

    def _give_back(self, share: Share, gradients: torch.Tensor) -> None:
        """Start the return of a view's gradients, [R, GRADIENT], to the owners of its splats."""
        assert share.view is not None
        with self.ctx.clock("exchange_backward"):
            share.passage.give_back(gradients, share.view)

    def _learn(self, views: Sequence[int], regions: Regions, shares: Sequence[Share]) -> None:
        """Tell all ranks what this rank's tiles cost, and how deep they are to be rendered at the next visit."""
        self.balance.learn(views, regions, self.segment_time.take(), [share.cost for share in shares])
        if not self.occlusion.on:
            return
        mine = [
            self.occlusion.examined(view, share.raster, share.camera, share.tiles)
            for view, share in zip(views, shares, strict=True)
        ]
        # Segments follow one another in rank order: laid end to end they are the batch's list of tiles.
        limits = torch.cat(self.comm.gather("occlusion", torch.cat(mine), lengths=regions.lengths))
        self.occlusion.keep(views, limits.split([c.tiles for c in regions.cameras]))

    def _update(self, shares: Sequence[Share], images_seen: int) -> None:
        """Move this rank's Gaussians by the gradients of its splats of every view. images_seen: with this step's.

        Where kernels move rows at once, those of splats that went to no other rank move while gradients cross.
        """
        clock, own_first = self.ctx.clock, self.exchange.sums_own_first and self.optimizer.moves_own_first
        with clock("exchange_backward"):
            for share in shares:
                share.passage.proceed()
        if own_first:
            for share in shares:
                with clock("exchange_backward"):
                    partial = share.passage.collect_own()
                self._add(share, partial, *share.passage.ranks_of_splats)
            with clock("optimize"):
                self.optimizer.step_own(self.gaussians, images_seen)
        for share in shares:
            with clock("exchange_backward"):
                partial = share.passage.collect()
            if not own_first:
                self._add(share, partial)
        with clock("optimize"):
            self.optimizer.step(self.gaussians, images_seen)

    def _add(self, share: Share, partial: torch.Tensor, ranks: torch.Tensor | None = None, others: int = 0) -> None:
        """Tell the optimizer of a view's gradients, [V, GRADIENT]. ranks, others: as of `Seen`; none where all wait."""
        splats, camera, degree = share.passage.splats, share.camera, share.degree
        with self.ctx.clock("project_backward"):
            self.optimizer.add_splats(
                self.gaussians, splats, camera, degree, partial, share.work, ranks=ranks, others=others
            )

    def _redistribute(self) -> None:
        """Move Gaussians to new owners when due."""
        how, every = self._redistribution
        due = self._images_seen // every > (self._images_seen - self.ctx.batch) // every
        if how == "off" or not due:
            return
        self.settle()
        if how == "random":
            owner = random_owners(self.gaussians.ids, self.comm.ranks, self.ctx.seed, self._images_seen)
        else:
            owner = dealt_owners(self.comm, self.gaussians, self.ctx.bounds)
        self._own(migrate(self.comm, self.ctx.kernels, self.gaussians, owner))

    def _own(self, gaussians: Gaussians) -> None:
        """These Gaussians from here on: what was learnt of the sizes of views no longer holds."""
        self.gaussians = gaussians
        self.batch_rooms.clear()
        self.taped.clear()
        if self.rooms is not None:
            self.rooms.clear()
