"""Compiled operators called over and over, as graphs from some call on: what they leave stays what it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.compiled import bindings
from cuda_src.compiled.bindings import REPLAYED_FROM
from cuda_src.exchange import RankRooms, pack_records, route_splats, wire_width
from cuda_src.operators import KernelSet, Room
from cuda_src.workspace import Workspace

pytestmark = pytest.mark.gpu

PICTURES = ("colour", "transmittance", "depth", "stopped", "last", "stop_depth")


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    return torch.device("cuda", 0)


@pytest.fixture
def kernels(device) -> KernelSet:
    return KernelSet("compiled", device)


@pytest.fixture
def stepping(parity, kernels, device) -> Callable[..., tuple[list[torch.Tensor], torch.Tensor]]:
    """What a step of one view leaves, exactly comparable, and its gradients, which atomics add in no fixed order.

    With a workspace of the caller's, or a new one, where nothing is replayed.
    """
    view = parity.view(12, gaussians=3000, width=130, height=70, sizes=(0.5, 40.0))
    target = torch.randint(0, 256, (70, 130, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)).to(
        device
    )
    ids, overflow = view.ids.to(device), torch.zeros(1, dtype=torch.int32, device=device)
    background = torch.tensor([0.1, 0.2, 0.3], device=device)
    room = Room(3000, 200_000, overflow)

    def step(parameters: torch.Tensor, work: Workspace | None = None) -> tuple[list[torch.Tensor], torch.Tensor]:
        work = work or Workspace(device)
        splats = op.project(kernels, parameters, ids, view.camera, 3, work, room)
        bins = op.bin_splats(kernels, splats, view.camera, work, room=room)
        raster = op.raster_forward(kernels, splats, bins, view.camera, work, background=background)
        loss = op.l1_ssim(kernels, raster.colour, target, work)
        partial = op.raster_backward(kernels, splats, bins, raster, view.camera, loss.gradient, work, background)
        live, instances = int(splats.live[0]), int(bins.starts[-1])
        exact = [splats.rows[:live], splats.records[:live], bins.starts, bins.splat[:instances], bins.needed]
        exact += [*(getattr(raster, name) for name in PICTURES), loss.value, loss.gradient]
        return [part.clone() for part in exact], partial[:live].clone()

    step.parameters = view.parameters.to(device)
    return step


def assert_same(parity, ours, theirs) -> None:
    assert len(ours[1])
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(mine, other)
    parity.close(ours[1], theirs[1], 1e-5)


def test_every_replay_leaves_what_plain_launches_do_for_gaussians_that_moved(parity, stepping, device):
    work, parameters = Workspace(device), stepping.parameters
    for visit in range(REPLAYED_FROM + 4):
        assert_same(parity, stepping(parameters, work), stepping(parameters))
        parameters[:, layout.MEAN] += 1e-3 * (visit + 1)
        parameters[visit::50, layout.OPACITY_LOGIT] -= 30.0


def test_replays_follow_the_stream_and_other_tables(parity, stepping, device):
    work, stream = Workspace(device), torch.cuda.Stream(device)
    for _ in range(REPLAYED_FROM + 1):
        stepping(stepping.parameters, work)
    other = stepping.parameters + 2e-3
    for parameters in (other, stepping.parameters, other):
        expected = stepping(parameters)
        torch.cuda.synchronize(device)
        with torch.cuda.stream(stream):
            ours = stepping(parameters, work)
        stream.synchronize()
        assert_same(parity, ours, expected)


def test_a_buffer_that_moves_takes_its_graphs_along(parity, stepping, device):
    work, before = Workspace(device), len(bindings._RECORDED)
    for _ in range(REPLAYED_FROM + 1):  # The first visit finds out how much memory it needs.
        stepping(stepping.parameters, work)
    assert len(bindings._RECORDED) == before + 5
    for name, dtype in list(work._buffers):
        if not name.startswith("workspace."):
            work.take(name, (3 * work.capacity(name, dtype) + 1,), dtype).fill_(0)
    assert len(bindings._RECORDED) == before
    for _ in range(REPLAYED_FROM + 1):
        assert_same(parity, stepping(stepping.parameters, work), stepping(stepping.parameters))


def test_a_region_of_one_view_leaves_nothing_in_that_of_the_next(parity, kernels, device):
    view = parity.view(12, gaussians=3000, width=130, height=70, sizes=(0.5, 40.0))
    rows, ids, every = view.parameters.to(device), view.ids.to(device), view.camera.tiles
    overflow = torch.zeros(1, dtype=torch.int32, device=device)
    room, camera = Room(3000, 200_000, overflow), view.camera
    regions = [torch.arange(*ends, dtype=torch.int32, device=device) for ends in ((0, 20), (13, every), (0, every))]
    regions.append(regions[0][:0])

    def pictures(tiles: torch.Tensor, work: Workspace) -> list[torch.Tensor]:
        splats = op.project(kernels, rows, ids, camera, 3, work, room)
        bins = op.bin_splats(kernels, splats, camera, work, tiles, room=room)
        raster = op.raster_forward(kernels, splats, bins, camera, work)
        return [getattr(raster, name).clone() for name in PICTURES]

    work = Workspace(device)
    for _ in range(REPLAYED_FROM + 1):
        for tiles in regions:
            for mine, other in zip(pictures(tiles, work), pictures(tiles, Workspace(device)), strict=True):
                assert torch.equal(mine, other)
    for picture in pictures(regions[-1], work):
        assert not picture.any()


def test_routes_of_a_room_are_replayed_for_gaussians_that_moved(parity, kernels, device):
    view = parity.view(12, gaussians=3000, width=130, height=70, sizes=(0.5, 40.0))
    rows, ids, camera = view.parameters.to(device), view.ids.to(device), view.camera
    overflow, work = torch.zeros(1, dtype=torch.int32, device=device), Workspace(device)
    owners = (torch.arange(camera.tiles, dtype=torch.int32) >= camera.tiles // 2).to(torch.int32).to(device)
    room = Room(3000, 200_000, overflow)

    def routed(work: Workspace) -> list[torch.Tensor]:
        splats = op.project(kernels, rows, ids, camera, 3, work, room)
        routing = route_splats(kernels, splats, camera, owners, 2, work, rooms=RankRooms((3001, 3001), (9000, 9000)))
        wire = torch.zeros(6002, wire_width(kernels), device=device)
        pack_records(kernels, splats, routing, 0, wire)
        there = wire[:, layout.RECORD_DEPTH] > 0
        return [routing.masks[: int(splats.live[0])].clone(), routing.counts.clone(), wire[there].view(torch.int32)]

    for visit in range(REPLAYED_FROM + 3):
        for mine, other in zip(routed(work), routed(Workspace(device)), strict=True):
            assert torch.equal(mine, other)
        rows[:, layout.MEAN] += 1e-3 * (visit + 1)


def test_a_caller_may_record_a_graph_of_its_own(kernels, device):
    generator = torch.Generator().manual_seed(2)
    image = torch.rand(70, 130, 3, generator=generator).to(device)
    target = torch.randint(0, 256, (70, 130, 3), dtype=torch.uint8, generator=generator).to(device)
    work, recorded = Workspace(device), torch.cuda.CUDAGraph()
    for _ in range(REPLAYED_FROM + 1):
        loss = op.l1_ssim(kernels, image, target, work)
    with torch.cuda.graph(recorded):
        op.l1_ssim(kernels, image, target, work)
    image.mul_(0.5)
    loss.gradient.zero_()
    recorded.replay()
    expected = op.l1_ssim(kernels, image, target, Workspace(device))
    assert torch.equal(loss.value, expected.value)
    assert torch.equal(loss.gradient, expected.gradient)
