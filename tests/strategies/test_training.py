"""Schedules and the batch rule."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import Kept, KernelSet, Splats, project
from cuda_src.workspace import Workspace
from strategies.gaussians import Gaussians
from strategies.training.config import Training
from strategies.training.optimizer import RowAdam
from strategies.training.schedule import column_rates, mean_rate, sh_degree


def test_sh_degree_grows_with_images_seen_and_stops_at_the_full_degree():
    training = Training(sh_every=10)
    assert [sh_degree(training, n) for n in (0, 9, 10, 29, 30, 1000)] == [0, 0, 1, 2, 3, 3]
    assert sh_degree(Training(sh_every=0), 0) == 3


def test_mean_rate_falls_exponentially_between_its_two_ends():
    training = Training()
    assert mean_rate(training, 2.0, 0) == pytest.approx(3.2e-4)
    assert mean_rate(training, 2.0, 15_000) == pytest.approx(3.2e-5)
    assert mean_rate(training, 2.0, 10**9) == pytest.approx(3.2e-6)
    assert mean_rate(Training(mean_rate=0.0), 2.0, 5) == 0.0


def test_every_parameter_column_has_a_rate():
    rates = column_rates(Training(), 1.0, 0)
    assert rates.shape == (layout.PARAMETERS,)
    assert (rates > 0).all()
    assert torch.equal(column_rates(Training(rate_scale=0.5), 1.0, 0), rates * 0.5)


def gaussians(count: int) -> Gaussians:
    table = torch.zeros(count, layout.PARAMETERS, dtype=torch.float64)
    return Gaussians(torch.arange(count), table, table.clone(), table.clone())


def optimizer(**settings) -> RowAdam:
    kernels = KernelSet("reference", precision="float64")
    return RowAdam(Training(**settings), kernels, 1.0, Workspace())


def test_a_row_seen_once_in_a_batch_moves_as_in_a_batch_of_one():
    gradient = torch.randn(1, layout.PARAMETERS, dtype=torch.float64)
    other = torch.randn(1, layout.PARAMETERS, dtype=torch.float64)
    alone, together = gaussians(2), gaussians(2)
    one = optimizer()
    one.add(torch.tensor([0]), gradient)
    one.step(alone, 4)
    many = optimizer()
    many.add(torch.tensor([0]), gradient)
    for _ in range(3):
        many.add(torch.tensor([1]), other)
    many.step(together, 4)
    assert torch.equal(alone.parameters[0], together.parameters[0])


def test_a_row_seen_by_all_views_of_a_batch_follows_the_square_root_rule():
    training = Training()
    parts = [torch.randn(1, layout.PARAMETERS, dtype=torch.float64) for _ in range(4)]
    model = gaussians(1)
    rule = optimizer()
    for part in parts:
        rule.add(torch.tensor([0]), part)
    rule.step(model, 4)
    gradient = torch.stack(parts).mean(dim=0)
    beta1, beta2 = training.beta1**4, training.beta2**4
    first = (1 - beta1) * gradient / (1 - training.beta1**4)
    second = (1 - beta2) * gradient**2 / (1 - training.beta2**4)
    rates = column_rates(training, 1.0, 4) * 2.0
    expected = -rates * first / (second.sqrt() + training.epsilon / 2.0)
    assert torch.allclose(model.parameters, expected, rtol=1e-9)


def test_dense_scales_rows_by_the_whole_batch_whoever_saw_them():
    rule = optimizer(optimizer="dense", epsilon=1.0)
    model = gaussians(2)
    model.moment1[1] = 1.0
    rule.add(torch.tensor([0]), torch.ones(1, layout.PARAMETERS, dtype=torch.float64))
    rule.add(torch.tensor([0]), torch.ones(1, layout.PARAMETERS, dtype=torch.float64))
    rule.step(model, 2)
    assert torch.allclose(model.moment1[1], torch.full((layout.PARAMETERS,), 0.9**2, dtype=torch.float64))


def test_touched_leaves_rows_whose_gradients_cancel():
    rule = optimizer(optimizer="touched")
    model = gaussians(2)
    model.moment1[:] = 1.0
    ones = torch.ones(1, layout.PARAMETERS, dtype=torch.float64)
    rule.add(torch.tensor([0]), ones)
    rule.add(torch.tensor([0]), -ones)
    rule.add(torch.tensor([1]), ones)
    rule.step(model, 3)
    assert not model.parameters[0].any()
    assert model.parameters[1].all()


def test_a_step_that_moves_no_row_leaves_the_model_alone():
    rule = optimizer()
    model = gaussians(3)
    rule.add(torch.empty(0, dtype=torch.int64), torch.empty(0, layout.PARAMETERS, dtype=torch.float64))
    rule.step(model, 1)
    assert not model.parameters.any()


class MovesAtOnce(ModuleType):
    """A back end that only notes what it was asked to move."""

    def __init__(self) -> None:
        super().__init__("cuda_src.at_once")
        self.steps: list[dict] = []

    def project_backward_adam(
        self, kernels, parameters, moment1, moment2, views, sh_degree, workspace, pace, *rules
    ) -> None:
        self.steps.append(
            {"tables": (parameters, moment1, moment2), "views": list(views), "degree": sh_degree, "rates": pace.rates,
             "images_seen": pace.images_seen, "rules": rules}
        )  # fmt: skip


def splats(rows: list[int]) -> Splats:
    number = torch.tensor(rows, dtype=torch.int64)
    return Splats(number, number, torch.zeros(len(rows), layout.RECORD))


@pytest.fixture
def at_once(monkeypatch) -> MovesAtOnce:
    module = MovesAtOnce()
    monkeypatch.setitem(sys.modules, "cuda_src.at_once", module)
    return module


def moving(**settings) -> RowAdam:
    return RowAdam(Training(**settings), KernelSet("at_once"), 1.0, Workspace())


CAMERA = Camera(16, 16, 20.0, 20.0, 8.0, 8.0, np.eye(4))


@pytest.mark.parametrize("rows", ["dense", "visible", "touched"])
@pytest.mark.parametrize("batch_rule", ["rows", "batch", "none"])
def test_kernels_that_move_rows_at_once_are_given_all_views_of_a_step(at_once, rows, batch_rule):
    rule, model = moving(optimizer=rows, batch_rule=batch_rule, beta1=0.8), gaussians(6)
    for number in range(3):
        views = [(splats([number, 4]), torch.full((2, layout.GRADIENT), float(view))) for view in range(2)]
        for seen, partial in views:
            rule.add_splats(model, seen, CAMERA, number, partial, Workspace())
        rule.step(model, 2 * number + 2)
        step = at_once.steps[number]
        assert [(seen.splats, seen.gradients) for seen in step["views"]] == views
        assert all(seen.camera is CAMERA for seen in step["views"])
        assert (step["degree"], step["images_seen"]) == (number, 2 * number + 2)
        assert step["rules"] == (0.8, 0.999, 1e-15, rows, batch_rule, None, "all")
        assert all(one is other for one, other in zip(step["tables"], model.tables, strict=True))
        assert torch.equal(step["rates"], column_rates(Training(), 1.0, 2 * number + 2))
    assert len(at_once.steps) == 3


def test_a_step_in_two_parts_is_given_the_same_views_twice_and_the_next_one_is_whole(at_once):
    rule, model = moving(), gaussians(6)
    partial = torch.zeros(1, layout.GRADIENT)
    kept = Kept(torch.tensor([0]), partial, torch.zeros(1))
    rule.add_splats(model, splats([1]), CAMERA, 3, partial, Workspace(), kept=kept)
    rule.find(model, 1)
    rule.step_own(model, 1)
    rule.step(model, 1)
    rule.add_splats(model, splats([2]), CAMERA, 3, partial, Workspace())
    rule.step(model, 2)
    assert [step["rules"][-1] for step in at_once.steps] == ["find", "own", "rest", "all"]
    first, second, third, whole = (step["views"] for step in at_once.steps)
    assert first == second == third
    assert [seen.kept for seen in first] == [kept]
    assert [seen.kept for seen in whole] == [None]


def test_a_step_is_given_by_splat_or_by_row(at_once):
    rule, model = moving(), gaussians(3)
    rule.add_splats(model, splats([1]), CAMERA, 3, torch.zeros(1, layout.GRADIENT), Workspace())
    rule.add(torch.tensor([2]), torch.zeros(1, layout.PARAMETERS))
    with pytest.raises(ValueError, match="by splat or by row"):
        rule.step(model, 1)


def test_splats_that_are_not_drawn_are_given_to_kernels_without_a_depth(at_once):
    rule, model = moving(), gaussians(6)
    seen = splats([1, 3, 4])
    drawn = torch.tensor([True, False, True])
    rule.add_splats(model, seen, CAMERA, 3, torch.ones(3, layout.GRADIENT), Workspace(), drawn)
    rule.step(model, 1)
    ((given,),) = (step["views"] for step in at_once.steps)
    assert torch.equal(given.splats.records[:, layout.RECORD_DEPTH].isnan(), ~drawn)
    assert given.splats.records.isnan().sum() == 1


def test_splats_that_are_not_drawn_do_not_move_where_gradients_go_by_row():
    kernels, parameters = KernelSet("reference", precision="float64"), gaussians(40)
    parameters.parameters[:, layout.MEAN] = torch.linspace(-0.3, 0.3, 40)[:, None] + torch.tensor([0.0, 0.0, 3.0])
    parameters.parameters[:, layout.LOG_SCALE] = -2.0
    parameters.parameters[:, layout.QUATERNION] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    seen = project(kernels, parameters.parameters, parameters.ids, CAMERA, 0, Workspace())
    drawn = torch.arange(seen.count) % 3 != 0
    partial = torch.ones(seen.count, layout.GRADIENT, dtype=torch.float64)
    before = parameters.parameters.clone()
    rule = optimizer()
    rule.add_splats(parameters, seen, CAMERA, 0, partial, Workspace(), drawn)
    rule.step(parameters, 1)
    moved = (parameters.parameters != before).any(dim=1)
    assert seen.count > 3
    assert torch.equal(moved.nonzero()[:, 0], seen.rows[drawn])
