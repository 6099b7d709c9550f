"""`splaxel` with `boundary: exact` equals `single`, wherever boxes and cameras are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.operators import KernelSet
from strategies.training.config import Training

EXACT = {"boundary": "exact", "saturation": "off"}


@pytest.mark.parametrize(
    ("ranks", "boxes_per_rank", "compose", "order"),
    [
        (1, 1, "all", "tree"),
        (1, 4, "owner", "depth"),
        (2, 1, "all", "depth"),
        (2, 4, "all", "tree"),
        (3, 1, "owner", "tree"),
        (3, 4, "owner", "depth"),
        (4, 1, "all", "tree"),
        (4, 4, "all", "depth"),
        (7, 1, "owner", "tree"),
        (7, 2, "all", "tree"),
    ],
)
def test_free_running_float64_splaxel_equals_single(
    small_scene, pair, assert_same, ranks, boxes_per_rank, compose, order
):
    options = {"boxes_per_rank": boxes_per_rank, "compose": compose, "order": order}
    images = 10 if ranks * boxes_per_rank < 12 else 6
    assert_same(pair.splaxel(small_scene, ranks, images, **EXACT, **options), pair.single(small_scene, images))


@pytest.mark.parametrize("optimizer", ["dense", "visible", "touched"])
@pytest.mark.parametrize(("ranks", "batch", "compose"), [(2, 3, "all"), (3, 2, "owner")])
def test_batches_equal_single_at_the_same_batch(small_scene, make_pair, assert_same, optimizer, ranks, batch, compose):
    pair = make_pair(training=Training(sh_every=0, epsilon=1e-8, optimizer=optimizer), batch=batch)
    job = pair.splaxel(small_scene, ranks, 2 * batch, compose=compose, **EXACT)
    assert_same(job, pair.single(small_scene, 2 * batch))


@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@pytest.mark.parametrize("regions", ["polyhedra", "whole"])
def test_neither_footprint_nor_regions_change_the_result(small_scene, make_pair, assert_same, footprint, regions):
    pair = make_pair(KernelSet("reference", precision="float64", t_stop=0.0, footprint=footprint))
    job = pair.splaxel(small_scene, 3, 4, regions=regions, boxes_per_rank=2, **EXACT)
    assert_same(job, pair.single(small_scene, 4))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(1, 4),
    boxes_per_rank=st.integers(1, 3),
    camera=st.tuples(*[st.floats(-3, 3, width=32)] * 3),
    towards=st.sampled_from([(0.0, 0.0, 0.0), (1.0, 0.2, 0.3), (-5.0, 1.0, 5.0), (0.0, 9.0, 0.1)]),
    size=st.floats(-3.0, 0.0),
)
def test_image_and_step_equal_single_for_any_boxes_and_camera(
    make_scene, pair, look_at, assert_same, seed, ranks, boxes_per_rank, camera, towards, size
):
    """Inside a box, outside all Gaussians, looking past them; splats from specks to larger than the boxes."""
    scene = make_scene(count=24, views=1, seed=seed)
    scene.source.parameters[:, layout.LOG_SCALE] += size + 1.5
    distance = sum((a - b) ** 2 for a, b in zip(camera, towards, strict=True))
    scene.cameras = [look_at(camera, towards if distance > 1e-3 else (9.0, 9.0, 9.0), 20, 18)]
    scene.images.images = [scene.images.images[0][:18, :20].contiguous()]
    job = pair.splaxel(scene, ranks, 2, boxes_per_rank=boxes_per_rank, **EXACT)
    assert_same(job, pair.single(scene, 2))


@pytest.mark.parametrize("along", [0, 1, 2])
def test_a_camera_on_a_face_that_looks_along_it_sees_both_sides_once(make_scene, pair, look_at, assert_same, along):
    scene = make_scene(count=16, views=1)
    means = scene.source.parameters[:, layout.MEAN]
    means[:, along] = torch.linspace(-1, 1, 17)[torch.arange(16)] * 3
    face = float(means[:, along].double().sort().values[7:9].mean())
    position, towards = [-3.0, -3.0, -3.0], [2.0, 2.0, 2.0]
    position[along] = towards[along] = face
    scene.cameras = [look_at(position, towards)]
    scene.images.images = [scene.images.images[0][:25, :33].contiguous()]
    job = pair.splaxel(scene, 2, 3, **EXACT)
    assert float(job.strategies[0].territory.boxes.corners[0, 1, along]) == face
    assert_same(job, pair.single(scene, 3))


def test_equal_depths_are_blended_by_id_wherever_their_owners_are(make_scene, pair, look_at, assert_same):
    scene = make_scene(count=12, views=1)
    scene.source.parameters[:, layout.MEAN] *= torch.tensor([1.0, 1.0, 0.0])
    scene.source.parameters[:, layout.OPACITY_LOGIT] = 2.0
    scene.source.parameters[:, layout.LOG_SCALE] = -0.5
    scene.cameras = [look_at([0.0, 0.0, -4.0], [0.0, 0.0, 0.0])]
    scene.images.images = [scene.images.images[0][:25, :33].contiguous()]
    assert_same(pair.splaxel(scene, 3, 2, **EXACT), pair.single(scene, 2))


def test_float32_gradients_equal_single_when_both_start_the_step_alike(small_scene, make_pair):
    """Design's definition (a); the first moments after one step are the gradients, scaled."""
    pair = make_pair(KernelSet("portable", t_stop=0.0))
    job, oracle = pair.splaxel(small_scene, 3, 1, boxes_per_rank=2, **EXACT), pair.single(small_scene, 1)
    for group in layout.PARAMETER_GROUPS.values():
        error = (job.moment1 - oracle.moment1)[:, group].abs().max()
        assert error <= 1e-5 * oracle.moment1[:, group].abs().max()


def test_free_running_float32_loss_agrees_with_single(small_scene, make_pair):
    pair = make_pair(KernelSet("portable", t_stop=0.0), Training(sh_every=0))
    job, oracle = pair.splaxel(small_scene, 3, 12, **EXACT), pair.single(small_scene, 12)
    assert torch.allclose(job.losses, oracle.losses, rtol=1e-4)


def test_means_that_wander_out_of_their_box_change_nothing(small_scene, make_pair, assert_same):
    training = Training(sh_every=0, epsilon=1e-8, mean_rate=0.1, mean_rate_final=0.1)
    pair = make_pair(training=training)
    job = pair.splaxel(small_scene, 3, 8, **EXACT)
    strayed = [
        (s.territory.boxes.leaf_of(s.gaussians.parameters[:, layout.MEAN]) != s.territory.box_of).any()
        for s in job.strategies
    ]
    assert any(strayed)
    assert_same(job, pair.single(small_scene, 8))


def test_repartition_moves_gaussians_with_their_state_and_changes_nothing_else(small_scene, pair, assert_same):
    settings = {"repartition_images": 3, "repartition_imbalance": 0.0, "boxes_per_rank": 2}
    job = pair.splaxel(small_scene, 3, 8, **settings, **EXACT)
    assert any("migrate" in ledger.payload for ledger in job.ledgers)
    assert_same(job, pair.single(small_scene, 8))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_ranks_without_gaussians_take_part(make_scene, pair, assert_same, count):
    scene = make_scene(count=count, views=2)
    assert_same(pair.splaxel(scene, 3, 2, boxes_per_rank=2, **EXACT), pair.single(scene, 2))


def test_views_that_see_nothing_cost_no_pixel_and_count_their_loss_once(small_scene, pair, assert_same):
    small_scene.source.parameters[:, layout.MEAN] += torch.tensor([0.0, 0.0, -500.0])
    small_scene.cameras = small_scene.cameras[:1]
    job = pair.splaxel(small_scene, 3, 2, boundary="drop", saturation="off")
    assert sum(int(ledger.payload["exchange_forward"].sum()) for ledger in job.ledgers) == 0
    assert_same(job, pair.single(small_scene, 2))
