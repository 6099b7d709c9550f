"""densification_statistics of every back end: by hand, and against `reference` in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.workspace import Workspace


def seen(parity, backend: str, seed: int, gaussians: int = 60):
    """A view, its splats and gradients of all sizes for them."""
    view = parity.view(seed, gaussians=gaussians)
    splats = op.project(parity.kernels(backend), view.parameters, view.ids, view.camera, 3, Workspace())
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(splats.count, layout.GRADIENT, generator=generator)
    gradients *= 10 ** torch.randint(-8, 3, (splats.count, 1), generator=generator).float()
    return view, splats, gradients


def test_one_view_by_hand(parity, backend):
    view, splats, gradients = seen(parity, backend, 1)
    gradients[0, layout.RECORD_MEAN2D] = torch.tensor([3e-4, -4e-4])
    statistics = torch.zeros(len(view.parameters), layout.STATISTICS)
    row = splats.rows[0]
    statistics[row] = torch.tensor([1.0, 5.0, 0.01])
    op.densification_statistics(parity.kernels(backend), splats, view.camera, gradients, statistics)
    width, height = view.camera.width, view.camera.height
    assert statistics[row].tolist() == pytest.approx(
        [
            1.0 + math.hypot(3e-4 * width / 2, 4e-4 * height / 2),
            6.0,
            max(0.01, splats.records[0, layout.RECORD_RADIUS].item() / max(width, height)),
        ],
        rel=1e-6,
    )
    unseen = torch.ones(len(statistics), dtype=torch.bool)
    unseen[splats.rows] = False
    assert unseen.any()
    assert not statistics[unseen].any()


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_views_add_up_as_in_float64(parity, backend, seed):
    kernels = parity.kernels(backend)
    ours = torch.zeros(60, layout.STATISTICS)
    exact = ours.double()
    for view_seed in (seed, seed + 1, seed + 2):
        view, splats, gradients = seen(parity, backend, view_seed)
        op.densification_statistics(kernels, splats, view.camera, gradients, ours)
        op.densification_statistics(
            parity.oracle(kernels), parity.splats64(splats), view.camera, gradients.double(), exact
        )
    assert torch.equal(ours[:, layout.VIEWS_SEEN], exact[:, layout.VIEWS_SEEN].float())
    for column in (layout.GRADIENT_SUM, layout.LARGEST_RADIUS):
        assert ((ours[:, column].double() - exact[:, column]).abs() <= 1e-6 * exact[:, column]).all()


def test_records_and_gradients_may_lie_in_words(parity, backend):
    view, splats, gradients = seen(parity, backend, 4)
    results = []
    for stride in (None, layout.RECORD_STRIDE):
        statistics = torch.zeros(len(view.parameters), layout.STATISTICS)
        if stride is not None:
            wide = torch.full((splats.count, stride), 7.0)
            splats = replace(splats, records=wide.clone()[:, : layout.RECORD].copy_(splats.records))
            gradients = wide[:, : layout.GRADIENT].copy_(gradients)
        op.densification_statistics(parity.kernels(backend), splats, view.camera, gradients, statistics)
        results.append(statistics)
    assert torch.equal(*results)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_adds_nothing_but_a_view(parity, backend, poison):
    view, splats, gradients = seen(parity, backend, 2)
    gradients[0, 1] = poison
    statistics = torch.zeros(len(view.parameters), layout.STATISTICS)
    op.densification_statistics(parity.kernels(backend), splats, view.camera, gradients, statistics)
    assert torch.isfinite(statistics).all()
    assert statistics[splats.rows[0], layout.GRADIENT_SUM] == 0
    assert statistics[splats.rows[0], layout.VIEWS_SEEN] == 1


def test_a_view_that_sees_nothing_changes_nothing(parity, backend):
    view, splats, gradients = seen(parity, backend, 3)
    none = op.Splats(splats.rows[:0], splats.ids[:0], splats.records[:0])
    statistics = torch.rand(len(view.parameters), layout.STATISTICS)
    kept = statistics.clone()
    op.densification_statistics(parity.kernels(backend), none, view.camera, gradients[:0], statistics)
    assert torch.equal(statistics, kept)


@pytest.mark.gpu
def test_with_a_room_only_what_is_live_and_drawn_counts(parity):
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    device = torch.device("cuda", 0)
    kernels = op.KernelSet("compiled", device)
    view, splats, gradients = seen(parity, "reference", 5, gaussians=700)
    count, room = splats.count, splats.count + 40
    records = torch.full((room, layout.RECORD), 1e9)
    records[:count] = splats.records
    records[1, layout.RECORD_DEPTH] = float("nan")
    rows = torch.zeros(room, dtype=torch.int64)
    rows[:count] = splats.rows
    wide = torch.full((room, layout.GRADIENT), 1e9)
    wide[:count] = gradients
    # Rows beyond the live ones hold anything; more may be live than there is room for.
    for live in (count, count - 3, room + 9):
        overflow = torch.zeros(1, dtype=torch.int32, device=device)
        used = min(live, room)
        if used > count:
            rows[count:] = len(view.parameters) + torch.arange(room - count)
        given = op.Splats(
            rows.to(device),
            rows.to(device),
            records.to(device),
            torch.tensor([live, 1], device=device),
            overflow,
        )
        statistics = torch.zeros(len(view.parameters) + room, layout.STATISTICS, device=device)
        op.densification_statistics(kernels, given, view.camera, wide.to(device), statistics)
        expected = torch.zeros(len(statistics))
        expected[rows[:used]] = 1
        expected[rows[1]] = 0
        assert torch.equal(statistics[:, layout.VIEWS_SEEN].cpu(), expected)
        kept = statistics.clone()
        overflow.fill_(1)
        op.densification_statistics(kernels, given, view.camera, wide.to(device), statistics)
        assert torch.equal(statistics, kept)
