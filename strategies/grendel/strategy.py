"""`grendel`: every rank owns Gaussians and renders pixels; records cross, parameters stay (Zhao et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.base import Context, ExchangeTrial, GaussianSource, ImageSource
from strategies.distribution.balance import Balance
from strategies.distribution.exchange_trials import trials_of
from strategies.distribution.gaussian_exchange import GaussianExchange
from strategies.distribution.gaussian_level import GaussianLevel
from strategies.distribution.halo import Halo
from strategies.distribution.passage_rooms import PassageRoom
from strategies.distribution.placed_regions import PlacedRegions
from strategies.distribution.share import Share
from strategies.distribution.tile_costs import view_work
from strategies.grendel.info import GrendelOptions
from strategies.info import Options
from strategies.training.late_steps import Plan
from strategies.training.schedule import sh_degree


class Grendel(GaussianLevel):
    """Gaussian-level exchange, the baseline of every claim."""

    @property
    def compute_is_taped(self) -> bool:
        return True

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, GrendelOptions)
        super().setup(ctx, source, images, options)
        self.options = options
        self.min_opacity = options.min_opacity
        self.exchange = GaussianExchange(ctx.comm, ctx.kernels, options.record == "64", options.codec)
        work = view_work(ctx.kernels)
        self.balance = Balance(ctx.comm, options.unit, options.balance, options.balance_batches, work)

    def exchange_trials(self, views: Sequence[int]) -> list[ExchangeTrial]:
        self.settle()
        degree, works = sh_degree(self.ctx.training, self.images_seen), self.workspaces[: len(views)]
        regions = self._regions(views)
        rooms: Sequence[PassageRoom | None] = self._rooms_of(views, regions) or [None] * len(views)
        shares = self._embark(views, regions, works, degree, rooms)
        self._depart(shares)
        for share in shares:
            share.passage.arrive()
            if share.room is not None:
                share.passage.settle(share.passage.counted, returned=False)
        self.segment_time.take()
        return trials_of(self.exchange, [share.passage for share in shares], shares[0].turns)

    def _halo(self, placed: PlacedRegions) -> Halo | None:
        return placed.halo if self.options.ssim_halo == "exact" else None

    def _compute(self, shares: Sequence[Share], halo: Halo | None, plan: Plan) -> None:
        self._raster(shares, halo)
