"""`single`: one device, no exchange. Its step is the mathematics every other strategy must equal."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workspace import Workspace
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport, Strategy
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.training.occlusion import OcclusionHistory, with_instances
from strategies.training.optimizer import RowAdam
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue


class Single(Strategy):
    """The oracle: all Gaussians on one device, views of a step one after another, then one optimizer step."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        self.ctx, self.images = ctx, images
        self.device = ctx.world.devices[0]
        self.gaussians = Gaussians.from_source(source, torch.arange(source.count), self.device, ctx.kernels.dtype)
        # A workspace a view of the step: its gradients live until the optimizer has read them all.
        self.workspaces = [Workspace(self.device) for _ in range(ctx.batch)]
        self.shared = Workspace(self.device)
        self.optimizer = RowAdam(ctx.training, ctx.kernels, ctx.extent, self.shared, one_view=ctx.batch == 1)
        self.occlusion = OcclusionHistory(ctx.training)
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=self.device)
        self._images_seen = 0

    def step(self, queue: ViewQueue) -> StepReport:
        ctx, kernels, clock = self.ctx, self.ctx.kernels, self.ctx.clock
        degree = sh_degree(ctx.training, self._images_seen)
        losses, visible, instances = [], 0, 0
        for work, view in zip(self.workspaces, queue.take(queue.peek(ctx.batch)), strict=True):
            camera = ctx.cameras[view]
            with clock("project"):
                splats = op.project(kernels, self.gaussians.parameters, self.gaussians.ids, camera, degree, work)
            with clock("bin"):
                limits = self.occlusion.limits(view)
                bins = op.bin_splats(kernels, splats, camera, work, depth_limit=limits)
                if limits is not None:
                    splats, bins = with_instances(splats, bins)
            with clock("raster_forward"):
                raster = op.raster_forward(kernels, splats, bins, camera, work)
                image = raster.colour + raster.transmittance[..., None] * self.background
                self.occlusion.observe(view, raster, camera)
            with clock("loss"):
                target = self.images.region(view, Rect.whole(camera), self.device)
                mask = self.images.mask(view, Rect.whole(camera), self.device)
                loss = op.l1_ssim(kernels, image, target, work, mask, ssim_weight=ctx.training.ssim_weight)
            with clock("raster_backward"):
                partial = op.raster_backward(
                    kernels, splats, bins, raster, camera, loss.gradient, work, self.background
                )
            with clock("project_backward"):
                self.optimizer.add_splats(self.gaussians, splats, camera, degree, partial, work)
            losses.append(loss.value.clone())
            visible, instances = visible + splats.count, instances + bins.instances
        with clock("optimize"):
            self._images_seen += ctx.batch
            self.optimizer.step(self.gaussians, self._images_seen)
        return StepReport(ctx.batch, 1, torch.stack(losses).mean(), visible, instances)

    def render(self, camera: Camera) -> torch.Tensor | None:
        kernels, work = self.ctx.kernels, self.shared
        degree = sh_degree(self.ctx.training, self._images_seen)
        splats = op.project(kernels, self.gaussians.parameters, self.gaussians.ids, camera, degree, work)
        bins = op.bin_splats(kernels, splats, camera, work)
        raster = op.raster_forward(kernels, splats, bins, camera, work)
        return (raster.colour + raster.transmittance[..., None] * self.background).clamp(0, 1)

    def shards(self) -> Iterator[Shard]:
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        self.gaussians = Gaussians.from_reader(reader, self.device, self.ctx.kernels.dtype)
        self.occlusion.clear()

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        return [self.gaussians.bytes + sum(w.peak_bytes for w in (*self.workspaces, self.shared))]
