"""`grendel` with rooms, on a stand-in for kernels that take them: batches that nobody waits for, on several ranks."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from strategies.distribution import virtual
from strategies.distribution.communicator import Transfer
from strategies.distribution.passage_rooms import PassageRooms
from strategies.distribution.taped import Taped
from strategies.distribution.virtual import VirtualCommunicator, VirtualWorld
from strategies.grendel.info import GrendelOptions
from strategies.grendel.strategy import Grendel
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training import rooms as rooms_module
from strategies.training.config import Training
from strategies.views import ViewQueue

STEPS = 14


@pytest.fixture(autouse=True)
def _small_margins(monkeypatch):
    """Views of these tests are small: a margin that a test can exceed."""
    monkeypatch.setattr(rooms_module, "MARGIN", 8)


class Tapes(Taped):
    """Counts what was played."""

    played = 0

    def do(self, what, same, numbers, do):
        done = []
        made = super().do(what, same, numbers, lambda: done.append(what) or do())
        self.played += not done
        return made


class Counted(Grendel):
    """Counts the steps whose counts the host read, and what was played from tapes."""

    exact_steps = 0

    def setup(self, *given):
        super().setup(*given)
        self.taped = Tapes((*self.workspaces, self.shared))

    def _exactly(self, *given):
        self.exact_steps += 1
        return super()._exactly(*given)


def single_of(scene, batch: int, steps: int = STEPS, rate: float = 1.0) -> tuple[list[float], torch.Tensor]:
    """Losses and parameters by id."""
    single, order = Single(), ViewQueue(range(4), shuffle=False)
    context = scene.context(KernelSet("portable"), Training(sh_every=2, rate_scale=rate), batch)
    single.setup(context, scene.source, scene.images, SingleOptions())
    losses = [single.step(order).loss.item() for _ in range(steps)]
    return losses, single.gaussians.parameters[single.gaussians.ids.argsort()]


def train(
    make, scene, ranks: int, batch: int, spoil=lambda strategy, step: None, steps: int = STEPS, rate=1.0, **options
) -> SimpleNamespace:
    """Losses of the job, parameters by id, strategies by rank and ledgers. spoil: called before each step."""
    module = make("roomy")

    def rank_main(comm):
        strategy, order = Counted(), ViewQueue(range(4), shuffle=False)
        context = scene.context(KernelSet("roomy"), Training(sh_every=2, rate_scale=rate), batch, comm)
        strategy.setup(context, scene.source, scene.images, GrendelOptions(**options))
        reports = []
        for step in range(steps):
            spoil(strategy, step)
            reports.append(strategy.step(order))
        strategy.settle()
        told = [(r.loss.item(), r.visible_gaussians, r.tile_instances) for r in reports]
        return told, strategy, comm

    told, strategies, comms = zip(*VirtualWorld(ranks).run(rank_main), strict=True)
    ids = torch.cat([strategy.gaussians.ids for strategy in strategies])
    rows = torch.cat([strategy.gaussians.parameters for strategy in strategies])
    losses = [sum(loss for loss, *_ in of_step) for of_step in zip(*told, strict=True)]
    return SimpleNamespace(
        losses=losses, rows=rows[ids.argsort()], told=told, strategies=strategies, comms=comms, module=module
    )


def assert_equal_to_single(made: SimpleNamespace, expected: tuple[list[float], torch.Tensor]) -> None:
    assert made.losses == pytest.approx(expected[0], rel=1e-4)
    assert torch.allclose(made.rows, expected[1], atol=2e-3)
    for strategy in made.strategies:
        assert int(strategy.overflow) == 0


@pytest.mark.parametrize(("ranks", "batch"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (2, 4), (4, 4)])
def test_batches_that_come_again_wait_for_nothing_and_train_as_single(kernels_with_rooms, make_scene, ranks, batch):
    made = train(kernels_with_rooms, make_scene(), ranks, batch, balance="off")
    assert_equal_to_single(made, single_of(make_scene(), batch))
    assert [strategy.exact_steps for strategy in made.strategies] == [4 // batch] * ranks
    # Each rank projects four views with sizes that it reads, and every other one in a room.
    assert (made.module.exact, made.module.roomy) == (4 * ranks, (STEPS * batch - 4) * ranks)


@pytest.mark.parametrize(("ranks", "batch"), [(1, 1), (2, 1), (3, 2), (2, 4)])
def test_batches_that_come_again_are_played_from_tapes_until_something_of_them_changes(
    kernels_with_rooms, make_scene, ranks, batch
):
    """Here the Gaussians, as when they move to new owners."""
    steps, scene, before = 64 // batch, make_scene(), [0] * ranks

    def spoil(strategy: Grendel, step: int) -> None:
        if step == steps // 2:
            before[strategy.comm.rank] = strategy.taped.played
            strategy.settle()
            strategy._own(strategy.gaussians.rows(torch.arange(strategy.gaussians.count).flip(0)))

    made = train(kernels_with_rooms, scene, ranks, batch, spoil, steps, rate=0.1, balance="off")
    assert_equal_to_single(made, single_of(scene, batch, steps, 0.1))
    assert all(0 < before[strategy.comm.rank] < strategy.taped.played for strategy in made.strategies)


class Mapped(VirtualCommunicator):
    """Ranks of which each writes what the others receive, where it says itself: the receiver must have meant that."""

    written = 0

    def windows(self, name, size):
        known = vars(self._world).setdefault("mapped", {})
        if name not in known or len(known[name][0]) < size:
            known[name] = [torch.zeros(size, dtype=torch.uint8) for _ in range(self.ranks)]
        return known[name]

    def _exchange(self, stage, send, send_counts, receive_counts, terms):
        if terms.there is None:
            return super()._exchange(stage, send, send_counts, receive_counts, terms)
        number = self._next()
        parts = list(zip(send.clone().split(send_counts), terms.there, strict=True))
        self._world.bring(self.rank, number, parts, self._link_free)

        def finish():
            for source, (rows, place) in enumerate(self._world.take(self.rank, number, stage)):
                if source != self.rank:
                    assert (place.data_ptr(), place.shape) == (terms.into[source].data_ptr(), rows.shape)
                    place.copy_(rows)
                    self.written += 1
            return terms.received

        return Transfer(finish)


@pytest.mark.parametrize(("ranks", "batch"), [(2, 1), (3, 2), (2, 4), (4, 4)])
def test_ranks_write_each_others_windows_and_train_as_single(kernels_with_rooms, make_scene, monkeypatch, ranks, batch):
    monkeypatch.setattr(virtual, "VirtualCommunicator", Mapped)
    made = train(kernels_with_rooms, make_scene(), ranks, batch, balance="off")
    assert_equal_to_single(made, single_of(make_scene(), batch))
    # Of a batch's first visit, where nobody knows how much comes, each rank receives in memory of its own.
    steps, ways = STEPS - 4 // batch, 2
    assert [comm.written for comm in made.comms] == [steps * batch * ways * (ranks - 1)] * ranks


def test_a_tape_goes_by_the_image_that_the_loss_compares_with(kernels_with_rooms, make_scene):
    class Fresh:
        """Images that lie elsewhere each time that they are asked for."""

        def __init__(self, images) -> None:
            self._images, self._held = images, []

        def region(self, *given):
            self._held.append(self._images.region(*given).clone())
            return self._held[-1]

        def mask(self, *given):
            return None

    scene = make_scene()
    scene.images = Fresh(scene.images)
    made = train(kernels_with_rooms, scene, 2, 1, steps=24, rate=0.1, balance="off")
    assert_equal_to_single(made, single_of(scene, 1, 24, 0.1))
    assert [strategy.taped.played for strategy in made.strategies] == [0, 0]


@pytest.mark.parametrize("what", ["records", "splats", "instances"])
@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_too_small_on_one_rank_makes_all_do_the_step_again(kernels_with_rooms, make_scene, what, batch):
    first = (0,) if batch == 1 else (0, 1)

    def spoil(strategy: Grendel, step: int) -> None:
        if step != 8 // batch:
            return
        strategy.settle()
        known = strategy.batch_rooms._known[first]
        counts = [table.clone() for table in known.counts]
        column = {"records": 0, "instances": 1, "splats": 2}[what]
        counts[0][1, :, column] = 0  # What rank 1 sends, gives and has.
        counts[0][:, 1, column] = 0
        strategy.batch_rooms.learn(first, SimpleNamespace(cuts=known.cuts), counts)

    made = train(kernels_with_rooms, make_scene(), 2, batch, spoil, balance="off")
    assert_equal_to_single(made, single_of(make_scene(), batch))
    payload = {
        stage: sum(c.ledger.payload[f"exchange_{stage}"] for c in made.comms) for stage in ("forward", "backward")
    }
    assert torch.equal(payload["forward"] // 44 * 36, payload["backward"].T)
    # That step and the one queued behind it, on both ranks.
    assert [strategy.exact_steps for strategy in made.strategies] == [4 // batch + 2] * 2


def test_rows_that_held_nothing_are_padding_in_the_ledger(kernels_with_rooms, make_scene):
    def payloads(roomy: bool) -> tuple[torch.Tensor, torch.Tensor]:
        def spoil(strategy: Grendel, step: int) -> None:
            if not roomy:
                strategy.batch_rooms.clear()

        made = train(kernels_with_rooms, make_scene(), 2, 1, spoil, balance="off")
        forward = sum(comm.ledger.payload["exchange_forward"] for comm in made.comms)
        return forward, sum(comm.ledger.payload["exchange_backward"] for comm in made.comms)

    (forward, back), (exact_forward, exact_back) = payloads(True), payloads(False)
    assert torch.equal(forward // 44 * 36, back.T)
    assert torch.allclose(forward.double(), exact_forward.double(), rtol=0.02)
    assert torch.allclose(back.double(), exact_back.double(), rtol=0.02)


class Watched(Grendel):
    """Knows the passages of the steps that nobody waited for."""

    def setup(self, *given):
        super().setup(*given)
        self.passages = []

    def _queued(self, *given):
        batch = super()._queued(*given)
        self.passages += (weakref.ref(passage) for passage, _ in batch._passages)
        return batch


def test_reports_keep_nothing_of_what_crossed(kernels_with_rooms, make_scene):
    kernels_with_rooms("roomy")
    scene = make_scene()

    def rank_main(comm):
        strategy, order = Watched(), ViewQueue(range(4), shuffle=False)
        context = scene.context(KernelSet("roomy"), Training(), 1, comm)
        strategy.setup(context, scene.source, scene.images, GrendelOptions(balance="off"))
        reports = [strategy.step(order) for _ in range(STEPS)]
        strategy.settle()
        strategy.taped.clear()
        gc.collect()
        return len(strategy.passages), sum(p() is not None for p in strategy.passages), reports[-1].tile_instances

    for queued, alive, instances in VirtualWorld(2).run(rank_main):
        assert queued == STEPS - 4
        assert alive == 0
        assert instances > 0


@pytest.mark.parametrize("codec", ["bitmap", "index"])
@pytest.mark.parametrize(("ranks", "batch"), [(1, 1), (2, 1), (3, 2)])
def test_codecs_that_leave_rows_out_take_rooms_and_are_played(kernels_with_rooms, make_scene, codec, ranks, batch):
    """What is left of rooms counts as no record, and none of it is sent."""
    steps, scene = 48 // batch, make_scene()
    made = train(kernels_with_rooms, scene, ranks, batch, steps=steps, rate=0.1, balance="off", codec=codec)
    assert_equal_to_single(made, single_of(scene, batch, steps, 0.1))
    assert [strategy.exact_steps for strategy in made.strategies] == [4 // batch] * ranks
    assert all(strategy.taped.played > 0 for strategy in made.strategies)
    exact = train(kernels_with_rooms, scene, ranks, batch, steps=steps, rate=0.1, balance="off", codec="dense")
    for ours, theirs in zip(made.strategies, exact.strategies, strict=True):
        assert (ours.exchange.zeros, ours.exchange.records) == (theirs.exchange.zeros, theirs.exchange.records)
    if codec == "index":  # A bitmap has bits for rows that hold nothing.
        plain = train(
            lambda name: kernels_with_rooms(name, takes_rooms=False),
            scene,
            ranks,
            batch,
            steps=steps,
            rate=0.1,
            balance="off",
            codec=codec,
        )
        for ours, theirs in zip(made.comms, plain.comms, strict=True):
            assert torch.equal(ours.ledger.payload["exchange_backward"], theirs.ledger.payload["exchange_backward"])


def test_a_codec_that_reads_ids_keeps_exact_counts(kernels_with_rooms, make_scene):
    made = train(kernels_with_rooms, make_scene(), 2, 1, balance="off", codec="bf16")
    assert [strategy.exact_steps for strategy in made.strategies] == [STEPS] * 2


def test_rooms_grow_by_what_was_seen_and_are_forgotten_with_other_cuts():
    rooms, cuts = PassageRooms(), SimpleNamespace(cuts=(0, 5, 9))
    counts = torch.arange(20, dtype=torch.int64).view(2, 2, 5)
    rooms.learn([3], cuts, [counts])
    (room,) = rooms.of([3], cuts)
    assert room.to(0)[1] > int(counts[0, 1, 0])
    assert room.into(1) == [row[1] for row in room.records]
    # Gradients of 36 B: each rank's begin at a multiple of 16 B.
    assert all(36 * rows % 16 == 0 for row in room.records for rows in row)
    assert rooms.of([3], SimpleNamespace(cuts=(0, 4, 9))) is None
    assert rooms.of([2], cuts) is None
    rooms.grow([3], cuts, [10 * counts])
    assert rooms.of([3], cuts)[0].splats[1] >= 10 * int(counts[1, 0, 2])
    rooms.clear()
    assert rooms.of([3], cuts) is None


def test_exchanges_by_themselves_are_those_of_a_step_with_rooms_and_training_goes_on(kernels_with_rooms, make_scene):
    moved = []

    def spoil(strategy: Grendel, step: int) -> None:
        if step != STEPS - 1:
            return
        (room,), comm, rank = strategy.batch_rooms._known[0,].rooms, strategy.comm, strategy.comm.rank
        there, back = strategy.exchange_trials([0])
        for trial, of_rank in ((there, room.to(rank)), (back, room.into(rank))):
            for _ in range(2):
                with comm.off_the_record():
                    trial.run()
                    over_link = comm.ledger.over_link()[rank].tolist()
                moved.append((over_link[1 - rank], trial.row_bytes * of_rank[1 - rank]))

    made = train(kernels_with_rooms, make_scene(), 2, 1, spoil, balance="off")
    assert_equal_to_single(made, single_of(make_scene(), 1))
    assert len(moved) == 8
    assert all(bytes_moved == room > 0 for bytes_moved, room in moved)
    assert [strategy.exact_steps for strategy in made.strategies] == [4] * 2


def set_up(scene, comm, batch: int = 1) -> Counted:
    """For pictures."""
    strategy = Counted()
    context = scene.context(KernelSet("roomy"), Training(sh_every=0), batch, comm)
    strategy.setup(context, scene.source, scene.images, GrendelOptions(balance="off"))
    return strategy


def drawn(make, scene, ranks: int, visits: int, spoil=lambda strategy, visit: None, batch: int = 1):
    """By visit, the pictures that rank 0 gives of all cameras, in order; the strategies and ledgers by rank."""
    make("roomy")

    def rank_main(comm):
        strategy = set_up(scene, comm, batch)
        given = []
        for visit in range(visits):
            spoil(strategy, visit)
            given.append([p if p is None else p.clone() for p in strategy.pictures(scene.cameras)])
        return given, strategy, comm

    given, strategies, comms = zip(*VirtualWorld(ranks).run(rank_main), strict=True)
    assert all(picture is None for of_rank in given[1:] for of_visit in of_rank for picture in of_visit)
    return given[0], strategies, comms


def expected_pictures(scene) -> list[torch.Tensor]:
    single = Single()
    context = scene.context(KernelSet("portable"), Training(sh_every=0))
    single.setup(context, scene.source, scene.images, SingleOptions())
    return list(single.pictures(scene.cameras))


@pytest.mark.parametrize(
    ("ranks", "batch", "together"),
    [(1, 1, [(0,), (1,), (2,), (3,)]), (2, 1, [(0,), (1,), (2,), (3,)]), (3, 1, [(0,), (1,), (2,), (3,)]),
     (1, 2, [(0,), (1,), (2,), (3,)]), (2, 3, [(0, 1), (2, 3)]), (3, 3, [(0, 1, 2), (3,)])],
)  # fmt: skip
def test_pictures_of_views_seen_before_wait_for_no_counts_and_are_those_of_single(
    kernels_with_rooms, make_scene, ranks, batch, together
):
    scene = make_scene()
    given, strategies, comms = drawn(kernels_with_rooms, scene, ranks, visits=3, batch=batch)
    for pictures in given:
        for mine, other in zip(pictures, expected_pictures(scene), strict=True):
            assert torch.allclose(mine, other, atol=1e-5)
    for strategy in strategies:
        assert strategy.batch_rooms._known.keys() == set(together)
    # Rows that held nothing are no payload: three visits of equal bytes.
    for comm in comms:
        assert all(int(n) % (3 * 44) == 0 for n in comm.ledger.payload["exchange_forward"].flatten())
        assert "exchange_backward" not in comm.ledger.payload


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("views", [[0, 1, 2, 3], [2, 2, 2], [1, 3, 1, 3, 3]])
def test_pictures_are_played_from_tapes_also_of_one_view_again_and_again(kernels_with_rooms, make_scene, views, batch):
    """Gaussians move between two visits: a tape that missed something would give the picture of before."""
    kernels_with_rooms("roomy")
    scene, visits = make_scene(), 12

    def rank_main(comm):
        strategy = set_up(scene, comm, batch)
        given = []
        for visit in range(visits):
            if visit == visits - 1:
                strategy.gaussians.parameters[:, layout.SH_DC] *= 0.5
            given = [p if p is None else p.clone() for p in strategy.pictures([scene.cameras[view] for view in views])]
        return given, strategy.taped.played

    (given, played), (_, others) = VirtualWorld(2).run(rank_main)
    assert min(played, others) > 3 * len(views) // batch
    scene.source.parameters[:, layout.SH_DC] *= 0.5
    expected = expected_pictures(scene)
    for view, picture in zip(views, given, strict=True):
        assert torch.allclose(picture, expected[view], atol=1e-5)


def test_a_picture_with_too_little_room_on_one_rank_is_drawn_again_before_it_is_given(kernels_with_rooms, make_scene):
    scene = make_scene()

    def spoil(strategy: Grendel, visit: int) -> None:
        if visit != 1:
            return
        for column, view in ((0, 1), (1, 2), (2, 3)):
            known = strategy.batch_rooms._known[(view,)]
            counts = known.counts[0].clone()
            counts[1, :, column] = 0
            counts[:, 1, column] = 0
            strategy.batch_rooms.learn((view,), SimpleNamespace(cuts=known.cuts), [counts])

    given, _, _ = drawn(kernels_with_rooms, scene, 2, 3, spoil)
    for pictures in given:
        for mine, other in zip(pictures, expected_pictures(scene), strict=True):
            assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_picture_that_nobody_waits_for_leaves_the_next_ones_right(kernels_with_rooms, make_scene, batch):
    scene = make_scene()

    def first_only(strategy: Grendel, visit: int) -> None:
        next(strategy.pictures(scene.cameras))

    given, _, _ = drawn(kernels_with_rooms, scene, 2, 2, first_only, batch)
    for mine, other in zip(given[1], expected_pictures(scene), strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


def test_training_and_pictures_take_turns(kernels_with_rooms, make_scene):
    def spoil(strategy: Grendel, step: int) -> None:
        if step % 3 == 2:
            list(strategy.pictures([make.cameras[1], make.cameras[0]]))

    make = make_scene()
    made = train(kernels_with_rooms, make, 2, 1, spoil, balance="off")
    assert_equal_to_single(made, single_of(make_scene(), 1))
