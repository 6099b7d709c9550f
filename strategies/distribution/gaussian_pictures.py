"""Pictures on Gaussian-level exchange: every rank owns Gaussians and renders pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
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
from strategies.distribution.image_gathering import gather_image
from strategies.distribution.ownership import owned_ids
from strategies.distribution.passage_rooms import PassageRoom, PassageRooms
from strategies.distribution.placed_regions import PlacedRegionsKept
from strategies.distribution.regions import Regions
from strategies.distribution.segment_time import SegmentTime
from strategies.distribution.share import Picture, Share
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
        # Of training, and of two pictures at a time: one that is too small leaves the other as it is.
        self.overflow, *self.picture_flags = torch.zeros((3, 1), dtype=torch.int32, device=self.device)
        if self.rooms is not None:
            self.overflow = self.rooms.overflow
        self.batch_rooms = PassageRooms()
        self.taped = Taped((*self.workspaces, self.shared))
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
        """While a picture is composited the next one's records are on their way, and nobody waits for their counts."""
        self.settle()
        places = cycle(zip((self.shared, self.workspaces[0]), self.picture_flags, strict=True))
        begun: Picture | None = None

        def composite(picture: Picture) -> None:
            self._composite([picture.share])

        def depart(picture: Picture) -> None:
            self._depart([picture.share])

        try:
            for camera in cameras:
                following = self._begin_picture(camera, *next(places))
                if begun is not None:
                    self._go_on("composite", begun, composite)
                self._go_on("depart", following, depart)
                done, begun = begun, following
                if done is not None:
                    yield self._finished(done)
            if begun is not None:
                self._go_on("composite", begun, composite)
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

        def begin() -> Share:
            (share,) = self._embark([view], regions, [work], degree, rooms or (None,), flag=flag)
            return share

        if rooms is None or not self._tapes:
            return Picture(regions, begin())
        same = regions, work, self.gaussians, self.gaussians.bounds(self.ctx.kernels), *rooms
        key = view, int(flag is self.picture_flags[1])
        return Picture(regions, self.taped.do(("begin", *key), same, (degree,), begin), key)

    def _go_on(self, how: str, picture: Picture, do: Callable[[Picture], Made]) -> Made:
        """The next thing to do for a picture, from its tape if it began from one."""
        if picture.key is None:
            return do(picture)
        return self.taped.do((how, *picture.key), (picture.share,), (), lambda: do(picture))

    @property
    def _tapes(self) -> bool:
        """Whether what comes again may be played: nobody looks at single stages."""
        return not (self.ctx.clock.watched or self.segment_time.wanted)

    def _finished(self, picture: Picture) -> torch.Tensor | None:
        """A picture that has been composited; once more, by exact counts, if any rank had too little room for it."""
        share = picture.share
        if share.room is not None:
            share.passage.settle(share.passage.counted, returned=False)
            if not share.room.holds(share.passage.counts):
                picture = self._begin_picture(share.camera, share.work, share.overflow, with_room=False)
                share = picture.share
                self._depart([share])
                self._composite([share])
        if share.view is not None:
            self._learn_rooms([share.view], picture.regions, [share])
            self.balance.learn_work([share.view], picture.regions, [share.cost])
        self.segment_time.take()  # A forward alone is not what a step's seconds are compared with.
        whole = self._go_on("gather", picture, self._gather)
        return None if whole is None else whole.clamp(0, 1)

    def _gather(self, picture: Picture) -> torch.Tensor | None:
        share = picture.share
        return gather_image(self.comm, picture.regions, share.raster.colour, share.work)

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
        rooms: Sequence[PassageRoom | None] = (None,),
        stage: str = "exchange_forward",
        flag: torch.Tensor | None = None,
    ) -> list[Share]:
        """Project this rank's Gaussians for every view, and pack each splat for the ranks whose tiles it touches.

        Nobody waits: what the host does before `_depart` costs nothing as long as the device has this to do.
        """
        placed, turns, shares = self.placed.of(regions), self._turns(regions, rooms), []
        for number, (view, camera, work, room) in enumerate(zip(views, regions.cameras, works, rooms, strict=True)):
            tiles, owners, limit = placed.tiles[number], placed.owners[number], regions.limit(number)
            overflow = self.overflow if flag is None else flag
            shares.append(Share(number, turns, view, camera, degree, tiles, owners, limit, work, room, overflow))
        for number in turns.orders[self.comm.rank]:
            self._pack(shares[number], self._room(shares[number]), stage)
        for share in shares:
            if share.room is not None:
                share.passage.count()
        return shares

    def _turns(self, regions: Regions, rooms: Sequence[PassageRoom | None]) -> Turns:
        """Where the host reads counts it does so view by view, and all ranks deal with the same."""
        if None in rooms:
            return Turns.alike(self.comm.ranks, len(regions.cameras))
        turns = self.placed.of(regions).turns
        # How much returns of a view the host may have to ask for, view by view.
        return turns.returning_alike if self.exchange.codec.moves_own else turns

    def _depart(self, shares: Sequence[Share]) -> None:
        """Start the exchanges of records: one view's cross while the next is still projected, and this rank's own are
        listed."""
        if shares[0].room is not None:
            with self.ctx.clock(shares[0].passage.stage):
                Passage.depart_in_turns([share.passage for share in shares], shares[0].turns)
            for share in shares:
                self._begin_list(share)
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

    def _begin_list(self, share: Share) -> None:
        """Of this rank's own records, before those of others are there; a share with a room."""
        splats, own = share.passage.kept
        if own:
            with self.ctx.clock("bin"), self.segment_time.stage():
                self._tile_lists(share, splats).begin(own)

    def _list(self, share: Share) -> None:
        """Instances of this rank's tiles."""
        begun = range(0) if share.room is None else share.passage.kept[1]
        with self.ctx.clock("bin"), self.segment_time.stage():
            share.bins = self._tile_lists(share, share.splats).made(begun)

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
