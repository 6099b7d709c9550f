"""Pictures on Gaussian-level exchange: every rank owns Gaussians and renders pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from typing import TypeVar

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.exchange import check_ids, route_splats, take_records
from cuda_src.workspace import Workspace
from strategies.base import Context, GaussianSource, ImageSource, Strategy
from strategies.distribution.balance import Balance
from strategies.distribution.exchange_options import ExchangeOptions
from strategies.distribution.gaussian_exchange import GaussianExchange, Passage
from strategies.distribution.image_gathering import Gathering, gather_image
from strategies.distribution.ownership import owned_ids
from strategies.distribution.passage_rooms import PassageRoom, PassageRooms
from strategies.distribution.placed_regions import PlacedRegionsKept
from strategies.distribution.regions import Regions
from strategies.distribution.segment_time import SegmentTime
from strategies.distribution.share import Pictures, Share
from strategies.distribution.taped import Taped
from strategies.distribution.tile_costs import tile_work
from strategies.distribution.tile_lists import TileLists
from strategies.distribution.turns import Turns
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.training.occlusion import OcclusionHistory
from strategies.training.rooms import Rooms
from strategies.training.schedule import sh_degree

Made = TypeVar("Made")

SETTLED_VISITS = 6
"""The first is by exact counts; then rooms are made, perhaps twice, then tapes, and launches become graphs."""


class GaussianPictures(Strategy):
    """Owns rows, renders regions; a subclass sets `balance` and `exchange` up, and trains."""

    balance: Balance
    exchange: GaussianExchange
    min_opacity = 0.0

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, ExchangeOptions)
        self.ctx, self.images, self.comm = ctx, images, ctx.comm
        self.device = ctx.world.devices[0]
        ids = owned_ids(options.ownership, source, ctx.world.rank, ctx.world.ranks, ctx.seed, self.device)
        check_ids(ctx.kernels, ids)
        self.gaussians = Gaussians.from_source(source, ids, self.device, ctx.kernels.dtype)
        # A workspace a view of the step: what its forward leaves lives until its backward.
        self.workspaces = [Workspace(self.device, f"view {number}") for number in range(ctx.batch)]
        self.shared = Workspace(self.device, "shared")
        self.occlusion = OcclusionHistory(ctx.training)
        # Hidden Gaussians are taken out of a view's splats by number, which the host must know.
        self.rooms = Rooms[int](self.device) if ctx.kernels.takes_rooms and not self.occlusion.on else None
        # Of pictures that are under way at a time, and of those that follow.
        together = min(ctx.batch, ctx.world.ranks)
        more = [Workspace(self.device, f"picture {number}") for number in range(together - 1)]
        self.picture_places = [self.shared, *more], self.workspaces[:together]
        # Of training, and of either: a room that is too small leaves the others as they are.
        self.overflow, *self.picture_flags = torch.zeros((3, 1), dtype=torch.int32, device=self.device)
        if self.rooms is not None:
            self.overflow = self.rooms.overflow
        self.batch_rooms = PassageRooms()
        self.all_workspaces = (*self.workspaces, self.shared, *more)
        self.taped = Taped(self.all_workspaces)
        self.placed = PlacedRegionsKept(ctx.world.rank, self.device)
        self.segment_time = SegmentTime(ctx.comm, options.balance == "measured")
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=self.device)
        self._view_numbers = {id(camera): view for view, camera in enumerate(ctx.cameras)}
        self._images_seen = 0

    @property
    def _reads_counts(self) -> bool:
        """The host has to: kernels take no rooms, or a codec does not."""
        return self.rooms is None or not self.exchange.codec.takes_rooms

    def _rooms_of(self, views: Sequence[int], regions: Regions) -> list[PassageRoom] | None:
        return None if self._reads_counts else self.batch_rooms.of(views, regions)

    def _learn_rooms(self, views: Sequence[int], regions: Regions, shares: Sequence[Share]) -> None:
        if not self._reads_counts:
            self.batch_rooms.learn(views, regions, [share.passage.counts for share in shares])

    def render(self, camera: Camera) -> torch.Tensor | None:
        (picture,) = self.pictures([camera])
        return picture

    def pictures(self, cameras: Iterable[Camera]) -> Iterator[torch.Tensor | None]:
        """As many at a time as a step has views, but not more than there are ranks: each may then render a whole one.

        While some are composited the next ones' records are on their way, and nobody waits for their counts; images
        cross to rank 0 meanwhile too.
        """
        self.settle()
        places = cycle(zip(self.picture_places, self.picture_flags, strict=True))
        every = iter(cameras)
        batches = iter(lambda: tuple(islice(every, len(self.picture_places[0]))), ())
        begun: Pictures | None = None
        crossing: tuple[Pictures, list[Gathering]] | None = None
        try:
            for batch in chain(batches, ((), ())):
                following = self._begin_pictures(batch, *next(places)) if batch else None
                if begun is not None:
                    self._go_on("composite", begun, lambda these: self._composite(these.shares))
                if following is not None:
                    self._go_on("depart", following, lambda these: self._depart(these.shares, list_own=False))
                done, begun = begun, following
                before, crossing = crossing, None if done is None else self._gather(self._checked(done))
                if before is not None:
                    yield from self._gathered(*before)
        finally:  # Nobody wants what is left; its memory is free once it is there.
            if begun is not None:
                for share in begun.shares:
                    share.passage.arrive()
            if crossing is not None:
                self._gathered(*crossing)

    def _begin_pictures(
        self, cameras: Sequence[Camera], works: Sequence[Workspace], flag: torch.Tensor, with_rooms: bool = True
    ) -> Pictures:
        """Project and pack what others need of some pictures."""
        views = [self._view_numbers.get(id(camera)) for camera in cameras]
        known = [view for view in views if view is not None]
        regions = self.balance.cut([-1 if view is None else view for view in views], cameras)
        rooms = self._rooms_of(known, regions) if with_rooms and len(known) == len(views) else None
        flag.zero_()  # Of pictures before: counts say as much.
        degree = sh_degree(self.ctx.training, self._images_seen)

        def begin() -> tuple[Share, ...]:
            return tuple(self._embark(views, regions, works[: len(views)], degree, rooms, flag=flag))

        if rooms is None or not self._tapes:
            return Pictures(regions, begin())
        same = regions, *works, self.gaussians, self.gaussians.bounds(self.ctx.kernels), *rooms
        key = *views, flag is self.picture_flags[1]
        return Pictures(regions, self.taped.do(("begin", *key), same, (degree,), begin), key)

    def _go_on(self, how: str, pictures: Pictures, do: Callable[[Pictures], Made]) -> Made:
        """The next thing to do for some pictures, from its tape if they began from one."""
        if pictures.key is None:
            return do(pictures)
        return self.taped.do((how, *pictures.key), pictures.shares, (), lambda: do(pictures))

    @property
    def _tapes(self) -> bool:
        """Whether what comes again may be played: nobody looks at single stages."""
        return not (self.ctx.clock.watched or self.segment_time.wanted)

    def _checked(self, pictures: Pictures) -> Pictures:
        """Pictures that have been composited; once more, by exact counts, if any rank had too little room for one."""
        shares, enough = pictures.shares, True
        for share in shares:
            if share.room is not None:
                share.passage.settle(share.passage.counted, returned=False)
                enough = enough and share.room.holds(share.passage.counts)
        if not enough:
            cameras, works = [share.camera for share in shares], [share.work for share in shares]
            pictures = self._begin_pictures(cameras, works, shares[0].overflow, with_rooms=False)
            shares = pictures.shares
            self._depart(shares)
            self._composite(shares)
        views = [share.view for share in shares if share.view is not None]
        if len(views) == len(shares):
            self._learn_rooms(views, pictures.regions, shares)
            self.balance.learn_work(views, pictures.regions, [share.cost for share in shares])
        self.segment_time.take()  # A forward alone is not what a step's seconds are compared with.
        return pictures

    def _gather(self, pictures: Pictures) -> tuple[Pictures, list[Gathering]]:
        """Their images on their way to rank 0."""

        def gather(these: Pictures) -> list[Gathering]:
            images = [(share.number, share.raster.colour, share.work) for share in these.shares]
            return [gather_image(self.comm, these.regions, *image) for image in images]

        return pictures, self._go_on("gather", pictures, gather)

    def _gathered(self, pictures: Pictures, coming: Sequence[Gathering]) -> list[torch.Tensor | None]:
        """Those images."""
        images = self._go_on("gathered", pictures, lambda _: [image.whole() for image in coming])
        return [None if image is None else image.clamp(0, 1) for image in images]

    @property
    def visits_to_settle(self) -> int:
        return 0 if self._reads_counts else SETTLED_VISITS

    @property
    def images_seen(self) -> int:
        return self._images_seen

    def _embark(
        self,
        views: Sequence[int | None],
        regions: Regions,
        works: Sequence[Workspace],
        degree: int,
        rooms: Sequence[PassageRoom | None] | None = None,
        stage: str = "exchange_forward",
        flag: torch.Tensor | None = None,
    ) -> list[Share]:
        """Project this rank's Gaussians for every view, and pack each splat for the ranks whose tiles it touches.

        Nobody waits: what the host does before `_depart` costs nothing as long as the device has this to do.
        """
        rooms = [None] * len(views) if rooms is None else rooms
        placed, turns, shares = self.placed.of(regions), self._turns(regions, rooms), []
        overflow = self.overflow if flag is None else flag
        for number, (view, camera, work, room) in enumerate(zip(views, regions.cameras, works, rooms, strict=True)):
            tiles, owners, limit = placed.tiles[number], placed.owners[number], regions.limit(number)
            whole = placed.whole[number] if limit is None and self.min_opacity == 0 else None
            berth = None if room is None else self.exchange.berth(work, room, whole)
            shares.append(Share(number, turns, view, camera, degree, tiles, owners, limit, work, overflow, berth))
        for number in turns.orders[self.comm.rank]:
            self._pack(shares[number], self._room(shares[number]), stage)
        return shares

    def _turns(self, regions: Regions, rooms: Sequence[PassageRoom | None]) -> Turns:
        """Where the host reads counts it does so view by view, and all ranks deal with the same."""
        if None in rooms:
            return Turns.alike(self.comm.ranks, len(regions.cameras))
        turns = self.placed.of(regions).turns
        # How much returns of a view the host may have to ask for, view by view.
        return turns.returning_alike if self.exchange.codec.moves_own else turns

    def _depart(self, shares: Sequence[Share], list_own: bool = True) -> None:
        """Start the exchanges of records: one view's cross while the next is still projected, and this rank's own are
        listed meanwhile, where list_own."""
        if shares[0].room is not None:
            with self.ctx.clock(shares[0].passage.stage):
                Passage.depart_in_turns([share.passage for share in shares], shares[0].turns)
            for share in shares if list_own else ():
                self._begin_list(share)
            for share in shares:  # A copy to the host holds the device up, which now waits for others anyway.
                share.passage.count()
            return
        for share in shares:
            stage = share.passage.stage
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
            rows, ids, bounds = self.gaussians.parameters, self.gaussians.ids, self.gaussians.bounds(kernels)
            into = None if share.berth is None else share.berth.into
            splats = op.project(kernels, rows, ids, camera, share.degree, work, room, bounds, into=into)
            if share.limit is not None:
                anywhere = torch.zeros_like(share.owners)
                shown = route_splats(kernels, splats, camera, anywhere, 1, work, share.limit).splats_to(0)
                records = take_records(kernels, work, "exchange.shown", len(shown)).copy_(splats.records[shown])
                splats = op.Splats(splats.rows[shown], splats.ids[shown], records)
        with self.ctx.clock(stage):
            share.passage = Passage(
                self.exchange, splats, camera, share.owners, work, share.limit, self.min_opacity, stage, share.berth
            )

    def _room(self, share: Share) -> op.Room | None:
        """What the view's splats needed at its last visit, where kernels can make use of it."""
        if share.berth is not None:
            into, splats = share.berth.into, share.berth.room.splats[self.comm.rank]
            return op.Room(splats if into is None else len(into), 0, share.overflow)
        rooms = None if self.rooms is None or share.view is None else self.rooms.of([share.view])
        return None if rooms is None else rooms[0]

    def _composite(self, shares: Sequence[Share]) -> None:
        """Composite this rank's tiles of every view, as their records arrive; other pixels hold zeros."""
        for share in shares:
            with self.ctx.clock(share.passage.stage):
                share.splats = share.passage.arrive()
            self._list(share)
            self._raster_forward(share)

    def _begin_list(self, share: Share) -> None:
        """Of this rank's own records, before those of others are there; a share with a room."""
        splats, own = share.passage.kept
        if own:
            with self.ctx.clock("bin"), self.segment_time.stage():
                self._tile_lists(share, splats).begin(own)
            share.begun = own

    def _list(self, share: Share) -> None:
        """Instances of this rank's tiles."""
        with self.ctx.clock("bin"), self.segment_time.stage():
            share.bins = self._tile_lists(share, share.splats).made(share.begun)

    def _tile_lists(self, share: Share, splats: op.Splats) -> TileLists:
        room = share.room
        instances = share.passage.told.instances if room is None else room.instances_at(self.comm.rank)
        kernels, overflow = self.ctx.kernels, share.overflow
        return TileLists(kernels, splats, instances, overflow, share.camera, share.tiles, share.work, share.limit)

    def _raster_forward(self, share: Share) -> None:
        with self.ctx.clock("raster_forward"), self.segment_time.stage():
            share.raster = op.raster_forward(
                self.ctx.kernels, share.splats, share.bins, share.camera, share.work, background=self.background
            )
        share.cost = lambda: tile_work(share.raster, share.bins, share.camera)
