"""The row `gsplat` on several places, on the CPU with a stand-in of the package: what it trains, and what is booked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cuda_src.conventions import CONVENTIONS
from cuda_src.operators import KernelSet, project
from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator
from strategies.distribution.virtual import VirtualWorld
from strategies.gsplat_peer.exchange import BACKWARD, FORWARD, PeerExchange
from strategies.gsplat_peer.info import INFO, GsplatOptions
from strategies.gsplat_peer.strategy import GsplatPeer
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.views import ViewQueue

EXACT = KernelSet("reference", precision="float64", convention=CONVENTIONS["gsplat153"])
SMOOTH = Training(convention="gsplat153", sh_every=0, epsilon=1e-8, background=(0.1, 0.3, 0.2))
FLOAT = 8
"""Bytes, in these tests."""


@pytest.fixture
def alike(make_scene):
    """Four views of one size, each of which sees a part of 40 Gaussians."""
    scene = make_scene(count=40)
    scene.source.parameters[::3, 0] += 2.5
    scene.source.parameters[1::7, :3] += 1000.0  # Nobody sees these.
    camera = scene.cameras[0]
    scene.cameras[1:] = [replace(c, width=camera.width, height=camera.height) for c in scene.cameras[1:]]
    scene.images.images[1:] = [scene.images.images[0].flip(0).roll(view, dims=1) for view in range(3)]
    return scene


def on_ranks(stand_in, scene, ranks: int, batch: int, steps: int, training: Training = SMOOTH, **options):
    """What each rank holds and says after some steps, with bytes as the network counted them."""

    def main(comm: Communicator) -> SimpleNamespace:
        stand_in.here.comm, stand_in.here.sent = comm, torch.zeros(ranks, dtype=torch.int64)
        strategy = GsplatPeer()
        context = scene.context(EXACT, training, batch, comm)
        strategy.setup(context, scene.source, scene.images, GsplatOptions(**options))
        queue = ViewQueue(range(len(scene.cameras)), seed=3)
        reports = [strategy.step(queue) for _ in range(steps)]
        sent, booked = stand_in.here.sent.clone(), comm.ledger.over_link()[comm.rank]
        tables = {stage: table[comm.rank].clone() for stage, table in comm.ledger.payload.items()}
        image = strategy.render(scene.cameras[1])
        return SimpleNamespace(
            strategy=strategy,
            reports=reports,
            sent=sent,
            booked=booked,
            payload=tables,
            exposed=dict(comm.exposed_seconds),
            image=image,
        )

    return VirtualWorld(ranks).run(main)


def alone(scene, batch: int, steps: int, training: Training = SMOOTH):
    single = Single()
    single.setup(scene.context(EXACT, training, batch), scene.source, scene.images, SingleOptions())
    queue = ViewQueue(range(len(scene.cameras)), seed=3)
    return single, [single.step(queue) for _ in range(steps)]


def table(strategies, name: str) -> torch.Tensor:
    """That table of all Gaussians of all ranks, by id."""
    shards = [shard for strategy in strategies for shard in strategy.shards()]
    ids = torch.cat([s.ids for s in shards])
    assert torch.equal(ids.sort().values, torch.arange(len(ids)))
    return torch.cat([getattr(s, name) for s in shards])[torch.argsort(ids)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("ranks", "batch", "optimizer"), [(2, 2, "visible"), (2, 4, "visible"), (3, 3, "touched"), (2, 2, "dense")]
)
def test_training_equals_single_at_the_same_batch(stand_in, alike, packed, ranks, batch, optimizer):
    training = SMOOTH.model_copy(update={"optimizer": optimizer})
    of_ranks = on_ranks(stand_in, alike, ranks, batch, 4, training, packed=packed)
    single, expected = alone(alike, batch, 4, training)
    for step, exact in enumerate(expected):
        of_step = [rank.reports[step] for rank in of_ranks]
        assert sum(r.loss.item() for r in of_step) == pytest.approx(exact.loss.item(), abs=1e-10)
        assert sum(r.visible_gaussians for r in of_step) == exact.visible_gaussians
        assert sum(r.tile_instances for r in of_step) == exact.tile_instances
        assert {r.images for r in of_step} == {batch}
    for name in ("parameters", "moment1", "moment2"):
        assert torch.allclose(table([r.strategy for r in of_ranks], name), table([single], name), atol=1e-8), name
    assert torch.allclose(of_ranks[0].image, single.render(alike.cameras[1]), atol=1e-8)
    assert [rank.image for rank in of_ranks[1:]] == [None] * (ranks - 1)


def test_order_and_dealing_leave_every_gaussian_with_one_rank(stand_in, alike):
    of_ranks = on_ranks(stand_in, alike, 3, 3, 2, order="morton")
    assert [len(r.strategy.gaussians.ids) for r in of_ranks] == [14, 13, 13]
    single, _ = alone(alike, 3, 2)
    assert torch.allclose(table([r.strategy for r in of_ranks], "parameters"), table([single], "parameters"), atol=1e-8)


@pytest.mark.parametrize(("ranks", "batch"), [(2, 2), (2, 4), (4, 4)])
def test_every_byte_that_leaves_a_rank_is_booked(stand_in, alike, ranks, batch):
    for packed in (False, True):
        for rank in on_ranks(stand_in, alike, ranks, batch, 3, packed=packed):
            assert torch.equal(rank.booked, rank.sent)


def visible_pairs(scene, ranks: int, views: list[int]) -> torch.Tensor:
    """Visible Gaussians that each rank owns of the view that each renders, [owner, renderer]."""
    single, _ = alone(scene, 1, 0)
    pairs = torch.zeros((ranks, ranks), dtype=torch.int64)
    for renderer, view in enumerate(views):
        seen = single_rows(single, scene.cameras[view])
        for owner in range(ranks):
            pairs[owner, renderer] = int((seen % ranks == owner).sum())
    return pairs


def single_rows(single: Single, camera) -> torch.Tensor:
    """Ids that a view sees."""
    held = single.gaussians
    return project(EXACT, held.parameters, held.ids, camera, 3, Workspace()).ids.clone()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("packed", [False, True])
def test_bytes_of_a_step_follow_the_closed_form(stand_in, alike, packed, ranks):
    views = ViewQueue(range(4), seed=3).peek(ranks)
    of_ranks = on_ranks(stand_in, alike, ranks, ranks, 1, packed=packed)
    owned = torch.tensor([len(r.strategy.gaussians.ids) for r in of_ranks])
    pairs = visible_pairs(alike, ranks, views) if packed else owned[:, None].expand(ranks, ranks)
    for own, rank in enumerate(of_ranks):
        assert rank.payload[FORWARD].tolist() == (pairs[own] * (2 * 4 + 10 * FLOAT)).tolist()
        assert rank.payload[BACKWARD].tolist() == (pairs[:, own] * 10 * FLOAT).tolist()
        a_call = 4 + 25 * FLOAT + (8 if packed else 0)
        ids = pairs[own] * 16 if packed else torch.zeros(ranks, dtype=torch.int64)
        assert (rank.booked - sum(rank.payload.values())).tolist() == (a_call + ids).tolist()


@pytest.mark.parametrize("packed", [False, True])
def test_all_of_its_exchange_is_exposed_under_the_names_of_the_other_strategies(stand_in, alike, packed):
    for rank in on_ranks(stand_in, alike, 2, 2, 1, packed=packed):
        assert set(rank.exposed) == {FORWARD, BACKWARD}
        assert all(seconds > 0 for seconds in rank.exposed.values())
        assert not any(rank.strategy.ctx.comm.hidden_seconds.values())


def test_without_the_repair_packed_rows_of_several_ranks_are_listed_wrongly(stand_in, alike, monkeypatch):
    monkeypatch.setattr(PeerExchange, "around", lambda self, rasterization: rasterization)
    with pytest.raises(IndexError, match="illegal memory access"):
        on_ranks(stand_in, alike, 2, 2, 1, packed=True)


def test_the_package_is_left_as_it_is(stand_in, alike):
    before = dict(stand_in.rasterization.__globals__)
    on_ranks(stand_in, alike, 2, 2, 1, packed=True)
    after = stand_in.rasterization.__globals__
    assert all(after[name] is value for name, value in before.items())


def test_a_rank_that_nobody_sees_anything_of_ends_the_cell_with_the_reason(stand_in, alike):
    alike.source.parameters[1::2, :3] += 1000.0
    with pytest.raises(ValueError, match="no view of a step sees any Gaussian of a rank"):
        on_ranks(stand_in, alike, 2, 2, 1, packed=True)


def test_views_of_mixed_sizes_are_refused(stand_in, scene):
    with pytest.raises(ValueError, match="views of one size and far plane: the scene's have 4 combinations"):
        on_ranks(stand_in, scene, 2, 2, 1)


def test_saved_gaussians_are_dealt_anew(stand_in, alike):
    saved = [s for r in on_ranks(stand_in, alike, 2, 2, 2) for s in r.strategy.shards()]
    count = alike.source.count
    pieces = [
        type(s)(*(getattr(s, f)[rows] for f in ("ids", "parameters", "moment1", "moment2")))
        for s in saved
        for rows in (slice(0, 7), slice(7, 8), slice(8, None))
    ]

    def main(comm: Communicator) -> GsplatPeer:
        strategy = GsplatPeer()
        strategy.setup(alike.context(EXACT, SMOOTH, 3, comm), alike.source, alike.images, GsplatOptions())
        strategy.load(SimpleNamespace(count=count, shards=lambda: iter(pieces)))
        return strategy

    loaded = VirtualWorld(3).run(main)
    assert [len(s.gaussians.ids) for s in loaded] == [14, 13, 13]
    order = torch.argsort(torch.cat([s.ids for s in saved]))
    for name in ("parameters", "moment1", "moment2"):
        assert torch.equal(table(loaded, name), torch.cat([getattr(s, name) for s in saved])[order]), name


@pytest.mark.parametrize(
    ("ranks", "batch", "reason"),
    [
        (1, 1, None),
        (1, 3, None),
        (2, 2, None),
        (2, 4, None),
        (2, 1, "batch 1 is no multiple of 2 ranks"),
        (4, 2, "batch 2 is no multiple of 4 ranks"),
        (2, 3, "batch 3 is no multiple of 2 ranks"),
    ],
)
def test_a_batch_that_ranks_cannot_share_by_whole_views_is_refused(ranks, batch, reason):
    found = INFO.refuses(GsplatOptions(), ranks, batch)
    assert found is None if reason is None else reason in found


def test_packed_rows_of_several_ranks_are_said_to_be_repaired():
    assert "repaired" in INFO.remark(GsplatOptions(packed=True), 2)
    assert "dense" in INFO.remark(GsplatOptions(), 8)
    assert {INFO.remark(GsplatOptions(packed=packed), 1) for packed in (False, True)} == {None}
