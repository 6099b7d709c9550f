"""adam_rows of every back end against `reference` in float64, and against torch.optim where they must meet."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.compiled.adam import averaged_over
from cuda_src.operators import adam_rows


def state(seed: int, n: int = 30, used: int = 12):
    """Parameters, moments, rows, gradients, views and rates, float32."""
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(n, layout.PARAMETERS, generator=generator)
    moment1 = 0.1 * torch.randn(n, layout.PARAMETERS, generator=generator)
    moment2 = 0.01 * torch.rand(n, layout.PARAMETERS, generator=generator)
    rows = torch.randperm(n, generator=generator)[:used].sort().values
    gradients = torch.randn(used, layout.PARAMETERS, generator=generator)
    gradients *= 10 ** torch.randint(-6, 2, (used, 1), generator=generator).float()
    views = torch.randint(1, 9, (used,), generator=generator, dtype=torch.int32)
    rates = 10 ** (-4 * torch.rand(layout.PARAMETERS, generator=generator))
    return parameters, moment1, moment2, rows, gradients, views, rates


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), images_seen=st.sampled_from([1, 7, 30_000]))
def test_a_step_agrees_with_float64_and_leaves_other_rows_alone(parity, backend, seed, images_seen):
    kernels = parity.kernels(backend)
    parameters, moment1, moment2, rows, gradients, views, rates = state(seed)
    ours = [t.clone() for t in (parameters, moment1, moment2)]
    exact = [t.double() for t in (parameters, moment1, moment2)]
    adam_rows(kernels, *ours, rows, gradients, views, rates, images_seen)
    adam_rows(parity.oracle(kernels), *exact, rows, gradients.double(), views, rates.double(), images_seen)
    # The step itself, in units of the rate, so that a small one does not hide behind a large parameter.
    before = parameters[rows]
    assert ((ours[0][rows].double() - exact[0][rows]).abs() <= 1e-4 * rates + 2e-7 * before.abs()).all()
    parity.close(ours[1], exact[1], 1e-6, "first moments")
    parity.close(ours[2], exact[2], 1e-6, "second moments")
    others = torch.ones(len(parameters), dtype=torch.bool)
    others[rows] = False
    for changed, kept in zip(ours, (parameters, moment1, moment2), strict=True):
        assert torch.equal(changed[others], kept[others])


def test_one_view_a_step_on_all_rows_is_pytorchs_adam(parity, backend):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(8, layout.PARAMETERS, generator=generator)
    rates = torch.full((layout.PARAMETERS,), 0.01)
    theirs = start.double().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01, eps=1e-15)
    ours, moment1, moment2 = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    rows, views = torch.arange(8), torch.ones(8, dtype=torch.int32)
    for step in range(1, 6):
        gradients = torch.randn(8, layout.PARAMETERS, generator=generator)
        adam_rows(parity.kernels(backend), ours, moment1, moment2, rows, gradients, views, rates, step)
        theirs.grad = gradients.double()
        optimizer.step()
    parity.close(ours, theirs.detach(), 1e-5)


def test_a_row_seen_by_four_views_takes_grendels_batch_rule(parity, backend):
    """gradient / v, rate sqrt(v), beta^v, epsilon / sqrt(v), bias by the job's images: one entry by hand."""
    m, s, summed, rate, images, epsilon = 0.3, 0.5, 2.0, 0.01, 12, 0.4
    parameters, moment1, moment2 = (torch.full((1, layout.PARAMETERS), x) for x in (1.0, m, s))
    gradients = torch.full((1, layout.PARAMETERS), summed)
    views, rates = torch.tensor([4], dtype=torch.int32), torch.full((layout.PARAMETERS,), rate)
    adam_rows(
        parity.kernels(backend), parameters, moment1, moment2, torch.tensor([0]), gradients, views, rates, images,
        beta1=0.8, beta2=0.95, epsilon=epsilon,
    )  # fmt: skip
    first = 0.8**4 * m + (1 - 0.8**4) * summed / 4
    second = 0.95**4 * s + (1 - 0.95**4) * (summed / 4) ** 2
    unbiased1, unbiased2 = first / (1 - 0.8**images), second / (1 - 0.95**images)
    step = rate * 2 * unbiased1 / (unbiased2**0.5 + epsilon / 2)
    assert moment1[0].tolist() == pytest.approx([first] * layout.PARAMETERS, rel=1e-6)
    assert moment2[0].tolist() == pytest.approx([second] * layout.PARAMETERS, rel=1e-6)
    assert (1 - parameters[0]).tolist() == pytest.approx([step] * layout.PARAMETERS, rel=1e-4)


def test_a_zero_gradient_from_rest_moves_nothing(parity, backend):
    parameters, *_ = state(1)
    kept = parameters.clone()
    zeros = torch.zeros_like(parameters)
    rows, views = torch.arange(len(parameters)), torch.ones(len(parameters), dtype=torch.int32)
    adam_rows(parity.kernels(backend), parameters, zeros, zeros.clone(), rows, zeros.clone(), views, torch.ones(59), 1)
    assert torch.equal(parameters, kept)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_entry_that_is_not_finite_counts_as_zero(parity, backend, poison):
    results = []
    for value in (poison, 0.0):
        parameters, moment1, moment2, rows, gradients, views, rates = state(2)
        gradients[3, 7] = value
        adam_rows(parity.kernels(backend), parameters, moment1, moment2, rows, gradients, views, rates, 10)
        results.append((parameters, moment1, moment2))
    for poisoned, zeroed in zip(*results, strict=True):
        assert torch.equal(poisoned, zeroed)


def test_a_huge_finite_gradient_leaves_finite_state(parity, backend):
    parameters, moment1, moment2, rows, gradients, views, rates = state(3)
    gradients[0] = 3e38
    adam_rows(parity.kernels(backend), parameters, moment1, moment2, rows, gradients, views, rates, 10)
    for tensor in (parameters, moment1, moment2):
        assert torch.isfinite(tensor).all()


def test_no_rows_is_no_step(parity, backend):
    parameters, moment1, moment2, _, gradients, views, rates = state(4)
    kept = parameters.clone()
    none = torch.zeros(0, dtype=torch.int64)
    adam_rows(parity.kernels(backend), parameters, moment1, moment2, none, gradients[:0], views[:0], rates, 1)
    assert torch.equal(parameters, kept)


@pytest.mark.parametrize("rows", ["dense", "visible", "touched"])
@pytest.mark.parametrize("batch_rule", ["rows", "batch", "none"])
def test_a_row_averages_over_the_views_that_its_rule_says(rows, batch_rule):
    """The number for every row, or 0 where each counts its own; four views."""
    expected = {"none": 1, "batch": 4, "rows": 4 if rows == "dense" else 0}[batch_rule]
    assert averaged_over(rows, batch_rule, 4) == expected
