"""`single` with compiled kernels: a steady step waits for nothing and allocates nothing; overflows are done again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training import rooms as rooms_module
from strategies.training.config import Training
from strategies.training.late_pictures import LatePictures
from strategies.views import ViewQueue

pytestmark = pytest.mark.gpu

# An epsilon that keeps Adam's step smooth near a gradient of zero, since sums by atomics differ in the last bit.
TRAINING = Training(sh_every=0, epsilon=1e-3, rate_scale=0.1)


@pytest.fixture(autouse=True)
def _a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")


@pytest.fixture
def single(make_scene):
    """A strategy on the GPU whose images lie there too, and the queue of its views."""

    def build(batch: int = 1, rooms: bool = True, training: Training = TRAINING, count: int = 400):
        scene, device = make_scene(count=count), torch.device("cuda", 0)
        scene.images.images = [image.to(device) for image in scene.images.images]
        context = scene.context(KernelSet("compiled", device), training, batch)
        context = replace(context, world=World.alone(device), comm=LocalCommunicator(device))
        strategy = Single()
        strategy.setup(context, scene.source, scene.images, SingleOptions())
        if not rooms:
            strategy.rooms = strategy.late = None
        return strategy, ViewQueue(range(4), shuffle=False)

    return build


@pytest.mark.parametrize("optimizer", ["visible", "touched", "dense"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_steady_step_reads_nothing_on_the_host_and_allocates_nothing(single, batch, optimizer, waits_are_errors):
    strategy, queue = single(batch, training=TRAINING.model_copy(update={"optimizer": optimizer}))
    for _ in range(16 // batch):
        strategy.step(queue)
    strategy.settle()
    torch.cuda.synchronize()
    held = torch.cuda.memory_stats()["allocation.all.allocated"]
    with waits_are_errors():
        for _ in range(8 // batch):
            strategy.step(queue)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == held


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("too_small", [(0, None), (None, 0), None])
def test_gaussians_are_those_of_exact_steps_whatever_overflows(monkeypatch, single, batch, too_small):
    monkeypatch.setattr(rooms_module, "MARGIN", 8)
    (ours, mine), (exact, theirs) = single(batch), single(batch, rooms=False)
    reports = []
    for step in range(16 // batch):
        if step == 8 // batch and too_small is not None:
            ours.settle()
            for view in (1, 2):
                (splats, instances), (few, short) = ours.rooms._needs[view], too_small
                ours.rooms.learn(view, splats if few is None else few, instances if short is None else short)
        reports.append((ours.step(mine), exact.step(theirs)))
    for a, b in reports:
        assert a.loss.item() == pytest.approx(b.loss.item(), rel=1e-4)
        assert (a.visible_gaussians, a.tile_instances) == (b.visible_gaussians, b.tile_instances)
    for a, b in zip(ours.shards(), exact.shards(), strict=True):
        assert torch.equal(a.ids, b.ids)
        assert torch.allclose(a.parameters, b.parameters, rtol=1e-4, atol=1e-5)
        assert torch.allclose(a.moment1, b.moment1, rtol=1e-3, atol=1e-6)
    assert int(ours.rooms.overflow) == 0


def test_steady_pictures_read_nothing_on_the_host_and_are_those_of_exact_kernels(single, waits_are_errors):
    strategy, _ = single()
    exact, _ = single()
    exact.late_pictures = LatePictures(exact.device, exact._draw, with_rooms=False)
    cameras = list(strategy.ctx.cameras)
    for _ in range(5):  # From the fourth on they are graphs.
        for mine, other in zip(strategy.pictures(cameras), exact.pictures(cameras), strict=True):
            assert torch.equal(mine, other)
    torch.cuda.synchronize()
    with waits_are_errors():
        pictures = list(strategy.pictures(cameras))
    for mine, other in zip(pictures, exact.pictures(cameras), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("too_small", [(0, None), (None, 0)])
def test_a_picture_that_outgrew_its_room_is_right_when_it_is_given(monkeypatch, single, too_small):
    monkeypatch.setattr(rooms_module, "MARGIN", 8)
    strategy, _ = single()
    cameras = list(strategy.ctx.cameras)
    expected = list(strategy.pictures(cameras))
    rooms = strategy.late_pictures._rooms
    for camera in cameras[1:3]:
        (splats, instances), (few, short) = rooms._needs[camera], too_small
        rooms.learn(camera, splats if few is None else few, instances if short is None else short)
    for mine, other in zip(strategy.pictures(cameras), expected, strict=True):
        assert torch.equal(mine, other)
