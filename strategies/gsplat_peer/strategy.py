"""`gsplat`: the same training with another code base's renderer, autograd tape and sparse optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from cuda_src.autograd import l1_ssim_loss
from cuda_src.camera import TILE, Camera
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport, Strategy
from strategies.gsplat_peer.exchange import PeerExchange
from strategies.gsplat_peer.info import GsplatOptions
from strategies.gsplat_peer.optimizer import PeerAdam
from strategies.gsplat_peer.parameters import JOINED, SPLIT, SplitGaussians
from strategies.info import Options
from strategies.morton import source_order
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue

FARTHEST = 1e10
"""gsplat's far plane where a camera has none, world units."""
MOST_ELEMENTS = 2**32 - 1
"""Its Adam counts the elements of a tensor in 32 bits."""


class GsplatPeer(Strategy):
    """gsplat.rasterization, our L1 + SSIM by its autograd wrapper, autograd's backward, gsplat.SelectiveAdam."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        import gsplat  # Not before: a machine that plans or tests need not have it.

        assert isinstance(options, GsplatOptions)
        self.ctx, self.images, self.options = ctx, images, options
        self.device = ctx.world.devices[0]
        if self.device.type == "cuda" and ctx.kernels.dtype != torch.float32:
            raise ValueError(f"gsplat computes in float32, not {ctx.kernels.precision}")
        world = ctx.world
        self.shapes = JOINED if options.harmonics == "joined" else SPLIT
        most = MOST_ELEMENTS // max(math.prod(shape) for shape in self.shapes.values())
        if source.count > most * world.ranks:
            raise ValueError(
                f"gsplat's Adam moves at most {most:,} Gaussians a GPU, "
                f"the scene has {source.count:,} for {world.ranks}"
            )
        self.rasterization, self.adam = gsplat.rasterization, gsplat.SelectiveAdam
        if world.ranks > 1:
            self._refuse_mixed_views()
            self.rasterization = PeerExchange(ctx.comm).around(gsplat.rasterization)
        ids = torch.arange(source.count) if options.order == "source" else source_order(source, self.device)
        self._hold(SplitGaussians.from_source(source, ids[self._dealt], self.shapes, self.device, ctx.kernels.dtype))
        self.lenses: dict[Camera, tuple[torch.Tensor, torch.Tensor]] = {}
        colour = torch.tensor([ctx.training.background], dtype=ctx.kernels.dtype, device=self.device)
        self.background = colour if any(ctx.training.background) else None
        self._images_seen = 0

    @property
    def _dealt(self) -> slice:
        """The rank's share of rows: dealt one by one, as its own trainer does."""
        return slice(self.ctx.world.rank, None, self.ctx.world.ranks)

    def _refuse_mixed_views(self) -> None:
        """ValueError where views differ in what a call has for all of its cameras."""
        kinds = {(c.width, c.height, c.far) for c in self.ctx.cameras}
        if len(kinds) > 1:
            raise ValueError(
                "gsplat on several GPUs needs views of one size and far plane: "
                f"the scene's have {len(kinds)} combinations of them"
            )

    def _hold(self, gaussians: SplitGaussians) -> None:
        self.gaussians = gaussians
        self.optimizer = PeerAdam(self.adam, gaussians, self.ctx.training, self.ctx.extent)

    def step(self, queue: ViewQueue) -> StepReport:
        ctx, clock = self.ctx, self.ctx.clock
        degree = sh_degree(ctx.training, self._images_seen)
        losses: list[torch.Tensor] = []
        seen: list[torch.Tensor] = []
        instances = 0
        views = queue.take(queue.peek(ctx.batch))
        # Each of these calls renders a view on every rank, and the ranks before and after it the views beside.
        for view in views[ctx.world.rank :: ctx.world.ranks]:
            camera = ctx.cameras[view]
            with clock("project+bin+raster_forward"):
                image, meta = self._rasterize(camera, degree)
            with clock("loss"):
                target = self.images.region(view, Rect.whole(camera), self.device)
                mask = self.images.mask(view, Rect.whole(camera), self.device)
                loss = l1_ssim_loss(ctx.kernels, image, target, mask, ctx.training.ssim_weight)
            with clock("raster_backward+project_backward"):
                loss.backward()
            losses.append(loss.detach())
            seen.extend(self._seen(meta))
            instances += len(meta["flatten_ids"])
        with clock("optimize"):
            self._images_seen += ctx.batch
            self.optimizer.step(seen, self._images_seen)
        visible = torch.stack([rows.count_nonzero() for rows in seen]).sum()
        return StepReport(ctx.batch, 1, torch.stack(losses).sum() / ctx.batch, visible, instances)

    def _rasterize(self, camera: Camera, degree: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """The image, [H, W, 3], and what gsplat tells of it; activations as its own trainer applies them."""
        held = self.gaussians.parameters
        pose, lens = self._lens(camera)
        convention = self.ctx.kernels.convention
        packed = self.options.packed
        image, opacity, meta = self.rasterization(
            means=held["mean"],
            quats=held["quaternion"],
            scales=torch.exp(held["log_scale"]),
            opacities=torch.sigmoid(held["opacity"]),
            colors=held["sh"] if "sh" in held else torch.cat([held["sh_dc"], held["sh_rest"]], dim=1),
            viewmats=pose,
            Ks=lens,
            width=camera.width,
            height=camera.height,
            near_plane=convention.near,
            far_plane=min(camera.far, FARTHEST),
            eps2d=convention.dilation,
            sh_degree=degree,
            packed=packed,
            tile_size=TILE,
            backgrounds=None if packed else self.background,
            rasterize_mode="classic",
            absgrad=False,
            distributed=self.ctx.world.ranks > 1,
        )
        if packed and self.background is not None:
            # Version 1.5.3 refuses a background of packed splats: it expects one without the axis of cameras.
            image = image + (1 - opacity) * self.background
        return image[0], meta

    def _lens(self, camera: Camera) -> tuple[torch.Tensor, torch.Tensor]:
        """World-to-camera [1, 4, 4] and intrinsics [1, 3, 3] on the device, sent once a camera."""
        if camera not in self.lenses:
            pose, lens = (
                torch.tensor(matrix, dtype=self.ctx.kernels.dtype, device=self.device)[None]
                for matrix in (
                    camera.world_to_camera,
                    [[camera.fx, 0.0, camera.cx], [0.0, camera.fy, camera.cy], [0.0, 0.0, 1.0]],
                )
            )
            self.lenses[camera] = pose, lens
        return self.lenses[camera]

    def _seen(self, meta: dict[str, Any]) -> torch.Tensor:
        """[ranks, N] bool: own Gaussians with a radius in the view of each rank, gsplat's `visible`."""
        if not self.options.packed:
            return (meta["radii"] > 0).all(dim=-1)
        shape = self.ctx.world.ranks, len(self.gaussians.ids)
        seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
        seen[meta["camera_ids"], meta["gaussian_ids"]] = True
        return seen

    @torch.no_grad()
    def render(self, camera: Camera) -> torch.Tensor | None:
        with self.ctx.clock("project+bin+raster_forward"):
            image, _ = self._rasterize(camera, sh_degree(self.ctx.training, self._images_seen))
        return image.clamp(0, 1) if self.ctx.world.rank == 0 else None

    def shards(self) -> Iterator[Shard]:
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        dtype = self.ctx.kernels.dtype
        self._hold(SplitGaussians.from_reader(reader, self._dealt, self.shapes, self.device, dtype))

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        return [self.gaussians.bytes]
