"""Hardware-aware pruning removes as little as brings the target share of tile lists into the budget."""

from __future__ import annotations

import math

import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.operators import KernelSet
from cuda_src.reference.raster import splat_alphas
from cuda_src.workspace import Workspace
from strategies.bytesplat.info import BytesplatOptions
from strategies.bytesplat.pruning import blend_weights, capacity, list_lengths, tile_benefits
from strategies.bytesplat.strategy import ByteSplat
from strategies.distribution.communicator import Communicator
from strategies.distribution.virtual import VirtualWorld
from strategies.training.config import Training
from strategies.views import ViewQueue

PORTABLE = KernelSet("portable")
REFERENCE = KernelSet("reference", precision="float64")
BUDGET, RECORD = 76 * 12, 76


def trained(scene, ranks: int, steps: int, **options) -> list[ByteSplat]:
    """Strategies by rank after some steps of one view each."""

    def rank_main(comm: Communicator) -> ByteSplat:
        strategy = ByteSplat()
        settings = BytesplatOptions(**{"budget": BUDGET, "record_bytes": RECORD, "target_share": 0.8} | options)
        context = scene.context(PORTABLE, Training(sh_every=0), 1, comm)
        strategy.setup(context, scene.source, scene.images, settings)
        order = ViewQueue(range(len(scene.cameras)), seed=3)
        for _ in range(steps):
            strategy.step(order)
        return strategy

    return VirtualWorld(ranks).run(rank_main)


def ids_of(strategies) -> list[int]:
    return sorted(int(i) for strategy in strategies for shard in strategy.shards() for i in shard.ids)


def lists(scene, ids: list[int]) -> list[torch.Tensor]:
    """Ids in each tile of each view when only those Gaussians exist."""
    kept, found, work = torch.tensor(ids), [], Workspace()
    for camera in scene.cameras:
        splats = op.project(PORTABLE, scene.source.parameters[kept], kept, camera, 3, work)
        bins = op.bin_splats(PORTABLE, splats, camera, work)
        found += [splats.ids[part.long()] for part in bins.splat.split(list_lengths(bins).tolist())]
    return found


def importances(scene) -> torch.Tensor:
    """Sum of alpha T of every Gaussian over all views, from the definition."""
    total, work = torch.zeros(scene.source.count, dtype=torch.float64), Workspace()
    for camera in scene.cameras:
        every = torch.arange(scene.source.count)
        splats = op.project(REFERENCE, scene.source.parameters.double(), every, camera, 3, work)
        y, x = torch.meshgrid(torch.arange(camera.height), torch.arange(camera.width), indexing="ij")
        pixels = torch.stack([x.flatten(), y.flatten()], dim=1).double() + 0.5
        order = torch.argsort(splats.records[:, layout.RECORD_DEPTH])
        alphas = splat_alphas(REFERENCE, splats.records[order], pixels)
        light = torch.cumprod(torch.cat([torch.ones(len(pixels), 1), 1 - alphas], dim=1), dim=1)
        stopped = (torch.cumsum((light[:, 1:] < REFERENCE.stop) & (alphas > 0), dim=1) > 0).double()
        total[splats.ids[order]] += (alphas * light[:, :-1] * (1 - stopped)).sum(dim=0)
    return total


def expected_removal(scene, target: float, limit: int) -> list[int]:
    """The same by definition: one after another in order of benefit / importance, until the share fits."""
    tiles = lists(scene, list(range(scene.source.count)))
    benefit = torch.zeros(scene.source.count, dtype=torch.float64)
    for members in tiles:
        if len(members) > limit:
            benefit[members] += 1 / (len(members) - limit)
    ratio = benefit / importances(scene)
    order = [i for i in torch.argsort(-ratio, stable=True).tolist() if benefit[i] > 0]
    removed: set[int] = set()
    while sum(sum(int(m) not in removed for m in t) <= limit for t in tiles) < math.ceil(target * len(tiles) - 1e-6):
        removed.add(order[len(removed)])
    return sorted(removed)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_fewest_in_order_of_benefit_over_importance_go_until_the_target_share_fits(scene, ranks):
    removed = expected_removal(scene, 0.8, 12)
    assert 0 < len(removed) < 40
    left = ids_of(trained(scene, ranks, 1, prune="hardware"))
    assert sorted(set(range(60)) - set(left)) == removed
    share = torch.tensor([len(t) <= 12 for t in lists(scene, left)]).double().mean()
    assert share >= 0.8


def test_the_control_removes_as_many_by_importance_alone(scene):
    count = len(expected_removal(scene, 0.8, 12))
    least = torch.argsort(importances(scene), stable=True)[:count]
    for ranks in (1, 3):
        left = ids_of(trained(scene, ranks, 1, prune="importance"))
        assert sorted(set(range(60)) - set(left)) == sorted(least.tolist())


def test_nothing_goes_when_pruning_is_off_or_lists_fit_already(scene):
    assert len(ids_of(trained(scene, 2, 1))) == 60
    assert len(ids_of(trained(scene, 2, 1, prune="hardware", budget=227 * 1024))) == 60
    assert len(ids_of(trained(scene, 2, 1, prune="importance", budget=227 * 1024))) == 60


def test_pruning_happens_once_after_the_images_it_waits_for(scene):
    counts = [len(ids_of(trained(scene, 2, steps, prune="hardware", prune_images=2))) for steps in (1, 2, 3, 5)]
    assert counts[0] == counts[1] == 60
    assert counts[2] == counts[3] < 60


def test_a_pruned_row_leaves_parameters_moments_and_ids_and_others_keep_theirs(scene):
    whole = trained(scene, 2, 2)
    pruned = trained(scene, 2, 2, prune="hardware", prune_images=1)
    for before, after in zip(whole, pruned, strict=True):
        g = after.gaussians
        assert len(g.ids) == len(g.parameters) == len(g.moment1) == len(g.moment2) < before.gaussians.count
        assert set(g.ids.tolist()) < set(before.gaussians.ids.tolist())
    one = trained(scene, 2, 1)
    for before, after in zip(one, pruned, strict=True):
        kept = torch.isin(before.gaussians.ids, after.gaussians.ids)
        assert torch.equal(before.gaussians.ids[kept], after.gaussians.ids)
        assert after.gaussians.moment2.any()


def test_training_goes_on_after_pruning_and_more_tiles_fit(scene):
    def shares(**options):
        def rank_main(comm: Communicator):
            strategy = ByteSplat()
            settings = BytesplatOptions(budget=BUDGET, target_share=0.8, raster="fused", unit="image", **options)
            strategy.setup(scene.context(PORTABLE, Training(), 1, comm), scene.source, scene.images, settings)
            order = ViewQueue(range(4), seed=3)
            losses = [strategy.step(order).loss.item() for _ in range(8)]
            assert all(math.isfinite(value) for value in losses)
            return strategy.statistics()["tiles_in_budget_share"]

        return VirtualWorld(2).run(rank_main)[0]

    assert shares(prune="hardware") >= 0.75 > shares()


def test_bytes_of_pruning_stand_in_a_stage_of_their_own(scene):
    off, on = trained(scene, 2, 1), trained(scene, 2, 1, prune="hardware")
    assert "prune" not in off[0].comm.ledger.payload
    assert on[0].comm.ledger.payload["prune"].sum() > 0
    assert on[0].comm.ledger.payload["exchange_forward"].sum() < off[0].comm.ledger.payload["exchange_forward"].sum()


def test_blend_weights_are_the_sums_of_alpha_t(scene):
    camera, work, every = scene.cameras[1], Workspace(), torch.arange(60)
    only = importances(type(scene)(scene.source, scene.images, [camera]))
    for kernels, tolerance in ((PORTABLE, 1e-5), (REFERENCE, 1e-12)):
        splats = op.project(kernels, scene.source.parameters.to(kernels.dtype), every, camera, 3, work)
        bins = op.bin_splats(kernels, splats, camera, work)
        weights = torch.zeros(60, dtype=torch.float64)
        weights[splats.ids] = blend_weights(kernels, splats, bins, camera, work).double()
        assert (weights - only).abs().max() <= tolerance * only.max()


def test_benefit_is_one_over_the_excess_of_each_tile_over_capacity():
    # Three tiles with lists of 4, 1 and 3; capacity 2.
    bins = op.Bins(
        tiles=torch.arange(3, dtype=torch.int32),
        starts=torch.tensor([0, 4, 5, 8]),
        splat=torch.tensor([0, 1, 2, 3, 4, 0, 1, 4], dtype=torch.int32),
        slot=torch.arange(8),
        splat_starts=torch.arange(6),
    )
    assert capacity(160, 76) == 2
    assert tile_benefits(bins, 2, 5).tolist() == [1.5, 1.5, 0.5, 0.5, 1.0]
