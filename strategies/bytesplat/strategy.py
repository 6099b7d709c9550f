"""`bytesplat`: Grendel's exchange with less traffic on and between chips."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from cuda_src import operators as op
from cuda_src.tape import act
from strategies.base import Context, GaussianSource, ImageSource
from strategies.bytesplat.info import BytesplatOptions, refuses_training
from strategies.bytesplat.pruning import Pruner, Sight, capacity, list_lengths
from strategies.distribution.balance import Balance
from strategies.distribution.gaussian_exchange import GaussianExchange
from strategies.distribution.gaussian_level import GaussianLevel
from strategies.distribution.halo import Halo
from strategies.distribution.placed_regions import PlacedRegions
from strategies.distribution.regions import cut_regions
from strategies.distribution.share import Share
from strategies.distribution.tile_costs import view_work, work_of
from strategies.info import Options
from strategies.randomness import uniform
from strategies.training.late_steps import Plan
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue

_STREAM_JITTER = 3


class ByteSplat(GaussianLevel):
    """Fused raster, sparse gradients and hardware-aware pruning, each of them an option."""

    @property
    def compute_is_taped(self) -> bool:
        return self.options.raster == "separate" and not self.options.jitter  # Which the images seen decide.

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, BytesplatOptions)
        if refusal := refuses_training(options, ctx.training):
            raise ValueError(refusal)
        super().setup(ctx, source, images, options)
        self.options = options
        self.exchange = GaussianExchange(ctx.comm, ctx.kernels, options.record == "64", options.codec)
        unit = options.unit_of(ctx.comm.ranks, ctx.batch)
        self.balance = Balance(ctx.comm, unit, options.balance, view_work=view_work(ctx.kernels))
        self.capacity = capacity(options.budget, options.record_bytes)
        self._pruned = options.prune == "off"
        self._lists = torch.zeros(3, dtype=torch.float64, device=self.device)

    def _begin(self, queue: ViewQueue) -> None:
        if not self._pruned and self._images_seen >= self.options.prune_images:
            self.settle()
            self._prune(queue.views)

    def _halo(self, placed: PlacedRegions) -> Halo | None:
        fused = self.options.raster == "fused"
        return None if fused or self.options.loss_window == "l1" else placed.halo

    def _compute(self, shares: Sequence[Share], halo: Halo | None, plan: Plan) -> None:
        window = self._window(plan.images_seen)
        if self.options.raster == "fused":
            self._raster_fused(shares, window)
        else:
            self._raster(shares, halo, window)
        self._count(shares)

    def statistics(self) -> dict[str, float]:
        fitting, fused, tiles = self.comm.reduce("statistics", self._lists).tolist()
        self._lists.zero_()
        shares = {"tiles_in_budget_share": fitting / tiles, "fused_tiles_share": fused / tiles} if tiles else {}
        return super().statistics() | shares

    def _raster_fused(self, shares: Sequence[Share], window: op.LossWindow) -> None:
        """Forward, loss and backward of this rank's tiles in one operator."""
        kernels, weight = self.ctx.kernels, self.ctx.training.ssim_weight
        for share in shares:
            with self.ctx.clock(share.passage.stage):
                share.splats = share.passage.arrive()
            self._list(share)
            with self.ctx.clock("raster_forward+loss+raster_backward"), self.segment_time.stage():
                target, mask = share.truth
                fused = op.raster_fused(
                    kernels, share.splats, share.bins, share.camera, target, share.work, self.background, mask, weight,
                    window,
                )  # fmt: skip
            share.loss, share.cost = fused.value, partial(work_of, fused.contributors, share.bins)
            self._give_back(share, fused.gradients)
        self._all_listed(shares)

    def _window(self, images_seen: int) -> op.LossWindow:
        """The loss's window of a step, the same on all ranks and for all its views."""
        if not self.options.jitter:
            return op.LossWindow(self.options.loss_window)
        counters = 2 * images_seen + torch.arange(2)
        x, y = (uniform(self.ctx.seed, _STREAM_JITTER, counters) * op.LOSS_BLOCK).to(torch.int64).tolist()
        return op.LossWindow(self.options.loss_window, (x, y))

    def _count(self, shares: Sequence[Share]) -> None:
        """Tiles whose list fits the budget, tiles that the fused raster handled, and all."""
        fused = self.options.raster == "fused"

        def count() -> None:
            lengths = torch.cat([list_lengths(share.bins) for share in shares])
            self._lists[0] += (lengths <= self.capacity).sum()
            self._lists[1] += fused * len(lengths)
            self._lists[2] += len(lengths)

        act(count)

    def _prune(self, views: Sequence[int]) -> None:
        """Remove what keeps tile lists over the budget, or as many by importance alone."""
        options, ids = self.options, self.gaussians.ids
        pruner = Pruner(self.comm, self.ctx.kernels, self.shared)
        survey = pruner.survey(views, self._look, self.gaussians.count, self.capacity)
        order = pruner.removable(ids, survey)
        count = pruner.needed(views, self._look, order, survey, self.capacity, options.target_share)
        removed = order[:count] if options.prune == "hardware" else pruner.least_important(ids, survey, count)
        self._own(self.gaussians.rows(~torch.isin(ids, removed)))
        self.occlusion.clear()
        self._pruned = True

    def _look(self, view: int) -> Sight:
        """This rank's part of a view, its tiles shared out evenly."""
        camera = self.ctx.cameras[view]
        regions = cut_regions([camera], [torch.ones(camera.tiles)], self.comm.ranks, "block")
        degree = sh_degree(self.ctx.training, self._images_seen)
        (share,) = shares = self._embark([None], regions, [self.shared], degree, stage="prune")
        self._depart(shares)
        received = share.passage.arrive()
        bins = op.bin_splats(self.ctx.kernels, received, camera, self.shared, share.tiles)
        return Sight(camera, share.passage, received, bins)
