"""`grendel` with compiled kernels, several ranks on one GPU: equal to `single`, whatever its rooms and ties do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution import gaussian_exchange
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.gaussian_exchange import BACKWARD_BYTES, FORWARD_BYTES, Passage
from strategies.distribution.virtual import VirtualWorld
from strategies.grendel.info import GrendelOptions
from strategies.grendel.strategy import Grendel
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training import rooms as rooms_module
from strategies.training.config import Training
from strategies.views import ViewQueue

pytestmark = pytest.mark.gpu

EXACT = Training(sh_every=0, beta1=0.0)
"""With beta1 = 0 Adam's first moment is the gradient itself."""
COUNT = 3000


@pytest.fixture(autouse=True)
def _a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")


def kernels() -> KernelSet:
    return KernelSet("compiled", torch.device("cuda", 0))


def images_on_gpu(scene):
    scene.images.images = [image.cuda() for image in scene.images.images]
    return scene


def by_id(ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return rows[torch.argsort(ids)]


def alike(scene):
    """The scene with images of one size: a batch of as many views as ranks then is cut between its views."""
    generator = torch.Generator().manual_seed(5)
    scene.cameras = [replace(camera, width=56, height=48) for camera in scene.cameras]
    scene.images.images = [
        torch.randint(0, 256, (48, 56, 3), dtype=torch.uint8, generator=generator) for _ in scene.cameras
    ]
    return scene


def oracle_steps(scene, steps: int, batch: int, training: Training, shuffle: bool = True):
    """Of every step of `single`: parameters before it by id, gradients, image of a camera and loss."""
    context = scene.context(kernels(), training, batch)
    device = torch.device("cuda", 0)
    single = Single()
    single.setup(
        replace(context, world=World.alone(device), comm=LocalCommunicator(device)), scene.source, scene.images,
        SingleOptions(),
    )  # fmt: skip
    order, told = ViewQueue(range(len(scene.cameras)), seed=3, shuffle=shuffle), []
    for step in range(steps):
        gaussians = single.gaussians
        start = by_id(gaussians.ids, gaussians.parameters).clone()
        image = single.render(scene.cameras[step % len(scene.cameras)]).clone()
        loss = single.step(order).loss.item()
        single.settle()
        told.append((start, by_id(gaussians.ids, gaussians.moment1).clone(), image, loss))
    return told


def check(
    scene,
    ranks: int,
    batch: int,
    steps: int = 12,
    training: Training = EXACT,
    before: Callable[[Grendel, int], None] = lambda strategy, step: None,
    shuffle: bool = True,
    **options,
) -> list[Grendel]:
    """Strategies by rank; every step starts from the oracle's parameters and has its gradients, image and loss."""
    told = oracle_steps(images_on_gpu(scene), steps, batch, training, shuffle)
    losses = torch.zeros(steps, dtype=torch.float64)

    def rank_main(comm: Communicator) -> Grendel:
        strategy, order = Grendel(), ViewQueue(range(len(scene.cameras)), seed=3, shuffle=shuffle)
        strategy.setup(
            scene.context(kernels(), training, batch, comm), scene.source, scene.images, GrendelOptions(**options)
        )
        for step, (start, gradients, truth, _) in enumerate(told):
            before(strategy, step)
            gaussians = strategy.gaussians
            gaussians.parameters.copy_(start[gaussians.ids])
            image = strategy.render(scene.cameras[step % len(scene.cameras)])
            assert image is None or (image - truth).abs().max() <= 1e-5, step
            losses[step] += strategy.step(order).loss.item()
            gaussians = strategy.gaussians
            for group in layout.PARAMETER_GROUPS.values():
                largest = gradients[:, group].abs().max()
                error = (gaussians.moment1[:, group] - gradients[gaussians.ids][:, group]).abs()
                assert error.numel() == 0 or error.max() <= 1e-5 * largest, (step, group)
        return strategy

    strategies = VirtualWorld(ranks).run(rank_main, "cuda:0")
    for step, (*_, loss) in enumerate(told):
        assert losses[step].item() == pytest.approx(loss, rel=1e-5)
    return strategies


@pytest.mark.parametrize("unit", ["block", "image"])
@pytest.mark.parametrize(("ranks", "batch"), [(1, 1), (2, 1), (2, 2), (3, 2), (5, 4)])
def test_gradients_images_and_losses_equal_single_from_the_same_parameters(make_scene, ranks, batch, unit):
    strategies = check(make_scene(count=COUNT), ranks, batch, unit=unit)
    assert sum(strategy.gaussians.count for strategy in strategies) == COUNT


@pytest.fixture
def rendered_whole(monkeypatch) -> list[int]:
    """By passage of a view that one rank renders whole, that rank."""
    told, route = [], gaussian_exchange.route_whole

    def routed(kernels, splats, rank, *rest):
        told.append(rank)
        return route(kernels, splats, rank, *rest)

    monkeypatch.setattr(gaussian_exchange, "route_whole", routed)
    return told


@pytest.mark.parametrize("codec", ["dense", "bitmap"])
@pytest.mark.parametrize(("ranks", "batch"), [(2, 2), (3, 4), (4, 4)])
def test_views_that_one_rank_renders_whole_are_as_any_others(make_scene, rendered_whole, ranks, batch, codec):
    options = {"balance": "off", "unit": "image"} if ranks == 3 else {"balance": "off"}
    check(alike(make_scene(count=COUNT)), ranks, batch, shuffle=False, codec=codec, **options)
    assert set(rendered_whole) == set(range(ranks))


@pytest.mark.parametrize("column", [0, 1])
def test_a_room_of_a_whole_view_that_is_too_small_is_made_good(make_scene, rendered_whole, column):
    def shrink(strategy: Grendel, step: int) -> None:
        if step != 8:
            return
        for views, known in list(strategy.batch_rooms._known.items()):
            counts = [of_view.clone() for of_view in known.counts]
            for of_view in counts:
                of_view[1, :, column] = 0
            strategy.batch_rooms.learn(views, SimpleNamespace(cuts=known.cuts), counts)

    check(alike(make_scene(count=COUNT)), 2, 2, shuffle=False, before=shrink, balance="off")
    assert rendered_whole


@pytest.mark.parametrize("codec", ["bitmap", "index"])
@pytest.mark.parametrize("record", ["packed", "64"])
def test_codecs_and_padded_records_change_nothing(make_scene, codec, record):
    check(make_scene(count=COUNT), 3, 2, codec=codec, record=record, steps=6)


@pytest.mark.parametrize("codec", ["bitmap", "index"])
def test_a_steady_step_with_sparse_gradients_makes_the_host_wait_for_counts_alone(make_scene, codec, waits_are_errors):
    """Counts come in pinned memory behind an event; whatever else PyTorch would wait for is an error."""
    scene, device = images_on_gpu(make_scene(count=COUNT)), torch.device("cuda", 0)
    context = replace(scene.context(kernels(), EXACT, 2), world=World.alone(device), comm=LocalCommunicator(device))
    strategy, order = Grendel(), ViewQueue(range(4), shuffle=False)
    strategy.setup(context, scene.source, scene.images, GrendelOptions(codec=codec))
    for _ in range(4):
        strategy.step(order)
    with waits_are_errors():
        for _ in range(4):
            strategy.step(order)


@pytest.mark.parametrize("balance", ["measured", "off"])
def test_balance_and_redistribution_change_nothing(make_scene, balance):
    check(make_scene(count=COUNT), 2, 1, balance=balance, redistribute="random", redistribute_images=4)


@pytest.mark.parametrize("optimizer", ["touched", "dense"])
def test_other_rules_of_rows_hold_as_well(make_scene, optimizer):
    check(make_scene(count=COUNT), 2, 2, training=EXACT.model_copy(update={"optimizer": optimizer}), steps=6)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_room_that_is_too_small_on_one_rank_is_found_before_anything_is_sent(make_scene, monkeypatch, batch):
    made = []

    def counted(self, *args, **named):
        made.append(args[0].comm.rank)
        original(self, *args, **named)

    original = Passage.__init__
    monkeypatch.setattr(Passage, "__init__", counted)

    def shrink(strategy: Grendel, step: int) -> None:
        if step != 8:
            return
        strategy.batch_rooms.clear()  # Else a batch that comes again is sent before its counts are looked at.
        if strategy.comm.rank == 1:
            for view in range(4):
                strategy.rooms.learn(view, -970, 0)  # With its margin, a room of 23.

    strategies = check(make_scene(count=COUNT), 2, batch, before=shrink)
    for rank, strategy in enumerate(strategies):
        # Every view of each step and its render, and those that did not fit once more, on both ranks.
        assert made.count(rank) > 12 * (batch + 1)
        assert int(strategy.rooms.overflow) == 0


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("what", ["records", "instances", "splats"])
def test_a_batch_that_nobody_waited_for_is_done_again_by_all_ranks_where_one_had_too_little_room(
    make_scene, monkeypatch, ranks, what
):
    again: list[int] = []
    original = Grendel._exactly

    def counted(self, plan, regions=None):
        again.append(self.comm.rank)
        return original(self, plan, regions)

    def spoil(strategy: Grendel, step: int) -> None:
        if step != 8:
            return
        rooms, column = strategy.batch_rooms, {"records": 0, "instances": 1, "splats": 2}[what]
        for views, known in list(rooms._known.items()):
            counts = [table.clone() for table in known.counts]
            for table in counts:  # What rank 1 sends, gives and has.
                table[1, :, column] = 0
                table[:, 1, column] = 0
            rooms.learn(views, SimpleNamespace(cuts=known.cuts), counts)

    monkeypatch.setattr(rooms_module, "MARGIN", 8)
    monkeypatch.setattr(Grendel, "_exactly", counted)
    strategies = check(make_scene(count=COUNT), ranks, 1, before=spoil, balance="off")
    for rank, strategy in enumerate(strategies):
        # The first step, whose view no picture had told of, and the spoiled one; pictures learn the other views anew.
        assert again.count(rank) == 2
        assert int(strategy.rooms.overflow) == 0


def test_long_runs_of_equal_depth_are_put_in_order(make_scene):
    scene = make_scene(count=400, views=4)
    scene.source.parameters[:, layout.MEAN] = 0.0
    scene.source.parameters[:, layout.LOG_SCALE] += 1.3
    scene.source.parameters[:, layout.OPACITY_LOGIT] = -2.0
    check(scene, 3, 2, ownership="random", steps=6)


def test_occlusion_history_leaves_the_same_image(make_scene):
    scene = images_on_gpu(make_scene(count=COUNT))
    training = Training(sh_every=0, occlusion="history", epsilon=1e-3, rate_scale=0.1)

    def losses(ranks: int) -> list[float]:
        def rank_main(comm: Communicator) -> list[float]:
            strategy, order = Grendel(), ViewQueue(range(4), seed=3)
            context = scene.context(kernels(), training, 1, comm)
            strategy.setup(context, scene.source, scene.images, GrendelOptions())
            return [strategy.step(order).loss.item() for _ in range(12)]

        return torch.tensor(VirtualWorld(ranks).run(rank_main, "cuda:0"), dtype=torch.float64).sum(0).tolist()

    assert losses(3) == pytest.approx(losses(1), rel=1e-4)


@pytest.mark.parametrize(("ranks", "batch"), [(2, 1), (3, 2)])
def test_ledger_payload_is_the_same_as_with_kernels_that_read_every_size(make_scene, ranks, batch):
    def payloads(backend: str) -> dict[str, torch.Tensor]:
        scene = images_on_gpu(make_scene(count=COUNT))

        def rank_main(comm: Communicator):
            context = scene.context(KernelSet(backend, torch.device("cuda", 0)), Training(rate_scale=0.0), batch, comm)
            strategy, order = Grendel(), ViewQueue(range(4), seed=3)
            strategy.setup(context, scene.source, scene.images, GrendelOptions(balance="off"))
            for _ in range(8 // batch):
                strategy.step(order)
            strategy.settle()
            return comm.ledger.payload

        every = VirtualWorld(ranks).run(rank_main, "cuda:0")
        return {stage: sum(of_rank[stage] for of_rank in every) for stage in every[0]}

    compiled, portable = payloads("compiled"), payloads("portable")
    forward, backward = compiled["exchange_forward"], compiled["exchange_backward"]
    assert torch.equal(forward // FORWARD_BYTES * BACKWARD_BYTES, backward.T)
    # A footprint on a tile's edge may fall on either side.
    difference = (forward - portable["exchange_forward"]).abs().sum()
    assert difference <= 1e-3 * forward.sum()
    assert torch.equal(compiled["exchange_loss"], portable["exchange_loss"])


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pictures_of_views_seen_before_are_those_of_single(make_scene, ranks, batch):
    scene = images_on_gpu(alike(make_scene(count=COUNT)))
    device, context = torch.device("cuda", 0), scene.context(kernels(), EXACT)
    single = Single()
    single.setup(
        replace(context, world=World.alone(device), comm=LocalCommunicator(device)), scene.source, scene.images,
        SingleOptions(),
    )  # fmt: skip
    expected = [picture.clone() for picture in single.pictures(scene.cameras)]

    def rank_main(comm: Communicator) -> list[list[torch.Tensor | None]]:
        strategy = Grendel()
        strategy.setup(scene.context(kernels(), EXACT, batch, comm), scene.source, scene.images, GrendelOptions())
        return [list(strategy.pictures(scene.cameras)) for _ in range(8)]

    for pictures in VirtualWorld(ranks).run(rank_main, "cuda:0")[0]:
        for mine, other in zip(pictures, expected, strict=True):
            assert mine is not None
            assert (mine - other).abs().max() <= 1e-5
