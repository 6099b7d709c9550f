"""`grendel`: every rank owns Gaussians and renders pixels; records cross, parameters stay (Zhao et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workspace import Workspace
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport, Strategy
from strategies.distribution.gaussian_exchange import GaussianExchange, Route, above_opacity
from strategies.distribution.halo import fill_halo
from strategies.distribution.migration import migrate
from strategies.distribution.ownership import dealt_owners, owned_ids, random_owners
from strategies.distribution.regions import Regions
from strategies.gaussians import Gaussians
from strategies.grendel.balance import Balance
from strategies.grendel.info import GrendelOptions
from strategies.info import Options
from strategies.training.optimizer import RowAdam
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue


class Grendel(Strategy):
    """Gaussian-level exchange, the baseline of every claim."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, GrendelOptions)
        self.ctx, self.images, self.options, self.comm = ctx, images, options, ctx.comm
        self.device = ctx.world.devices[0]
        ids = owned_ids(options.ownership, source, ctx.world.rank, ctx.world.ranks, ctx.seed)
        self.gaussians = Gaussians.from_source(source, ids, self.device, ctx.kernels.dtype)
        # A workspace a view of the step: what its forward leaves lives until its backward.
        self.workspaces = [Workspace(self.device) for _ in range(ctx.batch)]
        self.shared = Workspace(self.device)
        self.optimizer = RowAdam(ctx.training, ctx.kernels, ctx.extent, self.shared)
        self.exchange = GaussianExchange(ctx.comm, pad=options.record == "64")
        self.balance = Balance(ctx.comm, options)
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=self.device)
        self._images_seen = 0
        self._segment_seconds = 0.0

    def step(self, queue: ViewQueue) -> StepReport:
        ctx, kernels, clock, works = self.ctx, self.ctx.kernels, self.ctx.clock, self.workspaces
        views = queue.take(queue.peek(ctx.batch))
        regions = self.balance.cut(views, [ctx.cameras[v] for v in views])
        degree = sh_degree(ctx.training, self._images_seen)
        self._segment_seconds = 0.0
        received, route = self._exchange_splats(regions, degree, works)
        binned, rasters, image = self._raster(regions, received, works)
        with clock("exchange_loss"):
            if self.options.ssim_halo == "exact":
                fill_halo(self.comm, "exchange_loss", regions, image)
        losses, gradients = [], []
        for number, (view, camera, work) in enumerate(zip(views, regions.cameras, works, strict=True)):
            with self._segment("loss", weight=2.0):
                target = self.images.region(view, Rect.whole(camera), self.device)
                mask = self.images.mask(view, Rect.whole(camera), self.device)
                tiles, weight = regions.of(self.comm.rank, number), ctx.training.ssim_weight
                halo = self.options.ssim_halo
                loss = op.l1_ssim(kernels, image[number], target, work, mask, tiles, halo, weight)
                losses.append(loss.value.clone())
            with self._segment("raster_backward"):
                splats, bins, raster = received[number], binned[number], rasters[number]
                gradients.append(
                    op.raster_backward(kernels, splats, bins, raster, camera, loss.gradient, work, self.background)
                )
        with clock("exchange_backward"):
            partials = self.exchange.backward(route, gradients)
        for splats, camera, partial, work in zip(route.splats, regions.cameras, partials, works, strict=True):
            with clock("project_backward"):
                parameters = self.gaussians.parameters
                rows = op.project_backward(kernels, parameters, splats, camera, degree, partial, work)
                self.optimizer.add(splats.rows, rows)
        with clock("optimize"):
            self._images_seen += ctx.batch
            self.optimizer.step(self.gaussians, self._images_seen)
        with clock("rebalance"):
            self.balance.learn(views, regions, rasters, self._segment_seconds)
            self._redistribute()
        visible, instances = sum(s.count for s in route.splats), sum(b.instances for b in binned)
        return StepReport(ctx.batch, 1, torch.stack(losses).mean(), visible, instances)

    def render(self, camera: Camera) -> torch.Tensor | None:
        regions = self.balance.cut([-1], [camera])
        degree = sh_degree(self.ctx.training, self._images_seen)
        received, _ = self._exchange_splats(regions, degree, [self.shared])
        _, _, image = self._raster(regions, received, [self.shared])
        whole = self._gather_image(regions, image[0])
        return None if whole is None else whole.clamp(0, 1)

    def shards(self) -> Iterator[Shard]:
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        everything = Gaussians.from_reader(reader, self.device, self.ctx.kernels.dtype)
        owner = random_owners(everything.ids, self.comm.ranks, self.ctx.seed, 0)
        self.gaussians = everything.rows(owner == self.comm.rank)

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        return [self.gaussians.bytes + sum(w.peak_bytes for w in (*self.workspaces, self.shared))]

    def _exchange_splats(
        self, regions: Regions, degree: int, works: Sequence[Workspace]
    ) -> tuple[list[op.Splats], Route]:
        """Project this rank's Gaussians for every view and send each splat to the ranks whose tiles it touches."""
        kernels, own, bins = self.ctx.kernels, [], []
        for camera, work in zip(regions.cameras, works, strict=True):
            with self.ctx.clock("project"):
                parameters, ids = self.gaussians.parameters, self.gaussians.ids
                splats = op.project(kernels, parameters, ids, camera, degree, work)
                own.append(splats)
                bins.append(op.bin_splats(kernels, splats, camera, work))
        with self.ctx.clock("exchange_forward"):
            owners = [regions.owner(v) for v in range(len(regions.cameras))]
            return self.exchange.forward(own, bins, owners, above_opacity(self.options.min_opacity))

    def _raster(
        self, regions: Regions, received: Sequence[op.Splats], works: Sequence[Workspace]
    ) -> tuple[list[op.Bins], list[op.Raster], list[torch.Tensor]]:
        """Composite this rank's tiles of every view; images [H, W, 3] with zeros elsewhere."""
        kernels, binned, rasters, images = self.ctx.kernels, [], [], []
        for number, (splats, camera, work) in enumerate(zip(received, regions.cameras, works, strict=True)):
            with self._segment("bin"):
                bins = op.bin_splats(kernels, splats, camera, work, regions.of(self.comm.rank, number))
                binned.append(bins)
            with self._segment("raster_forward"):
                raster = op.raster_forward(kernels, splats, bins, camera, work)
                rasters.append(raster)
                images.append(raster.colour + raster.transmittance[..., None] * self.background)
        return binned, rasters, images

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
        every, batch = self.options.redistribute_images, self.ctx.batch
        due = self._images_seen // every > (self._images_seen - batch) // every
        if self.options.redistribute == "off" or not due:
            return
        if self.options.redistribute == "random":
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
