"""Scenes small enough for exactness tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cuda_src import layout, portable
from cuda_src.camera import Camera
from cuda_src.operators import ELSEWHERE, Bins, KernelSet, Room, Splats
from cuda_src.tape import act
from strategies.base import Context, Rect, World
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.halo import SSIM_HALO, Halo
from strategies.training.config import Training


@dataclass
class TinyGaussians:
    """A GaussianSource over a table in memory."""

    parameters: torch.Tensor

    @property
    def count(self) -> int:
        return len(self.parameters)

    @property
    def bounds(self) -> np.ndarray:
        means = self.parameters[:, layout.MEAN]
        if not len(means):
            return np.zeros((2, 3), np.float32)
        return torch.stack([means.amin(0), means.amax(0)]).numpy()

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        return self.parameters[lo:hi, layout.MEAN]

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        return self.parameters[indices].to(device)


@dataclass
class TinyImages:
    """An ImageSource over images in memory."""

    images: list[torch.Tensor]

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        return self.images[view][rect.y0 : rect.y1, rect.x0 : rect.x1].to(device)

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        return None


@dataclass
class TinyScene:
    """Gaussians in front of a ring of cameras, with images of mixed sizes that are no multiple of a tile."""

    source: TinyGaussians
    images: TinyImages
    cameras: list[Camera]

    def context(
        self, kernels: KernelSet, training: Training | None = None, batch: int = 1, comm: Communicator | None = None
    ) -> Context:
        return Context(
            world=World.alone() if comm is None else World(comm.rank, comm.ranks, (comm.device,), comm.ranks),
            comm=comm or LocalCommunicator(),
            kernels=kernels,
            clock=NoClock(),
            training=training or Training(sh_every=0),
            cameras=self.cameras,
            batch=batch,
            seed=0,
            bounds=self.source.bounds,
            extent=1.0,
        )


class NoClock:
    """A clock that measures nothing."""

    watched = False

    def __call__(self, stage: str):
        return nullcontext()


def tiny_scene(count: int = 60, views: int = 4, seed: int = 0) -> TinyScene:
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.zeros(count, layout.PARAMETERS)
    parameters[:, layout.MEAN] = torch.rand(count, 3, generator=generator) * 2 - 1
    parameters[:, layout.LOG_SCALE] = torch.randn(count, 3, generator=generator) * 0.4 - 2.0
    parameters[:, layout.QUATERNION] = torch.randn(count, 4, generator=generator)
    parameters[:, layout.OPACITY_LOGIT] = torch.randn(count, generator=generator)
    parameters[:, layout.SH] = torch.randn(count, 48, generator=generator) * 0.2
    cameras, images = [], []
    for view in range(views):
        width, height = 40 + 7 * view, 33 + 5 * view
        angle = 2 * np.pi * view / views
        c, s = np.cos(angle), np.sin(angle)
        pose = np.eye(4)
        pose[:3, :3] = [[c, 0, -s], [0, 1, 0], [s, 0, c]]
        pose[:3, 3] = [0, 0, 4.0]
        cameras.append(Camera(width, height, 45.0, 46.0, width / 2 + 1, height / 2 - 1, pose))
        images.append(torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator))
    return TinyScene(TinyGaussians(parameters), TinyImages(images), cameras)


@pytest.fixture
def scene() -> TinyScene:
    return tiny_scene()


@pytest.fixture
def waits_are_errors():
    """A context in which whatever PyTorch would make the host wait for, on a GPU, is an error."""

    @contextmanager
    def inside() -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return inside


@pytest.fixture
def make_scene():
    """The builder itself, for tests that choose counts, views or seeds."""
    return tiny_scene


def padded(values: torch.Tensor, rows: int) -> torch.Tensor:
    """The first `rows` rows, with garbage where there are fewer."""
    out = torch.full((rows, *values.shape[1:]), 7, dtype=values.dtype)
    out[: len(values)] = values[:rows]
    return out


def parts_of(made: Any) -> list[torch.Tensor]:
    """All tensors of what an operator returned, in a fixed order."""
    if isinstance(made, torch.Tensor):
        return [made]
    if is_dataclass(made):
        return [part for field in fields(made) for part in parts_of(getattr(made, field.name))]
    return []


def on_tapes(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator, done again when a tape is played: what it returned first then holds its results."""

    def called(*given: Any, **named: Any) -> Any:
        first: list[Any] = []

        def do() -> Any:
            made = operator(*given, **named)
            if first:
                for old, new in zip(parts_of(first[0]), parts_of(made), strict=True):
                    old.copy_(new)
            first.append(made)
            return first[0]

        return act(do)

    return called


class WithRooms:
    """`portable`, with rooms and on tapes as compiled kernels are. Counts views that were exact and that had rooms."""

    TAKES_ROOMS, READS_BOUNDS = True, False

    def __init__(self) -> None:
        self.exact = self.roomy = 0
        self.project, self.bin_splats = on_tapes(self._project), on_tapes(self._bin_splats)
        self.begin_bins = on_tapes(self._begin_bins)
        self.project_backward_adam = on_tapes(self._project_backward_adam)
        self.there: dict[int, tuple[range, torch.Tensor]] = {}
        """By workspace, what lists were begun with."""

    def __getattr__(self, name: str):
        operator = getattr(portable, name)
        return on_tapes(operator) if callable(operator) else operator

    def _project(self, kernels, parameters, ids, camera, sh_degree, workspace, room: Room | None = None) -> Splats:
        splats = portable.project(kernels, parameters, ids, camera, sh_degree, workspace)
        if room is None:
            self.exact += 1
            return splats
        self.roomy += 1
        if splats.count > room.splats:
            room.overflow.fill_(1)
        columns = (padded(getattr(splats, name), room.splats) for name in ("rows", "ids", "records"))
        return Splats(*columns, torch.tensor([splats.count, 0]), room.overflow)

    def _begin_bins(self, kernels, splats, camera, workspace, tiles, depth_limit, room: Room, there: range) -> None:
        self.there[id(workspace)] = there, splats.records[there.start : there.stop].clone()

    def _bin_splats(
        self, kernels, splats, camera, workspace, tiles, subtiles, depth_limit, room: Room | None = None,
        begun: range = range(0),
    ) -> Bins:  # fmt: skip
        if begun:
            there, records = self.there.pop(id(workspace))
            assert there == begun
            assert torch.equal(splats.records[there.start : there.stop].nan_to_num(), records.nan_to_num())
        live = self.live(splats)
        drawn = live.records[:, layout.RECORD_DEPTH].isfinite()
        shown = Splats(live.rows[drawn], live.ids[drawn], live.records[drawn])
        bins = portable.bin_splats(kernels, shown, camera, workspace, tiles, subtiles, depth_limit)
        # Splats without a depth have no tile.
        instances = torch.zeros(live.count, dtype=torch.int64).masked_scatter_(drawn, bins.splat_starts.diff())
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), instances.cumsum(0)])
        at = drawn.nonzero()[:, 0].to(torch.int32)
        bins = replace(bins, splat=at[bins.splat.long()], splat_starts=starts)
        if room is None:
            return bins
        if bins.instances > room.instances:
            room.overflow.fill_(1)
        needed = torch.tensor([int(splats.live[0]), 0, bins.instances, int(room.overflow)])
        if room.overflow:  # Lists that are cut off somewhere.
            bins = replace(bins, starts=bins.starts.clamp(max=0), splat_starts=torch.zeros_like(bins.splat_starts))
        ends = bins.splat_starts[-1:].expand(splats.count - live.count)
        return replace(
            bins,
            splat=padded(bins.splat, room.instances),
            slot=padded(bins.slot, room.instances),
            splat_starts=torch.cat([bins.splat_starts, ends]),
            needed=needed,
        )

    def _project_backward_adam(
        self, kernels, parameters, moment1, moment2, views, sh_degree, workspace, pace, beta1, beta2, epsilon, rows,
        batch_rule, bounds, part,
    ) -> None:  # fmt: skip
        """Of the visible rows, averaged over the views that see them."""
        if part == "find":
            return
        assert (rows, batch_rule, bounds) == ("visible", "rows", None)
        if any(seen.splats.overflow is not None and seen.splats.overflow for seen in views):
            return
        summed = torch.zeros_like(parameters)
        times = torch.zeros(len(parameters), dtype=torch.int32)
        waits = torch.zeros(len(parameters), dtype=torch.bool)
        zeros = []
        for seen in views:
            live = self.live(seen.splats)
            gradients = seen.gradients[: live.count].contiguous()
            if (kept := seen.kept) is not None:
                places = kept.places[: live.count]
                waits[live.rows[places == ELSEWHERE]] = True
                own = torch.zeros_like(gradients)
                own[places >= 0] = kept.gradients[places[places >= 0].long()]
                zeros.append((kept.zeros, live.rows[(places >= 0) & ~own.any(dim=1)]))
                gradients = torch.where((places == ELSEWHERE)[:, None], gradients, own)
            summed[live.rows] += portable.project_backward(
                kernels, parameters, live, seen.camera, sh_degree, gradients, workspace
            )
            times[live.rows] += 1
        moved = times.nonzero()[:, 0]
        if part != "all":
            moved = moved[waits[moved] == (part == "rest")]
        for counted, those in zeros:
            counted += int(torch.isin(those, moved).sum())
        portable.adam_rows(
            kernels, parameters, moment1, moment2, moved, summed[moved], times[moved], pace.rates.float(),
            pace.images_seen, beta1, beta2, epsilon,
        )  # fmt: skip

    @staticmethod
    def live(splats: Splats) -> Splats:
        if splats.live is None:
            return splats
        live = min(int(splats.live[0]), splats.count)
        return Splats(splats.rows[:live], splats.ids[:live], splats.records[:live].contiguous())


@pytest.fixture
def kernels_with_rooms(monkeypatch: pytest.MonkeyPatch):
    """Makes such a stand-in the back end of that name."""

    def make(name: str, takes_rooms: bool = True) -> WithRooms:
        module = WithRooms()
        module.TAKES_ROOMS = takes_rooms
        monkeypatch.setitem(sys.modules, f"cuda_src.{name}", module)
        return module

    return make


def grown(mask: torch.Tensor, by: int) -> torch.Tensor:
    """A boolean [H, W] mask grown by `by` pixels in both directions, corners included."""
    size = 2 * by + 1
    across = F.max_pool2d(mask[None, None].float(), (1, size), stride=1, padding=(0, by))
    return F.max_pool2d(across, (size, 1), stride=1, padding=(by, 0))[0, 0] > 0


def halo_by_masks(owners: Any, rank: int, ranks: int, views: int) -> Halo:
    """The halo of a rank in any partition, from masks of whole images. owners: `pixel_owner(view)`, [H, W] int64."""
    of_views = [owners.pixel_owner(view) for view in range(views)]
    none = of_views[0].new_empty(0)
    gives, takes = ([[none] * views for _ in range(ranks)] for _ in range(2))
    for view, owner in enumerate(of_views):
        mine = owner == rank
        if not bool(mine.any()):
            continue
        near_me = grown(mine, SSIM_HALO)
        for other in range(ranks):
            theirs = owner == other
            if other != rank and bool(theirs.any()):
                gives[other][view] = (mine & grown(theirs, SSIM_HALO)).flatten().nonzero()[:, 0]
                takes[other][view] = (theirs & near_me).flatten().nonzero()[:, 0]
    return Halo(gives, takes)


@pytest.fixture(scope="session")
def dilate() -> Callable[[torch.Tensor, int], torch.Tensor]:
    return grown


@pytest.fixture(scope="session")
def halo_of_pixels() -> Callable[[Any, int, int, int], Halo]:
    """What halos found from runs of tiles are held to."""
    return halo_by_masks
