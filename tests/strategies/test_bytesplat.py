"""`bytesplat` equals `single` whatever it leaves out on the wire and in memory, and its options do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from harness.suite.plan import plan
from strategies.bytesplat.info import INFO, BytesplatOptions
from strategies.bytesplat.strategy import ByteSplat
from strategies.distribution.communicator import Communicator
from strategies.distribution.virtual import VirtualWorld
from strategies.grendel.info import GrendelOptions
from strategies.grendel.strategy import Grendel
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.views import ViewQueue

REFERENCE = KernelSet("reference", precision="float64", t_stop=0.0)
PORTABLE = KernelSet("portable", t_stop=0.0)
SMOOTH = Training(sh_every=0, epsilon=1e-8)


def by_id(strategies, column: str = "parameters") -> torch.Tensor:
    """All ranks' rows in the order of ids; each id once."""
    shards = [s for strategy in strategies for s in strategy.shards()]
    ids = torch.cat([s.ids for s in shards])
    assert sorted(ids.tolist()) == list(range(len(ids)))
    return torch.cat([getattr(s, column) for s in shards])[torch.argsort(ids)]


def train(scene, ranks: int, steps: int, kernels=REFERENCE, batch=1, strategy=ByteSplat, **options):
    """Strategies by rank after some steps on the virtual engine, and the loss of each step."""
    losses = torch.zeros(steps, dtype=torch.float64)
    model = BytesplatOptions if strategy is ByteSplat else GrendelOptions

    def rank_main(comm: Communicator):
        trained = strategy()
        context = scene.context(kernels, SMOOTH, batch, comm)
        trained.setup(context, scene.source, scene.images, model(**options))
        order = ViewQueue(range(len(scene.cameras)), seed=3)
        for step in range(steps):
            losses[step] += trained.step(order).loss.double()
        return trained

    return VirtualWorld(ranks).run(rank_main), losses


@pytest.fixture
def make_oracle():
    """`single` after some steps on the same views, and the loss of each step."""

    def run(scene, steps: int, kernels=REFERENCE, batch=1):
        single = Single()
        single.setup(scene.context(kernels, SMOOTH, batch), scene.source, scene.images, SingleOptions())
        order = ViewQueue(range(len(scene.cameras)), seed=3)
        losses = [single.step(order).loss.item() for _ in range(steps)]
        return single, torch.tensor(losses, dtype=torch.float64)

    return run


@pytest.mark.parametrize(
    ("ranks", "raster", "codec", "steps"),
    [
        (1, "separate", "bitmap", 4),
        (1, "fused", "dense", 4),
        (2, "fused", "bitmap", 20),
        (3, "separate", "bitmap", 20),
        (3, "fused", "index", 4),
        (4, "fused", "bitmap", 4),
        (4, "separate", "dense", 4),
    ],
)
def test_free_running_float64_bytesplat_equals_single(scene, make_oracle, ranks, raster, codec, steps):
    strategies, losses = train(scene, ranks, steps, codec=codec, raster=raster, unit="image")
    single, expected = make_oracle(scene, steps)
    assert torch.allclose(losses, expected, atol=1e-10)
    assert torch.allclose(by_id(strategies), by_id([single]), atol=1e-8)


@pytest.mark.parametrize("raster", ["separate", "fused"])
@pytest.mark.parametrize(("ranks", "batch"), [(2, 4), (3, 3), (2, 2)])
def test_one_view_a_rank_equals_single_at_the_same_batch(scene, make_oracle, raster, ranks, batch):
    strategies, losses = train(scene, ranks, 3, batch=batch, raster=raster)
    single, expected = make_oracle(scene, 3, batch=batch)
    assert torch.allclose(losses, expected, atol=1e-10)
    assert torch.allclose(by_id(strategies), by_id([single]), atol=1e-8)


@pytest.mark.parametrize("ownership", ["morton_blocks", "contiguous", "random", "kdtree"])
@pytest.mark.parametrize("codec", ["dense", "bitmap", "index", "bf16"])
def test_codec_ownership_and_raster_combine_under_both_strategies(make_scene, make_oracle, ownership, codec):
    scene = make_scene(count=30, views=2)
    single, _ = make_oracle(scene, 2)
    tolerance = 3e-2 if codec == "bf16" else 1e-8
    settings = {"codec": codec, "ownership": ownership}
    for strategy, raster in ((ByteSplat, "separate"), (ByteSplat, "fused"), (Grendel, "")):
        more = {"unit": "image", "raster": raster} if raster else {}
        strategies, _ = train(scene, 2, 2, strategy=strategy, **settings, **more)
        assert torch.allclose(by_id(strategies), by_id([single]), atol=tolerance)


@pytest.mark.parametrize("codec", ["bitmap", "index"])
def test_sparse_gradients_leave_every_bit_as_dense_does(scene, codec):
    dense, _ = train(scene, 3, 4, PORTABLE, codec="dense")
    sparse, _ = train(scene, 3, 4, PORTABLE, codec=codec)
    for column in ("parameters", "moment1", "moment2"):
        assert torch.equal(by_id(sparse, column), by_id(dense, column))


def test_it_is_grendel_s_exchange_with_an_image_as_unit_when_there_is_a_view_a_rank(scene):
    ours, _ = train(scene, 2, 3, PORTABLE, batch=2, codec="dense")
    theirs, _ = train(scene, 2, 3, PORTABLE, batch=2, strategy=Grendel, unit="image")
    assert torch.equal(by_id(ours), by_id(theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert a.comm.ledger.payload.keys() == b.comm.ledger.payload.keys()
        assert all(torch.equal(t, b.comm.ledger.payload[stage]) for stage, t in a.comm.ledger.payload.items())


def test_zero_gradient_share_is_what_the_bitmap_saves(make_scene):
    """Payload = dense (1 - z) + R / 8, bytes of a group rounded up."""
    scene = make_scene(count=400)
    scene.source.parameters[:, layout.OPACITY_LOGIT] += 6.0

    def measured(codec):
        strategies, _ = train(scene, 2, 4, KernelSet("portable"), codec=codec)
        ledgers = [s.comm.ledger for s in strategies]
        records = sum(int(ledger.payload["exchange_forward"].sum()) for ledger in ledgers) // 44
        return records, sum(int(ledger.payload["exchange_backward"].sum()) for ledger in ledgers), strategies

    records, dense, _ = measured("dense")
    same, sparse, strategies = measured("bitmap")
    zeros = sum(s.exchange.zeros for s in strategies)
    assert same == records == sum(s.exchange.records for s in strategies)
    assert zeros > 0.2 * records
    assert dense == 36 * records
    assert 0 <= sparse - (dense - 36 * zeros + records / 8) <= 4 * 2 * 2


def test_statistics_are_the_job_s_and_begin_anew(scene):
    def rank_main(comm: Communicator):
        strategy = ByteSplat()
        options = BytesplatOptions(raster="fused", unit="image", budget=76 * 20)
        strategy.setup(scene.context(PORTABLE, SMOOTH, 1, comm), scene.source, scene.images, options)
        order = ViewQueue(range(len(scene.cameras)), seed=3)
        strategy.step(order)
        return strategy.statistics(), strategy.statistics(), strategy.exchange.records

    results = VirtualWorld(2).run(rank_main)
    (first, again, _), (other, _, _) = results
    assert first == other
    assert again == {}
    assert set(first) == {"zero_gradient_share", "tiles_in_budget_share", "fused_tiles_share"}
    assert first["fused_tiles_share"] == 1.0
    assert 0 < first["tiles_in_budget_share"] < 1


@pytest.mark.parametrize("window", ["tile", "l1"])
def test_fused_equals_separate_for_the_same_loss_window(scene, window):
    jitter = window == "tile"
    fused, a = train(scene, 2, 4, unit="image", raster="fused", loss_window=window, jitter=jitter)
    apart, b = train(scene, 2, 4, unit="image", raster="separate", loss_window=window, jitter=jitter)
    assert torch.allclose(a, b, atol=1e-12)
    assert torch.allclose(by_id(fused), by_id(apart), atol=1e-10)


@pytest.mark.parametrize("raster", ["separate", "fused"])
def test_l1_alone_needs_no_whole_image_and_no_halo(scene, raster):
    cut, _ = train(scene, 3, 3, unit="block", raster=raster, loss_window="l1")
    whole, _ = train(scene, 1, 3, raster=raster, loss_window="l1")
    assert torch.allclose(by_id(cut), by_id(whole), atol=1e-8)
    assert "exchange_loss" not in cut[0].comm.ledger.payload


def test_block_windows_are_exact_across_ranks_that_share_an_image(scene):
    cut, _ = train(scene, 3, 3, unit="block", loss_window="tile", jitter=True)
    whole, _ = train(scene, 1, 3, loss_window="tile", jitter=True)
    assert torch.allclose(by_id(cut), by_id(whole), atol=1e-8)


def test_loss_windows_change_the_result_and_jitter_moves_blocks_each_step(scene):
    results = [
        by_id(train(scene, 1, 2, loss_window=window, jitter=jitter)[0])
        for window, jitter in (("exact", False), ("tile", False), ("tile", True), ("l1", False))
    ]
    for i, a in enumerate(results):
        assert all(not torch.allclose(a, b, atol=1e-9) for b in results[i + 1 :])
    (strategy,), _ = train(scene, 1, 1, loss_window="tile", jitter=True)
    assert strategy._window(0) != strategy._window(1)


def test_fused_is_refused_with_the_reason_where_units_split_images():
    fused = BytesplatOptions(raster="fused")
    assert INFO.refuses(fused, 4, 4) is None
    assert INFO.refuses(fused, 1, 1) is None
    assert INFO.refuses(BytesplatOptions(raster="fused", unit="image"), 4, 1) is None
    assert INFO.refuses(BytesplatOptions(raster="fused", loss_window="l1"), 4, 1) is None
    assert "needs whole images" in INFO.refuses(fused, 4, 1)
    assert "unit row" in INFO.refuses(BytesplatOptions(raster="fused", unit="row"), 2, 2)


def test_a_plan_says_why_a_cell_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = "strategy: bytesplat, ranks: 4, device: cpu, options: {raster: fused}, scene: {city: small_street}"
    Path("s.yaml").write_text(f"suite: 1\ndefaults: {{{settings}}}\naxes: {{batch: [1, 4]}}\n")
    reasons = [planned.skip for planned in plan(Path("s.yaml")).cells]
    assert reasons == ["raster fused with loss_window exact needs whole images; unit block splits them", None]


def test_jitter_without_blocks_is_an_error():
    with pytest.raises(ValueError, match="expected loss_window: tile"):
        BytesplatOptions(jitter=True)
