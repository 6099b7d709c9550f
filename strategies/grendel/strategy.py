"""`grendel`: every rank owns Gaussians and renders pixels; records cross, parameters stay (Zhao et al. 2024)."""

from __future__ import annotations

from strategies.base import Context, GaussianSource, ImageSource, StepReport
from strategies.distribution.balance import Balance
from strategies.distribution.gaussian_exchange import GaussianExchange
from strategies.distribution.gaussian_level import GaussianLevel
from strategies.distribution.halo import halo_of_regions
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
        self.exchange = GaussianExchange(ctx.comm, ctx.kernels, options.record == "64", options.codec)
        self.balance = Balance(ctx.comm, options.unit, options.balance, options.balance_batches)

    def step(self, queue: ViewQueue) -> StepReport:
        views = queue.take(queue.peek(self.ctx.batch))
        regions = self._limited(views, self.balance.cut(views, [self.ctx.cameras[v] for v in views]))
        shares = self._embark(views, regions, self.workspaces)
        halo = halo_of_regions(regions, self.comm.rank) if self.options.ssim_halo == "exact" else None
        self._depart(shares)
        self._raster(shares, halo)
        self._update(shares)
        with self.ctx.clock("rebalance"):
            self._learn(views, regions, shares)
            self._redistribute()
        return self._report(shares)
