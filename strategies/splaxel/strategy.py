"""`splaxel`: every rank owns boxes of space and renders them; pixels cross, Gaussians stay (Splaxel)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.layout import MEAN, RECORD
from cuda_src.workspace import Workspace
from strategies.base import Context, GaussianSource, ImageSource, Rect, Shard, ShardReader, StepReport, Strategy
from strategies.distribution.halo import Halo, HaloExchange
from strategies.distribution.host_copies import HostCopies
from strategies.distribution.migration import migrate
from strategies.distribution.regions import queued_copy
from strategies.gaussians import Gaussians
from strategies.info import Options
from strategies.morton import source_order
from strategies.splaxel import subtiles
from strategies.splaxel.boundary import return_gradients, send_copies
from strategies.splaxel.boxes import Boxes, median_boxes
from strategies.splaxel.composition import Composite, composite, composite_backward
from strategies.splaxel.consolidation import Participation, disjoint_views
from strategies.splaxel.counts import StepCounts, shares
from strategies.splaxel.info import SplaxelOptions, refuses, refuses_training
from strategies.splaxel.partial_images import BoxPlan, BoxRenderer, OwnImages
from strategies.splaxel.pixel_exchange import PixelCounts, PixelExchange
from strategies.splaxel.repartition import balanced_boxes, imbalance
from strategies.splaxel.saturation import Masks, PairCounts
from strategies.splaxel.sight import Sharing
from strategies.splaxel.territory import SURVEY_IMAGES, Territory
from strategies.training.optimizer import RowAdam
from strategies.training.schedule import sh_degree
from strategies.views import ViewQueue


@dataclass(frozen=True)
class Visit:
    """A view of a step. images: the job has seen before it. takes_part: ranks that render it."""

    view: int
    camera: Camera
    images: int
    takes_part: frozenset[int]


class Splaxel(Strategy):
    """Pixel-level exchange."""

    def setup(self, ctx: Context, source: GaussianSource, images: ImageSource, options: Options) -> None:
        assert isinstance(options, SplaxelOptions)
        if reason := refuses(options, ctx.world.ranks, ctx.batch) or refuses_training(options, ctx.training):
            raise ValueError(f"splaxel: {reason}")
        self.ctx, self.images, self.options, self.comm = ctx, images, options, ctx.comm
        self.device, by_depth = ctx.world.devices[0], options.order == "depth"
        positions = source.positions(0, source.count).to(self.device)
        boxes = median_boxes(positions, self.comm.ranks, options.boxes_per_rank)
        mine = torch.nonzero(boxes.owner_of(positions) == self.comm.rank).flatten()
        ids = source_order(source, self.device, mine.cpu())
        self.gaussians = Gaussians.from_source(source, ids, self.device, ctx.kernels.dtype)
        self.territory = Territory(self.comm, ctx.kernels, options)
        self.renderer = BoxRenderer(ctx, options.boundary, by_depth)
        self.pixels, self.render_pixels = (PixelExchange(self.comm, options.compose, by_depth) for _ in range(2))
        self.masks, self.participation = Masks(self.comm, options), Participation(self.comm)
        self.copies = HostCopies()
        self.works: dict[tuple[int, int | str], Workspace] = {}
        self.optimizer = RowAdam(ctx.training, ctx.kernels, ctx.extent, self._work(0, "shared"))
        self.background = torch.tensor(ctx.training.background, dtype=ctx.kernels.dtype, device=self.device)
        self.counts = StepCounts()
        self._images_seen = 0
        self._settle(boxes)

    def step(self, queue: ViewQueue) -> StepReport:
        comm, clock, exact = self.comm, self.ctx.clock, self.options.boundary == "exact"
        visits = self._next_visits(queue)
        with clock("project"):
            splats, sharings, plans = self._projected(visits)
        shown, copies = splats, None
        if exact:
            with clock("exchange_boundary"):
                wanted = [
                    self.territory.wanted(s, h.sight, h.takes_part) for s, h in zip(splats, sharings, strict=True)
                ]
                shown, copies = send_copies(comm, splats, wanted)
        own = [
            self._render_boxes(sharing, plan, s, slot, visit.view)
            for slot, (visit, sharing, plan, s) in enumerate(zip(visits, sharings, plans, shown, strict=True))
        ]
        with clock("exchange_forward"):
            stacks = self.pixels.forward(sharings, [o.partials() for o in own], self.background)
        views = [visit.view for visit in visits]
        with clock("masks"):
            judged = self.masks.judge(views, sharings, stacks)
        with clock("compose"):
            composed = [composite(stack, self.options.order == "depth") for stack in stacks]
            pictures = [self._picture(sharing, c) for sharing, c in zip(sharings, composed, strict=True)]
        if self.options.compose == "owner":
            with clock("exchange_loss"):
                halo = halo_of(sharings, comm.ranks)
                HaloExchange(comm, "exchange_loss", halo, pictures, self._work(0, "shared")).wait()
        upstream, losses = [], []
        for slot, (visit, sharing, picture, c) in enumerate(zip(visits, sharings, pictures, composed, strict=True)):
            with clock("loss"):
                value, gradient = self._loss(visit, sharing, picture, slot)
                losses.append(value)
            with clock("compose"):
                to_colour = gradient.view(-1, 3)[sharing.lists.needed]
                upstream.append(composite_backward(c, to_colour, (to_colour * self.background).sum(dim=1)))
        with clock("exchange_backward"):
            asked = self.pixels.backward(sharings, upstream, self.background)
        with clock("raster_backward"):
            partials = [self.renderer.backward(o, a) for o, a in zip(own, asked, strict=True)]
        if copies:
            with clock("exchange_boundary"):
                partials = return_gradients(comm, copies, partials)
        with clock("project_backward"):
            for slot, (visit, s, o, partial) in enumerate(zip(visits, splats, own, partials, strict=True)):
                rendered = o.instances[: s.count] > 0
                for rows in copies.sent[slot] if copies else ():
                    rendered.index_fill_(0, rows, True)
                self._add_gradients(visit, s, rendered, partial, slot)
        with clock("optimize"):
            self._optimize(visits)
        with clock("masks"):
            self.masks.learn(views, sharings, judged, self._images_seen)
        with clock("repartition"):
            self._keep_up(visits, splats, own)
        self.counts.add(sharings, comm.rank)
        steps = 1 if self.options.window == 1 else len(visits)
        visible, instances = sum(s.count for s in splats), sum(o.total for o in own)
        return StepReport(len(visits), steps, torch.stack(losses).sum() / len(visits), visible, instances)

    def render(self, camera: Camera) -> torch.Tensor | None:
        everyone = frozenset(range(self.comm.ranks))
        visit = Visit(-1, camera, self._images_seen, everyone)
        splats = self._project(visit, 0)
        margins = None
        if self.options.boundary == "keep":
            margins = self.territory.margins([-1], [camera], [splats])[0]
        sight = self.territory.sight(camera, margins=margins)
        sharing = Sharing(sight, {}, everyone, self.options.compose, self.device, collector=0)
        sharing.find(self.comm.rank, self.comm.ranks, self.copies)
        if self.options.boundary == "exact":
            wanted = self.territory.wanted(splats, sight, everyone)
            splats = send_copies(self.comm, [splats], [wanted])[0][0]
        plan = self.renderer.plan(sharing, self.territory.boxes, None)
        own = self._render_boxes(sharing, plan, splats, 0)
        (stack,) = self.render_pixels.forward([sharing], [own.partials()], self.background)
        if self.comm.rank != 0:
            return None
        return self._picture(sharing, composite(stack, self.options.order == "depth")).clamp(0, 1)

    def shards(self) -> Iterator[Shard]:
        return self.gaussians.shards()

    def load(self, reader: ShardReader) -> None:
        everything = Gaussians.from_reader(reader, self.device, self.ctx.kernels.dtype)
        means = everything.parameters[:, MEAN]
        boxes = median_boxes(means, self.comm.ranks, self.options.boxes_per_rank)
        self.gaussians = everything.rows(boxes.owner_of(means) == self.comm.rank)
        self._settle(boxes)

    def settle(self) -> None:
        self.masks.settle()

    def statistics(self) -> dict[str, float]:
        self.settle()
        pairs = self.masks.counts if self.options.saturation == "on" else None
        shown = shares(self.comm, self.counts, self.pixels.counts, pairs, self.options.window)
        self.counts, self.pixels.counts, self.masks.counts = StepCounts(), PixelCounts(), PairCounts()
        return shown

    @property
    def images_seen(self) -> int:
        return self._images_seen

    @property
    def tensor_bytes(self) -> list[int]:
        works = sum(w.peak_bytes for w in self.works.values())
        return [self.gaussians.bytes + works + self.renderer.depths.bytes]

    def _next_visits(self, queue: ViewQueue) -> list[Visit]:
        """The batch, or with a look-ahead the next view and those that run beside it, each in its own place."""
        ctx, first = self.ctx, self._images_seen
        if self.options.window == 1:
            views = queue.take(queue.peek(ctx.batch))
            return [Visit(v, ctx.cameras[v], first, self._seen_by(v)) for v in views]
        # Bounds and boxes change at fixed images, whatever ran together before.
        most = min(n - first % n for n in (SURVEY_IMAGES, self.options.repartition_images))
        chosen = disjoint_views(
            queue,
            self.options.window,
            most,
            lambda v: self.participation.of(v, self._seen_by(v)),
            self.comm.ranks,
        )
        return [Visit(v, ctx.cameras[v], first + n, taking_part) for n, (v, taking_part) in enumerate(chosen)]

    def _seen_by(self, view: int) -> frozenset[int]:
        return self.territory.seen_by(view, self.ctx.cameras[view], self.masks.active(view))

    def _project(self, visit: Visit, slot: int) -> op.Splats:
        """This rank's splats of the view; none where it does not take part."""
        kernels, gaussians = self.ctx.kernels, self.gaussians
        if self.comm.rank not in visit.takes_part:
            nothing = gaussians.ids[:0]
            return op.Splats(nothing, nothing, gaussians.parameters.new_empty((0, RECORD)))
        degree, work, bounds = (
            sh_degree(self.ctx.training, visit.images),
            self._work(slot, "view"),
            gaussians.bounds(kernels),
        )
        return op.project(kernels, gaussians.parameters, gaussians.ids, visit.camera, degree, work, bounds=bounds)

    def _projected(self, visits: Sequence[Visit]) -> tuple[list[op.Splats], list[Sharing], list[dict[int, BoxPlan]]]:
        """By view, this rank's splats, who does what, and what this rank's boxes show.

        Where no splat has a say in who does what, it is found first: the host waits for the number of splats anyway,
        and then it knows how many pixels there are, too.
        """
        if self.options.boundary != "keep":
            sharings, plans = self._shared_out(visits, [None] * len(visits))
        splats = [self._project(visit, slot) for slot, visit in enumerate(visits)]
        if self.options.boundary == "keep":
            cameras = [v.camera for v in visits]
            margins = self.territory.margins([v.view for v in visits], cameras, splats)
            sharings, plans = self._shared_out(visits, margins)
        return splats, sharings, plans

    def _shared_out(
        self, visits: Sequence[Visit], margins: Sequence[list[float] | None]
    ) -> tuple[list[Sharing], list[dict[int, BoxPlan]]]:
        """Who shows, composites and supervises what in each view. margins: by view, as `Territory.sight` takes them."""
        sharings = []
        for v, of_view in zip(visits, margins, strict=True):
            sight = self.territory.sight(v.camera, v.view, of_view)
            sharing = Sharing(sight, self.masks.active(v.view), v.takes_part, self.options.compose, self.device)
            sharing.find(self.comm.rank, self.comm.ranks, self.copies)
            sharings.append(sharing)
        boxes = self.territory.boxes
        return sharings, [self.renderer.plan(s, boxes, v.view) for v, s in zip(visits, sharings, strict=True)]

    def _render_boxes(
        self, sharing: Sharing, plan: dict[int, BoxPlan], splats: op.Splats, slot: int, view: int | None = None
    ) -> OwnImages:
        """view: whose occlusion history is used and kept; None for neither."""
        with self.ctx.clock("bin"):
            held = self.territory.held(splats, sharing.sight)
        return self.renderer.forward(sharing, plan, splats, held, lambda box: self._work(slot, box), view)

    def _picture(self, sharing: Sharing, composed: Composite) -> torch.Tensor:
        """The image [H, W, 3], filled in where this rank composites, background elsewhere."""
        camera = sharing.sight.camera
        picture = self.background.repeat(camera.height * camera.width, 1)
        colour = composed.colour + composed.transmittance[:, None] * self.background
        picture[sharing.lists.needed] = colour
        return picture.view(camera.height, camera.width, 3)

    def _loss(
        self, visit: Visit, sharing: Sharing, picture: torch.Tensor, slot: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of the tiles this rank counts, and the gradient of those and of what else it supervises."""
        counted = sharing.counted(self.comm.rank)
        whole, beside = Rect.whole(visit.camera), sharing.supervised(self.comm.rank) & ~counted
        value, gradient = self.background.new_zeros(()), None
        for name, tiles in (("counted", counted), ("beside", beside)):
            if not subtiles.count(tiles):
                continue
            target = self.images.region(visit.view, whole, self.device)
            mask = self.images.mask(visit.view, whole, self.device)
            listed = queued_copy(subtiles.numbers(tiles), self.device)
            weight = self.ctx.training.ssim_weight
            loss = op.l1_ssim(self.ctx.kernels, picture, target, self._work(slot, name), mask, listed, "exact", weight)
            gradient = loss.gradient if gradient is None else gradient + loss.gradient
            if name == "counted":
                value = loss.value.clone()
        return value, torch.zeros_like(picture) if gradient is None else gradient

    def _add_gradients(
        self, visit: Visit, splats: op.Splats, rendered: torch.Tensor, partial: torch.Tensor, slot: int
    ) -> None:
        if self.options.window > 1 and self.comm.rank not in visit.takes_part:
            return
        degree, work = sh_degree(self.ctx.training, visit.images), self._work(slot, "view")
        # What masks and occlusion removed from this view is not visible in it: else, its moments would move it.
        removes = self.options.saturation == "on" or self.ctx.training.occlusion == "history"
        drawn = rendered if removes else None
        self.optimizer.add_splats(self.gaussians, splats, visit.camera, degree, partial, work, drawn)

    def _optimize(self, visits: Sequence[Visit]) -> None:
        """One step for the batch, or one for each view that ran beside others, where this rank takes part."""
        if self.options.window == 1:
            self._images_seen += len(visits)
            self.optimizer.step(self.gaussians, self._images_seen)
            return
        for visit in visits:
            self._images_seen += 1
            if self.comm.rank in visit.takes_part:
                self.optimizer.step(self.gaussians, self._images_seen)

    def _keep_up(self, visits: Sequence[Visit], splats: Sequence[op.Splats], own: Sequence[OwnImages]) -> None:
        """Remember what the step cost; measure bounds and cut boxes anew when due."""
        for s, o in zip(splats, own, strict=True):
            self.work_of.index_add_(0, s.rows, o.instances[: s.count].to(self.work_of.dtype))
            self.work += o.total
        options, seen = self.options, self._images_seen
        if options.window > 1:
            # A rank that saw a splat of its own or of another may do so again.
            self.participation.learn([v.view for v in visits], [len(o.instances) > 0 for o in own])
        if _crossed(seen, len(visits), options.repartition_images):
            if imbalance(self.comm, self.work) > options.repartition_imbalance:
                self._repartition()
            self._forget_work()
        if _crossed(seen, len(visits), SURVEY_IMAGES):
            self.territory.survey(self.gaussians)
            self.participation.forget()

    def _repartition(self) -> None:
        """Boxes of equal work, and every Gaussian to the rank whose box holds its mean."""
        means = self.gaussians.parameters[:, MEAN]
        boxes = balanced_boxes(self.comm, means, 1 + self.work_of, self.options.boxes_per_rank)
        self.gaussians = migrate(self.comm, self.ctx.kernels, self.gaussians, boxes.owner_of(means))
        self._settle(boxes)

    def _settle(self, boxes: Boxes) -> None:
        """Take these boxes; what was known of views is void."""
        self.territory.settle(boxes, self.gaussians)
        self.masks.forget()
        self.renderer.forget()
        self.participation.forget()
        self._forget_work()

    def _forget_work(self) -> None:
        """Instances rendered since, by this rank, and of each of its Gaussians, [N] float32."""
        self.work = 0
        self.work_of = torch.zeros(self.gaussians.count, device=self.device)

    def _work(self, slot: int, part: int | str) -> Workspace:
        """Memory of one view of the step, by box or purpose: what its forward leaves lives until its backward."""
        return self.works.setdefault((slot, part), Workspace(self.device))


def halo_of(sharings: Sequence[Sharing], ranks: int) -> Halo:
    """Which composited pixels of a step's views cross for the loss."""
    gives, takes = [s.lists.gives for s in sharings], [s.lists.takes for s in sharings]
    return Halo([[of[r] for of in gives] for r in range(ranks)], [[of[r] for of in takes] for r in range(ranks)])


def _crossed(seen: int, step: int, every: int) -> bool:
    """Whether the last `step` of the `seen` images completed a multiple of `every`."""
    return seen // every > (seen - step) // every
