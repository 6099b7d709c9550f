"""What strategies on Gaussian-level exchange share: every rank owns Gaussians and renders pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workspace import Workspace
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, Strategy
from strategies.distribution.balance import Balance
from strategies.distribution.exchange_options import ExchangeOptions
from strategies.distribution.gaussian_exchange import GaussianExchange, Route, above_opacity
from strategies.distribution.halo import fill_halo
from strategies.distribution.migration import migrate
from strategies.distribution.ownership import dealt_owners, owned_ids, random_owners
from strategies.distribution.regions import Regions
from strategies.distribution.tile_costs import tile_work
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.training.occlusion import OcclusionHistory, with_instances
from strategies.training.optimizer import RowAdam
from strategies.training.schedule import sh_degree


@dataclass(frozen=True)
class Rendered:
    """A rank's part of a batch, forward and back.

    By view: losses (0-d, of this rank's tiles), gradients ([received, GRADIENT] of its splats), bins of its tiles,
    and by the view's place in the batch the work of its tiles ([k], see `tile_work`). rasters: by view, where the
    forward is an operator of its own.
    """

    losses: list[torch.Tensor]
    gradients: list[torch.Tensor]
    bins: list[op.Bins]
    work: Callable[[int], torch.Tensor]
    rasters: Sequence[op.Raster] = ()

    @property
    def loss(self) -> torch.Tensor:
        """This rank's share of the batch's mean loss, 0-d."""
        return torch.stack(self.losses).mean()

    @property
    def instances(self) -> int:
        """Tile instances rendered."""
        return sum(b.instances for b in self.bins)


class GaussianLevel(Strategy):
    """Owns rows, renders regions; a subclass sets `balance` and `exchange` up and writes `step`."""

    balance: Balance
    exchange: GaussianExchange
    min_opacity = 0.0

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, ExchangeOptions)
        self.ctx, self.images, self.comm = ctx, images, ctx.comm
        self.device = ctx.world.devices[0]
        ids = owned_ids(options.ownership, source, ctx.world.rank, ctx.world.ranks, ctx.seed)
        self.gaussians = Gaussians.from_source(source, ids, self.device, ctx.kernels.dtype)
        # A workspace a view of the step: what its forward leaves lives until its backward.
        self.workspaces = [Workspace(self.device) for _ in range(ctx.batch)]
        self.shared = Workspace(self.device)
        self.optimizer = RowAdam(ctx.training, ctx.kernels, ctx.extent, self.shared)
        self.occlusion = OcclusionHistory(ctx.training)
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=self.device)
        self._redistribution = options.redistribute, options.redistribute_images
        self._images_seen = 0
        self._segment_seconds = 0.0

    def render(self, camera: Camera) -> torch.Tensor | None:
        regions = self.balance.cut([-1], [camera])
        received, _ = self._exchange_splats(regions, [self.shared])
        _, _, image = self._composite(regions, received, [self.shared])
        whole = self._gather_image(regions, image[0])
        return None if whole is None else whole.clamp(0, 1)

    def shards(self) -> Iterator[Shard]:
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        everything = Gaussians.from_reader(reader, self.device, self.ctx.kernels.dtype)
        owner = random_owners(everything.ids, self.comm.ranks, self.ctx.seed, 0)
        self.gaussians = everything.rows(owner == self.comm.rank)
        self.occlusion.clear()

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        works = sum(w.peak_bytes for w in (*self.workspaces, self.shared))
        return [self.gaussians.bytes + works + self.exchange.codec.bytes]

    @property
    def degree(self) -> int:
        """Active degree of the spherical harmonics."""
        return sh_degree(self.ctx.training, self._images_seen)

    def statistics(self) -> dict[str, float]:
        exchange = self.exchange
        counts = torch.tensor([exchange.zeros, exchange.records], dtype=torch.float64)
        zeros, records = self.comm.reduce("statistics", counts).tolist()
        exchange.clear()
        return {"zero_gradient_share": zeros / records} if records else {}

    def _exchange_splats(
        self, regions: Regions, works: Sequence[Workspace], stage: str = "exchange_forward"
    ) -> tuple[list[op.Splats], Route]:
        """Project this rank's Gaussians for every view and send each splat to the ranks whose tiles it touches.

        What lies behind the limit of each of its tiles is left out of the view.
        """
        kernels, own, bins = self.ctx.kernels, [], []
        for number, (camera, work) in enumerate(zip(regions.cameras, works, strict=True)):
            with self.ctx.clock("project"):
                parameters, ids = self.gaussians.parameters, self.gaussians.ids
                splats = op.project(kernels, parameters, ids, camera, self.degree, work)
                limit = regions.limit(number)
                listed = op.bin_splats(kernels, splats, camera, work, depth_limit=limit)
                if limit is not None:
                    splats, listed = with_instances(splats, listed)
                own.append(splats)
                bins.append(listed)
        with self.ctx.clock(stage):
            owners = [regions.owner(v) for v in range(len(regions.cameras))]
            return self.exchange.forward(own, bins, owners, above_opacity(self.min_opacity), stage)

    def _bin(self, regions: Regions, number: int, splats: op.Splats, work: Workspace) -> op.Bins:
        """Instances of this rank's tiles of a view of the batch."""
        with self._segment("bin"):
            tiles, limit = regions.of(self.comm.rank, number), regions.limit(number)
            return op.bin_splats(self.ctx.kernels, splats, regions.cameras[number], work, tiles, depth_limit=limit)

    def _composite(
        self, regions: Regions, received: Sequence[op.Splats], works: Sequence[Workspace]
    ) -> tuple[list[op.Bins], list[op.Raster], list[torch.Tensor]]:
        """Composite this rank's tiles of every view; images [H, W, 3] with zeros elsewhere."""
        binned, rasters, images = [], [], []
        for number, (splats, camera, work) in enumerate(zip(received, regions.cameras, works, strict=True)):
            binned.append(self._bin(regions, number, splats, work))
            with self._segment("raster_forward"):
                raster = op.raster_forward(self.ctx.kernels, splats, binned[-1], camera, work)
                rasters.append(raster)
                images.append(raster.colour + raster.transmittance[..., None] * self.background)
        return binned, rasters, images

    def _raster(
        self,
        views: Sequence[int],
        regions: Regions,
        received: Sequence[op.Splats],
        halo: op.Halo = "exact",
        window: op.LossWindow = op.WHOLE_IMAGE,
    ) -> Rendered:
        """Forward, loss and backward of this rank's tiles, an operator each."""
        kernels, works = self.ctx.kernels, self.workspaces
        binned, rasters, images = self._composite(regions, received, works)
        with self.ctx.clock("exchange_loss"):
            if halo == "exact" and window.kind != "l1":
                fill_halo(self.comm, "exchange_loss", regions, images)
        losses, gradients = [], []
        for number, (view, camera, work) in enumerate(zip(views, regions.cameras, works, strict=True)):
            tiles, weight = regions.of(self.comm.rank, number), self.ctx.training.ssim_weight
            with self._segment("loss", weight=2.0):
                target, mask = self._truth(view, camera)
                loss = op.l1_ssim(kernels, images[number], target, work, mask, tiles, halo, weight, window)
                losses.append(loss.value.clone())
            with self._segment("raster_backward"):
                splats, bins, raster = received[number], binned[number], rasters[number]
                gradients.append(
                    op.raster_backward(kernels, splats, bins, raster, camera, loss.gradient, work, self.background)
                )

        def work_of(number: int) -> torch.Tensor:
            return tile_work(rasters[number], regions.of(self.comm.rank, number), regions.cameras[number])

        return Rendered(losses, gradients, binned, work_of, rasters)

    def _limited(self, views: Sequence[int], regions: Regions) -> Regions:
        """These regions with what the last visits say of how deep their tiles are to be rendered."""
        return replace(regions, limits=tuple(self.occlusion.limits(v) for v in views))

    def _learn_occlusion(self, views: Sequence[int], regions: Regions, rasters: Sequence[op.Raster]) -> None:
        """Tell all ranks how deep this rank's tiles are to be rendered at the next visit. Collective."""
        if not self.occlusion.on:
            return
        mine = [
            self.occlusion.examined(view, raster, camera, regions.of(self.comm.rank, number))
            for number, (view, raster, camera) in enumerate(zip(views, rasters, regions.cameras, strict=True))
        ]
        # Segments follow one another in rank order: laid end to end they are the batch's list of tiles.
        limits = torch.cat(self.comm.gather("occlusion", torch.cat(mine)))
        self.occlusion.keep(views, limits.split([c.tiles for c in regions.cameras]))

    def _truth(self, view: int, camera: Camera) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The view's photograph and mask."""
        whole = Rect.whole(camera)
        return self.images.region(view, whole, self.device), self.images.mask(view, whole, self.device)

    def _update(self, regions: Regions, route: Route, partials: Sequence[torch.Tensor]) -> None:
        """Move this rank's Gaussians by the gradients of its splats of every view."""
        clock = self.ctx.clock
        for splats, camera, partial, work in zip(route.splats, regions.cameras, partials, self.workspaces, strict=True):
            with clock("project_backward"):
                self.optimizer.add_splats(self.gaussians, splats, camera, self.degree, partial, work)
        with clock("optimize"):
            self._images_seen += self.ctx.batch
            self.optimizer.step(self.gaussians, self._images_seen)

    def _gather_image(self, regions: Regions, image: torch.Tensor) -> torch.Tensor | None:
        """The whole image of a batch of one on rank 0: every rank sends the pixels of its own tiles there."""
        rank, camera = self.comm.rank, regions.cameras[0]
        pixels = image.reshape(-1, 3)
        owner = regions.pixel_owner(0).flatten()
        send = {0: pixels[owner == rank]} if rank != 0 else {}
        expected = {s: int((owner == s).sum()) for s in range(1, self.comm.ranks)} if rank == 0 else {}
        for source, rows in self.comm.neighbours("render", send, expected, like=pixels).items():
            pixels[owner == source] = rows
        return pixels.view(camera.height, camera.width, 3) if rank == 0 else None

    def _redistribute(self) -> None:
        """Move Gaussians to new owners when due."""
        how, every = self._redistribution
        due = self._images_seen // every > (self._images_seen - self.ctx.batch) // every
        if how == "off" or not due:
            return
        if how == "random":
            owner = random_owners(self.gaussians.ids, self.comm.ranks, self.ctx.seed, self._images_seen)
        else:
            owner = dealt_owners(self.comm, self.gaussians, self.ctx.bounds)
        self.gaussians = migrate(self.comm, self.gaussians, owner)

    @contextmanager
    def _segment(self, stage: str, weight: float = 1.0) -> Iterator[None]:
        """A stage whose time is a cost of this rank's region."""
        began = self.comm.now()
        with self.ctx.clock(stage):
            yield
        self._segment_seconds += weight * (self.comm.now() - began)
