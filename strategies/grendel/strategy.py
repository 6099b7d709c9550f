"""`grendel`: every rank owns Gaussians and renders pixels; records cross, parameters stay (Zhao et al. 2024)."""

from __future__ import annotations

from strategies.base import Context, GaussianSource, ImageSource, StepReport
from strategies.distribution.balance import Balance
from strategies.distribution.gaussian_exchange import GaussianExchange
from strategies.distribution.gaussian_level import GaussianLevel
from strategies.grendel.info import GrendelOptions
from strategies.info import Options
from strategies.views import ViewQueue


class Grendel(GaussianLevel):
    """Gaussian-level exchange, the baseline of every claim."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, GrendelOptions)
        super().setup(ctx, source, images, options)
        self.options = options
        self.min_opacity = options.min_opacity
        self.exchange = GaussianExchange(ctx.comm, pad=options.record == "64", codec=options.codec)
        self.balance = Balance(ctx.comm, options.unit, options.balance, options.balance_batches)

    def step(self, queue: ViewQueue) -> StepReport:
        ctx, clock = self.ctx, self.ctx.clock
        views = queue.take(queue.peek(ctx.batch))
        regions = self._limited(views, self.balance.cut(views, [ctx.cameras[v] for v in views]))
        self._segment_seconds = 0.0
        received, route = self._exchange_splats(regions, self.workspaces)
        rendered = self._raster(views, regions, received, self.options.ssim_halo)
        with clock("exchange_backward"):
            partials = self.exchange.backward(route, rendered.gradients, views)
        self._update(regions, route, partials)
        with clock("rebalance"):
            self.balance.learn(views, regions, self._segment_seconds, rendered.work)
            self._learn_occlusion(views, regions, rendered.rasters)
            self._redistribute()
        visible = sum(s.count for s in route.splats)
        return StepReport(ctx.batch, 1, rendered.loss, visible, rendered.instances)
