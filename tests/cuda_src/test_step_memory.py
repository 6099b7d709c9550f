"""What compiled operators ask of a workspace for a step: counted in bytes, without a GPU, on no memory at all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.bounds import empty_bounds
from cuda_src.camera import TILE, Camera
from cuda_src.compiled import bindings, raster, scratch
from cuda_src.compiled.lent import loss_bytes
from cuda_src.operators import KernelSet, Room, Seen
from cuda_src.workspace import Workspace

META, GPU = torch.device("meta"), torch.device("cuda", 0)
CAMERA = Camera(1920, 1080, 1000.0, 1000.0, 960.0, 540.0, np.eye(4))
PIXELS = CAMERA.width * CAMERA.height


def slots_of(instances: int) -> int:
    """Segments of cut lists at most, as most_slots of segments.cuh has it: 8 Mi instances are cut as finely as any."""
    size = 1024 * -(-instances // (8 << 20))
    return instances // size + instances // (size * 3 // 2)


def segment_bytes(tiles, instances, size) -> int:
    """As segments_in of segments.cu: heads, a segment of 48 B each, for those of cut lists 8 planes of a tile, and the
    cells that each instance reaches."""
    slots = slots_of(instances.value)
    size._obj.value = 4 * (4 + 3 * slots + 3) + 48 * (tiles.value + instances.value // 1024) + slots * 8 * TILE**2 * 4
    size._obj.value += 2 * instances.value
    return 0


def scratch_bytes(device, items, size) -> int:
    """CUB's for prefix sums: 16 B for every 2000 items and more."""
    size._obj.value = 16 * (items.value // 2000) + (1 << 16)
    return 0


@pytest.fixture
def anywhere(monkeypatch):
    """Meta tensors pass for those of a GPU, and the library only says how much memory its functions want."""

    class Library:
        def __getattr__(self, name: str):
            return {"segment_bytes": segment_bytes, "scratch_bytes": scratch_bytes}.get(name, lambda *given: 0)

    own = Library()
    for module in (bindings, raster, scratch):
        monkeypatch.setattr(module, "library", lambda: own)
    monkeypatch.setattr(bindings, "queue_of", lambda device: bindings.Queue(0, 0))
    called: list[str] = []
    monkeypatch.setattr(bindings, "_declared", lambda function, arguments: lambda *given: called.append(function) or 0)
    scratch._bytes_for.cache_clear()
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "device", GPU)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    # What the host reads of a view that it counts: splats, of three words alone, and instances.
    found: list[int] = [0, 0]
    read = torch.Tensor.tolist

    def answer(self: torch.Tensor) -> list[int]:
        return [found[self.untyped_storage().nbytes() > 24], 0, 0] if self.is_meta else read(self)

    monkeypatch.setattr(torch.Tensor, "tolist", answer)
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: found[1])
    yield SimpleNamespace(kernels=KernelSet("compiled", GPU), found=found, called=called)
    scratch._bytes_for.cache_clear()


class Steps:
    """Steps of one view each on so many Gaussians, and what their workspaces hold."""

    def __init__(self, anywhere: SimpleNamespace, count: int) -> None:
        self.kernels, self.found, self.count = anywhere.kernels, anywhere.found, count
        self.work, self.shared = Workspace(META), Workspace(META)
        self.tables = [torch.empty((count, layout.PARAMETERS), device=META) for _ in range(3)]
        self.ids = torch.empty(count, dtype=torch.int64, device=META)
        self.bounds = empty_bounds(count, torch.float32, META)
        self.overflow = torch.empty(1, dtype=torch.int32, device=META)
        self.target = torch.empty((CAMERA.height, CAMERA.width, 3), dtype=torch.uint8, device=META)

    def step(self, splats: int, instances: int, roomy: bool = True, backward: bool = True) -> op.Raster:
        """The picture of a view of that room, or of a first visit, which finds so many."""
        kernels, work, background = self.kernels, self.work, torch.empty(3, device=META)
        room = Room(splats, instances, self.overflow) if roomy else None
        self.found[:] = splats, instances
        seen = op.project(kernels, self.tables[0], self.ids, CAMERA, 3, work, room, self.bounds, True)
        bins = op.bin_splats(kernels, seen, CAMERA, work, room=room)
        picture = op.raster_forward(kernels, seen, bins, CAMERA, work, background=background)
        if not backward:
            return picture
        loss = op.l1_ssim(kernels, picture.colour, self.target, work)
        partial = op.raster_backward(kernels, seen, bins, picture, CAMERA, loss.gradient, work, background)
        rates = torch.zeros(layout.PARAMETERS)
        of_view = [Seen(seen, CAMERA, partial)]
        op.project_backward_adam(kernels, *self.tables, of_view, 3, self.shared, op.Pace(rates, 1), bounds=self.bounds)
        return picture

    @property
    def held(self) -> dict[str, int]:
        """Bytes by buffer."""
        buffers = [*self.work._buffers.items(), *self.shared._buffers.items()]
        return {name: buffer.numel() * buffer.element_size() for (name, _), buffer in buffers}

    @property
    def beside_tables(self) -> int:
        """Most bytes at once of all but parameters and moments: ids, bounds, workspaces."""
        return 8 * self.count + self.count + self.work.peak_bytes + self.shared.peak_bytes


def roomy(splats: float, instances: float) -> tuple[int, int]:
    """The room of a view that needs so much: strategies/training/rooms.py."""
    splats, instances = (int(need) + int(need) // 32 + 1024 for need in (splats, instances))
    return splats, instances


@pytest.mark.parametrize("backward", [True, False])
def test_a_step_at_20_million_gaussians_holds_at_most_64_bytes_a_gaussian_and_200_a_pixel(anywhere, backward):
    # The street: the mean, more than the largest of 16 views, than which most are smaller, and one more.
    views = [(4_400_000, 7_500_000), (10_600_000, 16_200_000), (3_000_000, 5_000_000)]
    steps = Steps(anywhere, 20_000_000)
    for view in views:
        steps.step(*view, roomy=False, backward=backward)
    for view in views:
        steps.step(*roomy(*view), backward=backward)
    assert steps.beside_tables <= 64 * 20_000_000 + 200 * PIXELS


def test_binning_the_raster_and_gradients_share_memory(anywhere):
    splats, instances = 1_000_000, 2_000_000
    steps = Steps(anywhere, 4_000_000)
    steps.step(splats, instances)
    binning = 20 * splats + 16 * instances
    loss = 36 * PIXELS
    raster_and_gradients = max(48 * splats, loss) + 8192 * slots_of(instances) + 2 * instances
    held = steps.held
    assert loss > 48 * splats
    assert held["compiled.lent"] == pytest.approx(max(binning, raster_and_gradients), rel=0.02)
    assert held["project.rows"] + held["project.records"] == 56 * splats
    assert not any("gradients" in name or "segments" in name or "project.ids" in name for name in held)


@pytest.mark.parametrize("splats", [1, 1_000_000, 3_000_000])
def test_the_loss_works_where_gradients_will_be_and_leaves_segments_alone(anywhere, splats):
    steps = Steps(anywhere, 4_000_000)
    picture = steps.step(splats, 2 * splats)
    segments, gradients = picture.segments.storage_offset(), picture.by_splat.storage_offset() * 4
    assert gradients == 0
    assert segments >= max(loss_bytes(CAMERA.height, CAMERA.width), 48 * splats)
    assert not any(name.startswith("loss.derivatives") for name in steps.held)


def test_a_first_visit_asks_for_no_more_than_a_room_of_what_it_found(anywhere):
    found = (1_000_000, 1_500_000)
    first, roomy = Steps(anywhere, 4_000_000), Steps(anywhere, 4_000_000)
    first.step(*found, roomy=False)
    roomy.step(*found)
    counted = first.held.pop("bin.splat_starts")
    assert counted == 8 * (found[0] + 1)
    assert first.work.peak_bytes <= roomy.work.peak_bytes + counted
    first.step(*found)
    assert "bin.splat_starts" not in first.held


def test_a_first_visit_that_finds_too_little_memory_for_its_instances_looks_at_its_splats_again(anywhere):
    steps = Steps(anywhere, 4_000_000)
    for visit, times in enumerate((2, 1)):
        anywhere.called.clear()
        steps.step(1_000_000, 5_000_000, roomy=False)
        assert anywhere.called.count("count_instances") == times, visit


def test_what_segments_leave_has_a_limit():
    sizes = [8192 * slots_of(instances) for instances in (1 << 20, 8 << 20, 9 << 20, 20 << 20, 100 << 20, 1 << 31)]
    assert max(sizes) <= 112 << 20


def test_views_that_grow_leave_a_thirty_second_idle_at_most(anywhere):
    views = [(int(1e6 * 1.02**i), int(2e6 * 1.02**i)) for i in range(60)]
    growing, at_once = Steps(anywhere, 4_000_000), Steps(anywhere, 4_000_000)
    for view in views:
        growing.step(*view)
    at_once.step(*views[-1])
    for name, held in at_once.held.items():
        assert growing.held[name] <= held * 33 / 32 + 4096, name
