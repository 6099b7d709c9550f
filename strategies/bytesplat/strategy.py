"""`bytesplat`: Grendel's exchange with less traffic on and between chips."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src import operators as op
from cuda_src.camera import TILE
from strategies.base import Context, GaussianSource, ImageSource, StepReport
from strategies.bytesplat.info import BytesplatOptions, refuses_training
from strategies.bytesplat.pruning import Pruner, Sight, capacity, list_lengths
from strategies.distribution.balance import Balance
from strategies.distribution.gaussian_exchange import GaussianExchange
from strategies.distribution.gaussian_level import GaussianLevel, Rendered
from strategies.distribution.regions import Regions, cut_regions
from strategies.info import Options
from strategies.randomness import uniform
from strategies.views import ViewQueue

_STREAM_JITTER = 3


class ByteSplat(GaussianLevel):
    """Fused raster, sparse gradients and hardware-aware pruning, each of them an option."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, BytesplatOptions)
        if refusal := refuses_training(options, ctx.training):
            raise ValueError(refusal)
        super().setup(ctx, source, images, options)
        self.options = options
        self.exchange = GaussianExchange(ctx.comm, pad=options.record == "64", codec=options.codec)
        self.balance = Balance(ctx.comm, options.unit_of(ctx.comm.ranks, ctx.batch), options.balance)
        self.capacity = capacity(options.budget, options.record_bytes)
        self._pruned = options.prune == "off"
        self._lists = torch.zeros(3, dtype=torch.float64)

    def step(self, queue: ViewQueue) -> StepReport:
        ctx, clock = self.ctx, self.ctx.clock
        if not self._pruned and self._images_seen >= self.options.prune_images:
            self._prune(queue.views)
        views = queue.take(queue.peek(ctx.batch))
        regions = self._limited(views, self.balance.cut(views, [ctx.cameras[v] for v in views]))
        self._segment_seconds = 0.0
        received, route = self._exchange_splats(regions, self.workspaces)
        if self.options.raster == "fused":
            rendered = self._raster_fused(views, regions, received)
        else:
            rendered = self._raster(views, regions, received, window=self._window())
        with clock("exchange_backward"):
            partials = self.exchange.backward(route, rendered.gradients, views)
        self._update(regions, route, partials)
        with clock("rebalance"):
            self._count(rendered)
            self.balance.learn(views, regions, self._segment_seconds, rendered.work)
            self._learn_occlusion(views, regions, rendered.rasters)
            self._redistribute()
        visible = sum(s.count for s in route.splats)
        return StepReport(ctx.batch, 1, rendered.loss, visible, rendered.instances)

    def statistics(self) -> dict[str, float]:
        fitting, fused, tiles = self.comm.reduce("statistics", self._lists).tolist()
        self._lists.zero_()
        shares = {"tiles_in_budget_share": fitting / tiles, "fused_tiles_share": fused / tiles} if tiles else {}
        return super().statistics() | shares

    def _raster_fused(self, views: Sequence[int], regions: Regions, received: Sequence[op.Splats]) -> Rendered:
        """Forward, loss and backward of this rank's tiles in one operator."""
        kernels, weight, window = self.ctx.kernels, self.ctx.training.ssim_weight, self._window()
        losses, gradients, binned, costs = [], [], [], []
        for number, (view, camera, work) in enumerate(zip(views, regions.cameras, self.workspaces, strict=True)):
            splats = received[number]
            bins = self._bin(regions, number, splats, work)
            with self._segment("raster_forward+loss+raster_backward"):
                target, mask = self._truth(view, camera)
                fused = op.raster_fused(
                    kernels, splats, bins, camera, target, work, self.background, mask, weight, window
                )
            losses.append(fused.value)
            gradients.append(fused.gradients)
            binned.append(bins)
            costs.append(fused.contributors + TILE * TILE)
        return Rendered(losses, gradients, binned, costs.__getitem__)

    def _window(self) -> op.LossWindow:
        """The loss's window of this step, the same on all ranks and for all its views."""
        if not self.options.jitter:
            return op.LossWindow(self.options.loss_window)
        counters = 2 * self._images_seen + torch.arange(2)
        x, y = (uniform(self.ctx.seed, _STREAM_JITTER, counters) * op.LOSS_BLOCK).to(torch.int64).tolist()
        return op.LossWindow(self.options.loss_window, (x, y))

    def _count(self, rendered: Rendered) -> None:
        """Tiles whose list fits the budget, tiles that the fused raster handled, and all."""
        lengths = torch.cat([list_lengths(b) for b in rendered.bins])
        fused = len(lengths) if self.options.raster == "fused" else 0
        self._lists += torch.tensor([int((lengths <= self.capacity).sum()), fused, len(lengths)])

    def _prune(self, views: Sequence[int]) -> None:
        """Remove what keeps tile lists over the budget, or as many by importance alone."""
        options, ids = self.options, self.gaussians.ids
        pruner = Pruner(self.comm, self.exchange, self.ctx.kernels, self.shared)
        survey = pruner.survey(views, self._look, self.gaussians.count, self.capacity)
        order = pruner.removable(ids, survey)
        count = pruner.needed(views, self._look, order, survey, self.capacity, options.target_share)
        removed = order[:count] if options.prune == "hardware" else pruner.least_important(ids, survey, count)
        self.gaussians = self.gaussians.rows(~torch.isin(ids.cpu(), removed).to(ids.device))
        self.occlusion.clear()
        self._pruned = True

    def _look(self, view: int) -> Sight:
        """This rank's part of a view, its tiles shared out evenly."""
        camera = self.ctx.cameras[view]
        regions = cut_regions([camera], [torch.ones(camera.tiles)], self.comm.ranks, "block")
        (received,), route = self._exchange_splats(regions, [self.shared], stage="prune")
        bins = op.bin_splats(self.ctx.kernels, received, camera, self.shared, regions.of(self.comm.rank, 0))
        return Sight(camera, route, received, bins)
