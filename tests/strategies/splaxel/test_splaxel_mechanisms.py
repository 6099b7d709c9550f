"""Each mechanism of `splaxel` does its work, and no harm beyond what it says."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from cuda_src import layout
from cuda_src.operators import KernelSet
from harness.measure.quality import psnr
from harness.records.schema import METRICS
from strategies.distribution.communicator import LocalCommunicator
from strategies.distribution.halo import SSIM_HALO
from strategies.distribution.virtual import VirtualWorld
from strategies.splaxel import subtiles
from strategies.splaxel.info import SplaxelOptions
from strategies.splaxel.strategy import Splaxel
from strategies.training.config import Training
from strategies.views import ViewQueue

EXACT = {"boundary": "exact", "saturation": "off"}
PLAIN = {"boundary": "drop", "saturation": "off"}
STILL = Training(sh_every=0, rate_scale=0.0)
"""Nothing moves, so that a visit differs from the one before by its masks alone."""


def moved(job, stage: str) -> int:
    """Payload bytes of a stage over all ranks, the diagonal left out."""
    total = sum(ledger.payload.get(stage, torch.zeros(1, 1, dtype=torch.int64)) for ledger in job.ledgers)
    return int(total.sum() - total.diagonal().sum())


def decibels(image: torch.Tensor, truth: torch.Tensor) -> float:
    return float(-10 * torch.log10((image - truth).square().mean()))


# Exchange


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("order", ["tree", "depth"])
def test_bytes_of_whole_images_are_the_closed_forms(small_scene, portable_pair, ranks, order):
    """16 B (20 with depth) a pixel: k (k - 1) of them when all composite, k - 1 and as many back when one does."""
    pixels, forward = 33 * 25 * 2, 16 if order == "tree" else 20
    everyone = portable_pair.splaxel(small_scene, ranks, 2, regions="whole", order=order, **PLAIN)
    assert moved(everyone, "exchange_forward") == ranks * (ranks - 1) * forward * pixels
    assert moved(everyone, "exchange_backward") == moved(everyone, "exchange_loss") == 0
    owner = portable_pair.splaxel(small_scene, ranks, 2, regions="whole", order=order, compose="owner", **PLAIN)
    assert moved(owner, "exchange_forward") == (ranks - 1) * forward * pixels
    assert moved(owner, "exchange_backward") == (ranks - 1) * 16 * pixels


def test_bytes_between_regions_are_what_both_sides_can_compute(small_scene, portable_pair, dilate):
    """Omega_n ∩ dilate(Omega_m, 10 px), in whole tiles of m as the loss takes them; background goes to the first."""
    job = portable_pair.splaxel(small_scene, 3, 3, **PLAIN)
    territory, expected = job.strategies[0].territory, 0
    for view, camera in enumerate(small_scene.cameras):
        sight = territory.sight(camera, view)
        owner = territory.boxes.owner
        shown = {int(owner[b]): subtiles.pixels_of(grid, camera) for b, grid in sight.regions.items()}
        tiles = {int(owner[b]): subtiles.tiles_of(grid) for b, grid in sight.regions.items()}
        empty = ~torch.stack(list(tiles.values())).any(dim=0)
        tiles[min(tiles)] = tiles[min(tiles)] | empty
        for m, own in tiles.items():
            needed = dilate(subtiles.tile_pixels(own, camera), SSIM_HALO)
            expected += sum(16 * int((shown[n] & needed).sum()) for n in shown if n != m)
    assert expected > 0
    assert moved(job, "exchange_forward") == expected


def test_regions_send_less_and_fewer_empty_pixels_than_whole_images(small_scene, portable_pair):
    small_scene.source.parameters[:, layout.LOG_SCALE] -= 1.0
    whole = portable_pair.splaxel(small_scene, 3, 3, regions="whole", **PLAIN)
    region = portable_pair.splaxel(small_scene, 3, 3, **PLAIN)
    assert moved(region, "exchange_forward") < 0.8 * moved(whole, "exchange_forward")
    for name, bare in (("zero_pixel_share", None), ("region_pixel_share", 1.0), ("supervised_pixel_share", 1.0)):
        assert region.statistics[0][name] < (whole.statistics[0][name] if bare is None else bare)
        assert whole.statistics[0][name] == (bare or whole.statistics[0][name])


def test_copies_of_boundary_splats_are_the_only_gaussians_that_travel(small_scene, portable_pair):
    exact = portable_pair.splaxel(small_scene, 3, 2, **EXACT)
    assert moved(exact, "exchange_boundary") > 0
    assert moved(exact, "exchange_boundary") % 4 == 0
    assert moved(portable_pair.splaxel(small_scene, 3, 2, **PLAIN), "exchange_boundary") == 0


def test_specks_that_cross_no_face_need_no_copies_and_are_exact_without(small_scene, make_pair, assert_same):
    """Hardly anything straddles: `keep` and `exact` are one."""
    small_scene.source.parameters[:, layout.LOG_SCALE] = -9.0
    small_scene.source.parameters[:, layout.MEAN] *= 3.0
    pair = make_pair(training=Training(sh_every=0, epsilon=1e-8, mean_rate=0.0, mean_rate_final=0.0))
    oracle = pair.single(small_scene, 3)
    for boundary in ("exact", "keep"):
        assert_same(pair.splaxel(small_scene, 3, 3, boundary=boundary, saturation="off"), oracle)


# Approximations, bounded


@pytest.mark.parametrize("boxes_per_rank", [1, 2])
def test_production_stop_stays_within_60_decibels_of_single(street, make_pair, boxes_per_rank):
    pair = make_pair(KernelSet("reference", precision="float64"), STILL)
    job = pair.splaxel(street, 3, 1, boxes_per_rank=boxes_per_rank, **EXACT)
    assert decibels(job.image, pair.single(street, 1).image) > 60


@pytest.mark.parametrize(("boundary", "least"), [("drop", 22.0), ("keep", 22.0)])
def test_boundary_approximations_stay_near_single(street, make_pair, boundary, least):
    pair = make_pair(KernelSet("portable"), STILL)
    street.source.parameters[:, layout.OPACITY_LOGIT] = 0.0
    job = pair.splaxel(street, 3, 1, boundary=boundary, saturation="off")
    assert least < decibels(job.image, pair.single(street, 1).image) < 200


def test_drop_blends_nothing_outside_its_own_box_where_regions_overlap(make_scene, make_pair, look_at):
    """One splat across a face, seen from its far side: `drop` cuts it where the neighbour's region is, `keep` not."""
    scene = make_scene(count=8, views=1)
    table = scene.source.parameters
    table[:, layout.MEAN] = torch.tensor([0.0, 0.0, 1.0]) * torch.linspace(-4, 4, 8)[:, None]
    table[:, layout.LOG_SCALE] = -3.0
    table[3, layout.LOG_SCALE] = torch.tensor([-3.0, -3.0, 0.5])
    scene.cameras = [look_at([3.0, 1.0, -2.0], [0.0, 0.0, 0.0])]
    scene.images.images = [scene.images.images[0][:25, :33].contiguous()]
    pair = make_pair(KernelSet("portable"), STILL)
    images = {
        boundary: pair.splaxel(scene, 2, 1, boundary=boundary, saturation="off").image
        for boundary in ("drop", "keep", "exact")
    }
    assert not torch.equal(images["drop"], images["keep"])


# Saturation


def test_saturation_saves_render_exchange_and_supervision_and_changes_little(street, still_pair):
    passes = 3 * len(street.cameras)
    bare = still_pair.splaxel(street, 3, passes, **PLAIN)
    masked = still_pair.splaxel(street, 3, passes, boundary="drop", saturation_eps=1e-3)
    last = slice(-len(street.cameras), None)
    rendered = [sum(r.tile_instances for of_rank in job.reports for r in of_rank[last]) for job in (bare, masked)]
    assert rendered[1] < 0.8 * rendered[0]
    assert moved(masked, "exchange_forward") < 0.9 * moved(bare, "exchange_forward")
    counted = masked.statistics[0]
    assert counted["supervised_pixel_share"] < bare.statistics[0]["supervised_pixel_share"]
    assert counted["saturated_pair_share"] > 0.1
    assert counted["mask_hit_share"] > 0.5
    assert counted["flip_rate"] == 0
    assert counted["mask_age_images"] >= 1
    assert torch.allclose(masked.losses, bare.losses, atol=2e-3)
    assert "saturated_pair_share" not in bare.statistics[0]


def test_masks_are_known_alike_on_all_ranks(street, still_pair):
    for compose in ("all", "owner"):
        job = still_pair.splaxel(street, 3, 8, compose=compose)
        for view in range(len(street.cameras)):
            first, *others = [s.masks.active(view) for s in job.strategies]
            assert first
            assert any(not bool(grid.all()) for grid in first.values())
            for other in others:
                assert first.keys() == other.keys()
                assert all(torch.equal(first[box], other[box]) for box in first)


@pytest.mark.parametrize("views", [[0], [0, 1]])
def test_masks_of_a_step_are_agreed_on_when_the_next_one_is_queued_or_its_view_comes_again(street, still_pair, views):
    def main(comm):
        strategy, order, agreed = Splaxel(), ViewQueue(views, shuffle=False), []
        context = street.context(still_pair.kernels, still_pair.training, 1, comm)
        strategy.setup(context, street.source, street.images, SplaxelOptions())
        for _ in range(4):
            strategy.step(order)
            agreed.append(comm.ledger.calls.get("masks", 0))
        strategy.settle()
        return [*agreed, comm.ledger.calls["masks"]]

    assert VirtualWorld(2).run(main, still_pair.kernels.device) == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("options", "back_at"),
    [({"reactivate": "never"}, None), ({"reactivate": "budget"}, 1), ({"reactivate": "every_k", "every": 5}, 3)],
)
def test_what_was_hidden_comes_back_when_light_reaches_it_as_reactivate_says(street, still_pair, options, back_at):
    """The front walls turn to glass after three visits; from then on masks are wrong until they are judged anew."""
    street.cameras = street.cameras[:1]

    def main(comm):
        strategy, order, left_out = Splaxel(), ViewQueue([0]), []
        context = street.context(still_pair.kernels, still_pair.training, 1, comm)
        strategy.setup(context, street.source, street.images, SplaxelOptions(**options))
        for visit in range(8):
            if visit == 3:
                glass = strategy.gaussians.parameters[:, layout.MEAN][:, 2] < 6.0
                strategy.gaussians.parameters[glass, layout.OPACITY_LOGIT] = -9.0
            if visit >= 3:
                left_out.append(sum(int((~g).sum()) for g in strategy.masks.active(0).values()))
            strategy.step(order)
        return left_out, strategy.statistics()

    results = VirtualWorld(3).run(main, still_pair.kernels.device)
    left_out, counted = results[0]
    hidden = left_out[0]
    assert hidden > 0
    assert counted["flip_rate"] > 0
    assert all(r == results[0] for r in results)
    if back_at is None:
        assert min(left_out) >= hidden
    else:
        assert all(n >= hidden for n in left_out[:back_at] if n)
        assert left_out[back_at] < hidden
        if options["reactivate"] == "every_k":
            assert left_out[2] == 0


@pytest.mark.parametrize("options", [PLAIN, EXACT, {"boundary": "drop", "saturation_eps": 1e-3}])
def test_occlusion_history_renders_less_and_changes_little(street, make_pair, options):
    """What a box hides from itself; masks are for what other boxes hide."""
    street.source.parameters[:, layout.LOG_SCALE] += torch.tensor([0.7, 0.7, 0.0])
    training = Training(sh_every=0, rate_scale=0.0, occlusion="history")
    bare = make_pair(KernelSet("portable"), STILL).splaxel(street, 2, 12, **options)
    kept = make_pair(KernelSet("portable"), training).splaxel(street, 2, 12, **options)
    rendered = [sum(r.tile_instances for of_rank in job.reports for r in of_rank[-4:]) for job in (bare, kept)]
    assert rendered[1] < 0.9 * rendered[0]
    assert torch.allclose(kept.losses, bare.losses, atol=1e-4)
    assert torch.equal(kept.image, bare.image)


def test_splats_that_masks_remove_do_not_move(street, make_pair):
    pair = make_pair(KernelSet("portable"), Training(sh_every=0))
    street.cameras = street.cameras[:1]
    masked = pair.splaxel(street, 3, 6, boundary="drop", saturation_eps=1e-2)
    seen = sum(r.tile_instances for of_rank in masked.reports for r in of_rank[-1:])
    bare = pair.splaxel(street, 3, 6, **PLAIN)
    assert seen < sum(r.tile_instances for of_rank in bare.reports for r in of_rank[-1:])
    # Where all instances are gone the moments decay with no visit; without masks they are visited at every step.
    still = (masked.moment1 != bare.moment1).any(dim=1)
    assert still.any()


def test_saturation_that_hides_nothing_is_exact(small_scene, pair, assert_same):
    small_scene.source.parameters[:, layout.OPACITY_LOGIT] = -2.0
    job = pair.splaxel(small_scene, 3, 6, boundary="exact", saturation="on", saturation_eps=1e-9)
    assert_same(job, pair.single(small_scene, 6))


def test_repartition_forgets_masks(street, still_pair):
    job = still_pair.splaxel(street, 3, 8, repartition_images=8, repartition_imbalance=0.0)
    assert all(s.masks.active(v) == {} for s in job.strategies for v in range(4))


# Consolidation


@pytest.fixture
def two_towns(make_scene, look_at):
    """Two far apart clusters with two views each, so that views of different towns share no rank."""
    scene = make_scene(count=60, views=4)
    table = scene.source.parameters
    table[:, layout.LOG_SCALE] -= 0.7
    table[::2, 0] += 40.0
    scene.cameras = [
        look_at([x + 0.5 * side, 0.3 * side, -4.0], [x, 0.0, 0.0]) for x in (0.0, 40.0) for side in (-1, 1)
    ]
    scene.images.images = [image[:25, :33].contiguous() for image in scene.images.images]
    return scene


class RecordedQueue(ViewQueue):
    """Remembers what was taken."""

    def __init__(self, *args, **keys):
        super().__init__(*args, **keys)
        self.taken: list[int] = []

    def take(self, ids):
        self.taken += ids
        return super().take(ids)


@pytest.mark.parametrize("boundary", ["drop", "keep", "exact"])
@pytest.mark.parametrize("saturation", ["on", "off"])
def test_views_run_together_train_as_one_after_another(two_towns, make_pair, boundary, saturation):
    """Bit for bit: the same views in the order taken, one by one, give the same parameters and moments."""
    pair = make_pair(KernelSet("portable"), Training(sh_every=3, rate_images=20))
    options = {"boundary": boundary, "saturation": saturation, "repartition_images": 5, "repartition_imbalance": 9.0}

    def job(make_queue, images, **more):
        def main(comm):
            strategy, order = Splaxel(), make_queue()
            context = two_towns.context(pair.kernels, pair.training, 1, comm)
            strategy.setup(context, two_towns.source, two_towns.images, SplaxelOptions(**options, **more))
            losses = []
            while strategy.images_seen < images:
                report = strategy.step(order)
                losses.append(report.loss.item() * report.images)
            return strategy, order, losses, strategy.statistics()

        return VirtualWorld(2).run(main)

    together = job(lambda: RecordedQueue(range(4), seed=1), 12, window=8)
    images, taken = together[0][0].images_seen, together[0][1].taken
    assert together[0][3]["views_together"] > 1.2
    assert together[1][1].taken == taken
    apart = job(lambda: ViewQueue(taken, shuffle=False), images)
    for a, b in zip(together, apart, strict=True):
        assert a[0].images_seen == b[0].images_seen
        for name in ("ids", "parameters", "moment1", "moment2"):
            assert torch.equal(getattr(a[0].gaussians, name), getattr(b[0].gaussians, name)), name
    assert sum(sum(r[2]) for r in together) == pytest.approx(sum(sum(r[2]) for r in apart), rel=1e-5)


def test_window_of_one_runs_views_alone_and_says_nothing_of_consolidation(two_towns, portable_pair):
    job = portable_pair.splaxel(two_towns, 2, 4, window=1)
    assert [r.images for r in job.reports[0]] == [1] * 4
    assert "views_together" not in job.statistics[0]


# Everything else


def test_repartition_evens_out_the_work(make_scene, still_pair, look_at):
    scene = make_scene(count=200, views=1)
    scene.source.parameters[:, layout.LOG_SCALE] = -3.0
    scene.source.parameters[:100, 0] += 30.0  # One rank's half is never seen.
    scene.cameras = [look_at([0.0, 0.0, -4.0], [0.0, 0.0, 0.0])]
    scene.images.images = [scene.images.images[0][:25, :33].contiguous()]
    job = still_pair.splaxel(scene, 2, 5, repartition_images=4, **PLAIN)
    work = [[r.tile_instances for r in of_rank] for of_rank in job.reports]
    assert min(w[0] for w in work) < 0.1 * max(w[0] for w in work)
    assert min(w[-1] for w in work) > 0.6 * max(w[-1] for w in work)


def test_balanced_work_is_left_where_it_is(small_scene, still_pair):
    job = still_pair.splaxel(small_scene, 2, 4, repartition_images=2, repartition_imbalance=100.0, **PLAIN)
    assert all("migrate" not in ledger.payload for ledger in job.ledgers)


def test_a_model_saved_and_loaded_renders_the_same(small_scene, pair):
    job = pair.splaxel(small_scene, 2, 3, **EXACT)

    def main(comm):
        strategy = Splaxel()
        context = small_scene.context(pair.kernels, pair.training, 1, comm)
        strategy.setup(context, small_scene.source, small_scene.images, SplaxelOptions(**EXACT))
        strategy.load(job)
        return strategy.render(small_scene.cameras[0])

    image = VirtualWorld(3).run(main)[0]
    assert torch.allclose(image, job.image, atol=1e-12)


def test_evaluation_between_steps_changes_neither_training_nor_counts(street, still_pair):
    job = still_pair.splaxel(street, 2, 4)

    def main(comm):
        strategy = Splaxel()
        context = street.context(still_pair.kernels, still_pair.training, 1, comm)
        strategy.setup(context, street.source, street.images, SplaxelOptions())
        order = ViewQueue(range(4), seed=3)
        for _ in range(4):
            strategy.step(order)
            strategy.render(street.cameras[1])
        return strategy.statistics()

    assert VirtualWorld(2).run(main, still_pair.kernels.device)[0] == job.statistics[0]


def test_statistics_are_metrics_of_the_harness_alike_on_all_ranks_and_start_again(street, still_pair):
    job = still_pair.splaxel(street, 3, 4, window=4)
    assert job.statistics[0].keys() <= METRICS.keys()
    assert all(s == job.statistics[0] for s in job.statistics)
    assert all(0 <= v <= 1 for name, v in job.statistics[0].items() if name.endswith("share"))


@pytest.mark.parametrize(
    ("training", "batch", "words"),
    [(Training(optimizer="dense"), 1, "optimizer dense"), (Training(), 2, "batch 2")],
)
def test_consolidation_is_refused_where_it_would_not_equal_sequential_training(small_scene, training, batch, words):
    context = small_scene.context(KernelSet("portable"), training, batch, LocalCommunicator())
    with pytest.raises(ValueError, match=words):
        Splaxel().setup(context, small_scene.source, small_scene.images, SplaxelOptions(window=8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 3}, "reactivate: every_k"),
        ({"saturation": "off", "saturation_eps": 1e-3}, "saturation: on"),
        ({"boxes_per_rank": 0}, "boxes_per_rank"),
        ({"boundary": "soft"}, "boundary"),
    ],
)
def test_options_that_nothing_reads_or_knows_are_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        SplaxelOptions(**options)


def test_quality_of_training_follows_single(street, make_pair):
    """Drop and saturation together, after training: within a decibel of `single` on a training view."""
    pair = make_pair(KernelSet("portable"), Training(sh_every=0))
    job, oracle = pair.splaxel(street, 3, 24), pair.single(street, 24)
    truth = street.images.images[0]
    assert psnr(job.image, truth) > psnr(oracle.image, truth) - 1.0
