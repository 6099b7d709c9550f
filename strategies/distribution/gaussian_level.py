"""What strategies on Gaussian-level exchange share: a step, in which records cross and their gradients return."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from cuda_src import operators as op
from cuda_src.exchange import check_ids
from cuda_src.tape import act
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport
from strategies.distribution.exchange_options import ExchangeOptions
from strategies.distribution.gaussian_pictures import GaussianPictures
from strategies.distribution.halo import Halo, HaloExchange
from strategies.distribution.host_copies import HostCopies
from strategies.distribution.late_batches import LateBatch, outcome_of
from strategies.distribution.migration import migrate
from strategies.distribution.ownership import dealt_owners, random_owners
from strategies.distribution.passage_rooms import PassageRoom
from strategies.distribution.placed_regions import PlacedRegions
from strategies.distribution.regions import Regions
from strategies.distribution.share import Share
from strategies.distribution.taped import addresses
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.training.late_steps import Outcome, Plan, StepQueue, report_of
from strategies.training.optimizer import RowAdam
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue


class GaussianLevel(GaussianPictures):
    """Trains what it owns; a subclass sets `balance` and `exchange` up, and says how it computes.

    Where kernels take rooms and gradients return as they are, a batch that was visited before is queued without waiting
    for any count (strategies/distribution/late_batches.py); whatever reads the Gaussians settles such batches first.
    """

    @property
    def compute_is_taped(self) -> bool:
        """Whether all that `_compute` does is done by `act`, so that a batch that comes again is played from a tape."""
        return False

    @abstractmethod
    def _halo(self, placed: PlacedRegions) -> Halo | None:
        """The pixels that windows of the loss need from other ranks; None where they need none."""

    @abstractmethod
    def _compute(self, shares: Sequence[Share], halo: Halo | None, plan: Plan) -> None:
        """Forward, loss and backward of this rank's tiles of every view. shares: in the order in which they arrive."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, ExchangeOptions)
        super().setup(ctx, source, images, options)
        self.optimizer = RowAdam(ctx.training, ctx.kernels, ctx.extent, self.shared)
        self.late = None if self.rooms is None else StepQueue(self.overflow, self._exactly)
        self.copies = HostCopies()
        self._redistribution = options.redistribute, options.redistribute_images

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
        passages, losses = [share.passage for share in shares], [share.loss for share in shares]
        return LateBatch(plan, regions, passages, losses, self._flag, self.batch_rooms)

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
            self._compute([shares[number] for number in shares[0].turns.back.orders[self.comm.rank]], halo, plan)
            self._update(shares, images_seen)
            return shares

        taped = self.compute_is_taped and self.optimizer.moves_own_first and self._tapes
        if None in rooms or not taped:
            return do()
        self.optimizer.pace(images_seen)
        same = regions, self.gaussians, self.gaussians.bounds(self.ctx.kernels), *rooms
        return self.taped.do(plan.views, same, (degree, *addresses(truths)), do)

    def _regions(self, views: Sequence[int]) -> Regions:
        """Who renders what of the batch, and how deep, from what the last visits say."""
        regions = self.balance.cut(views, [self.ctx.cameras[view] for view in views])
        return replace(regions, limits=tuple(map(self.occlusion.limits, views))) if self.occlusion.on else regions

    def settle(self) -> None:
        if self.late is not None:
            self.late.settle()

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
    def tensor_bytes(self) -> list[int]:
        works = sum(w.peak_bytes for w in self.all_workspaces)
        return [self.gaussians.bytes + works + self.exchange.codec.bytes + self.placed.bytes]

    def statistics(self) -> dict[str, float]:
        counts = torch.tensor([self.exchange.zeros, self.exchange.records], dtype=torch.float64)
        zeros, records = self.comm.reduce("statistics", counts).tolist()
        self.exchange.clear()
        return {"zero_gradient_share": zeros / records} if records else {}

    def _all_listed(self, shares: Sequence[Share]) -> None:
        """Whether any room was too small is known from here on; it is on its way to the host while the device goes on,
        or waits for others."""

        def copy() -> None:
            self._flag = self.copies.start(self.overflow)

        if shares[0].room is not None:
            act(copy)

    def _raster(self, shares: Sequence[Share], halo: Halo | None, window: op.LossWindow = op.WHOLE_IMAGE) -> None:
        """Forward, loss and backward of this rank's tiles, an operator each; gradients leave as they are made.

        halo: the pixels that windows need from other ranks; None cuts windows, or they are such as need none.
        """
        kernels, weight = self.ctx.kernels, self.ctx.training.ssim_weight
        whole = halo is not None or window.kind != "exact"
        self._composite(shares)
        self._all_listed(shares)
        coming = None
        if halo is not None:
            pictures = [share.raster.colour for share in sorted(shares, key=lambda share: share.number)]
            with self.ctx.clock("exchange_loss"):
                coming = HaloExchange(self.comm, "exchange_loss", halo, pictures, self.shared)
        for share in shares:
            camera, work, image = share.camera, share.work, share.raster.colour
            if coming is not None:
                with self.ctx.clock("exchange_loss"):  # For views that are cut alone: others hide the wait.
                    coming.wait_for(share.number)
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
        if coming is not None:
            with self.ctx.clock("exchange_loss"):
                coming.wait()

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

        Where kernels move rows at once, those of splats that went to no other rank move while gradients cross, and
        beside them those whose gradients have come.
        """
        clock, own_first = self.ctx.clock, self.exchange.keeps_gradients and self.optimizer.moves_own_first
        with clock("exchange_backward"):
            for share in shares:
                share.passage.proceed()
        rest: AbstractContextManager[None] = nullcontext()
        if own_first:
            for share in shares:
                self._add(share, *share.passage.kept_gradients())
            with clock("optimize"):
                self.optimizer.find(self.gaussians, images_seen)
                if not clock.watched:  # Stages that are looked at follow one another.
                    rest = self.comm.fork()
                self.optimizer.step_own(self.gaussians, images_seen)
        with rest:
            for share in shares:
                with clock("exchange_backward"):
                    partial = share.passage.collect()
                if not own_first:
                    self._add(share, partial)
            with clock("optimize"):
                self.optimizer.step(self.gaussians, images_seen)

    def _add(self, share: Share, partial: torch.Tensor, kept: op.Kept | None = None) -> None:
        """Tell the optimizer of a view's gradients, [V, GRADIENT]. kept: as of `Seen`; None where all wait."""
        splats, camera, degree = share.passage.splats, share.camera, share.degree
        with self.ctx.clock("project_backward"):
            self.optimizer.add_splats(self.gaussians, splats, camera, degree, partial, share.work, kept=kept)

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
