"""`single`: one device, no exchange. Its step is the mathematics every other strategy must equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.workspace import Workspace
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport, Strategy
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.morton import source_order
from strategies.training.late_pictures import LatePictures
from strategies.training.late_steps import LateSteps, Outcome, Plan, report_of
from strategies.training.occlusion import OcclusionHistory, with_instances
from strategies.training.optimizer import RowAdam
from strategies.training.rooms import Rooms
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue


class Single(Strategy):
    """The oracle: all Gaussians on one device, views of a step one after another, then one optimizer step.

    Where kernels take rooms, a step whose views were all visited before is queued without waiting for the device
    (strategies/training/late_steps.py); whatever reads the Gaussians settles such steps first.
    """

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        self.ctx, self.images = ctx, images
        self.device = ctx.world.devices[0]
        ids = source_order(source, self.device)
        self.gaussians = Gaussians.from_source(source, ids, self.device, ctx.kernels.dtype)
        # A workspace a view of the step: its gradients live until the optimizer has read them all.
        self.workspaces = [Workspace(self.device) for _ in range(ctx.batch)]
        self.shared = Workspace(self.device)
        self.optimizer = RowAdam(ctx.training, ctx.kernels, ctx.extent, self.shared)
        self.occlusion = OcclusionHistory(ctx.training)
        # Hidden Gaussians are taken out of a view's splats by number, which the host must know.
        self.rooms = Rooms[int](self.device) if ctx.kernels.takes_rooms and not self.occlusion.on else None
        self.ids_by_row = ctx.kernels.leaves_ids and not self.occlusion.on
        self.late = None if self.rooms is None else LateSteps(self.rooms, self.device, self._exactly)
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=self.device)
        self.late_pictures = LatePictures(self.device, self._draw, ctx.kernels.takes_rooms)
        self._images_seen = 0

    def step(self, queue: ViewQueue) -> StepReport:
        plan = Plan(tuple(queue.take(queue.peek(self.ctx.batch))), self._images_seen)
        self._images_seen += len(plan.views)
        rooms = None if self.rooms is None else self.rooms.of(plan.views)
        if self.late is None or rooms is None:
            self.settle()
            done = self._exactly(plan)
            return StepReport(len(plan.views), 1, done.loss, done.visible_gaussians, done.tile_instances)
        seen = self._train(plan, rooms)
        outcome = self.late.add(plan, [bins for _, bins, _ in seen], [loss for *_, loss in seen])
        return report_of(len(plan.views), outcome)

    def _exactly(self, plan: Plan) -> Outcome:
        """One step with the sizes that the host reads."""
        seen = self._train(plan, [None] * len(plan.views))
        if self.rooms is not None:
            for view, (splats, bins, _) in zip(plan.views, seen, strict=True):
                self.rooms.learn(view, splats.count, bins.instances)
        losses = [loss.clone() for *_, loss in seen]  # The next step writes where these lie.
        return Outcome(
            losses[0] if len(losses) == 1 else torch.stack(losses).mean(),
            sum(splats.count for splats, *_ in seen),
            sum(bins.instances for _, bins, _ in seen),
        )

    def _train(self, plan: Plan, rooms: Sequence[op.Room | None]) -> list[tuple[op.Splats, op.Bins, torch.Tensor]]:
        """All views of a step and the optimizer: splats, bins and loss by view, in memory that the next step reuses."""
        ctx, kernels, clock = self.ctx, self.ctx.kernels, self.ctx.clock
        degree = sh_degree(ctx.training, plan.images_seen)
        seen = []
        for work, view, room in zip(self.workspaces, plan.views, rooms, strict=True):
            camera = ctx.cameras[view]
            splats, bins, raster = self._forward(camera, degree, work, room, view)
            with clock("loss"):
                whole = Rect.whole(camera)
                target = self.images.region(view, whole, self.device)
                mask = self.images.mask(view, whole, self.device)
                loss = op.l1_ssim(kernels, raster.colour, target, work, mask, ssim_weight=ctx.training.ssim_weight)
            with clock("raster_backward"):
                partial = op.raster_backward(
                    kernels, splats, bins, raster, camera, loss.gradient, work, self.background
                )
            with clock("project_backward"):
                self.optimizer.add_splats(self.gaussians, splats, camera, degree, partial, work)
            seen.append((splats, bins, loss.value))
        with clock("optimize"):
            self.optimizer.step(self.gaussians, plan.images_seen + len(plan.views))
        return seen

    def _forward(
        self, camera: Camera, degree: int, work: Workspace, room: op.Room | None, view: int | None = None
    ) -> tuple[op.Splats, op.Bins, op.Raster]:
        """From Gaussians to pixels. view: its number, where a history of occlusion may learn from it."""
        kernels, clock, gaussians = self.ctx.kernels, self.ctx.clock, self.gaussians
        with clock("project"):
            rows, bounds = gaussians.parameters, gaussians.bounds(kernels)
            splats = op.project(kernels, rows, gaussians.ids, camera, degree, work, room, bounds, self.ids_by_row)
        with clock("bin"):
            limits = None if view is None else self.occlusion.limits(view)
            bins = op.bin_splats(kernels, splats, camera, work, depth_limit=limits, room=room)
            if limits is not None:
                splats, bins = with_instances(splats, bins)
        with clock("raster_forward"):
            raster = op.raster_forward(kernels, splats, bins, camera, work, background=self.background)
            if view is not None:
                self.occlusion.observe(view, raster, camera)
        return splats, bins, raster

    def settle(self) -> None:
        if self.late is not None:
            self.late.settle()

    def render(self, camera: Camera) -> torch.Tensor | None:
        (picture,) = self.pictures([camera])
        return picture

    def pictures(self, cameras: Iterable[Camera]) -> Iterator[torch.Tensor | None]:
        self.settle()
        yield from self.late_pictures.of(cameras)

    def _draw(self, camera: Camera, room: op.Room | None) -> tuple[torch.Tensor, op.Splats, op.Bins]:
        # What a step leaves in the workspace of its first view is read by that step alone.
        degree = sh_degree(self.ctx.training, self._images_seen)
        splats, bins, raster = self._forward(camera, degree, self.workspaces[0], room)
        return raster.colour.clamp(0, 1), splats, bins

    def shards(self) -> Iterator[Shard]:
        self.settle()
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        self.settle()
        self.gaussians = Gaussians.from_reader(reader, self.device, self.ctx.kernels.dtype)
        self.occlusion.clear()
        self.late_pictures.forget()
        if self.rooms is not None:
            self.rooms.clear()

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        return [self.gaussians.bytes + sum(w.peak_bytes for w in (*self.workspaces, self.shared))]
