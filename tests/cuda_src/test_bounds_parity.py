"""Bounds of groups of rows: they hold what they should, no view loses a Gaussian by them, and most of the rest goes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.bounds import bound_groups, empty_bounds, groups_of, groups_seen, widen_groups
from cuda_src.camera import Camera
from cuda_src.conventions import CONVENTIONS
from cuda_src.layout import BOUND_EXTENT, BOUND_LOWER, BOUND_UPPER, GROUP
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace

BACKENDS = pytest.mark.parametrize(
    "backend", ["reference", pytest.param("compiled", marks=pytest.mark.gpu)], indirect=True
)
"""Those that have bounds."""


def bounds_of(kernels: KernelSet, parameters: torch.Tensor) -> torch.Tensor:
    bounds = empty_bounds(len(parameters), parameters.dtype, parameters.device).fill_(7.0)
    bound_groups(kernels, parameters, bounds)
    return bounds


def seen_by(kernels: KernelSet, bounds: torch.Tensor, camera: Camera) -> torch.Tensor:
    seen = torch.zeros(len(bounds), dtype=torch.bool, device=bounds.device)
    groups_seen(kernels, bounds, camera, seen)
    return seen


def visible_rows(kernels: KernelSet, parameters: torch.Tensor, camera: Camera) -> torch.Tensor:
    return op.project(kernels, parameters, torch.arange(len(parameters)), camera, 0, Workspace()).rows


def alone(parameters: torch.Tensor) -> torch.Tensor:
    """Every Gaussian in a group of its own: the other rows are nowhere."""
    spread = torch.full((len(parameters), GROUP, layout.PARAMETERS), float("nan"), dtype=parameters.dtype)
    spread[:, 5] = parameters
    return spread.view(-1, layout.PARAMETERS)


@BACKENDS
@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("footprint", ["ellipse", "square"])
def test_a_bound_is_the_box_of_the_means_and_the_largest_extent(parity, backend, count, footprint):
    kernels = parity.kernels(backend, footprint=footprint)
    parameters = parity.view(1, gaussians=count).parameters
    bounds = bounds_of(kernels, parameters)
    assert len(bounds) == groups_of(count) == math.ceil(count / 32)
    sigmas = torch.full((count,), 3.0)
    if footprint == "ellipse":
        opacity = torch.sigmoid(parameters[:, layout.OPACITY_LOGIT])
        sigmas = torch.sqrt(2 * torch.log(255 * opacity).clamp(min=0))
    extents = sigmas * parameters[:, layout.LOG_SCALE].exp().amax(dim=1)
    for group, bound in enumerate(bounds):
        rows = slice(group * GROUP, (group + 1) * GROUP)
        assert torch.equal(bound[BOUND_LOWER], parameters[rows, layout.MEAN].amin(dim=0))
        assert torch.equal(bound[BOUND_UPPER], parameters[rows, layout.MEAN].amax(dim=0))
        assert bound[BOUND_EXTENT].item() == pytest.approx(extents[rows].max().item(), rel=1e-5)
        assert bound[layout.BOUND - 1] == 0


@BACKENDS
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_what_is_nowhere_or_of_no_size_spoils_no_bound(parity, backend, poison):
    kernels = parity.kernels(backend)
    view = parity.view(2, gaussians=64)
    parameters, rest = view.parameters.clone(), torch.arange(64) != 3
    parameters[3, 1] = poison
    for column in (layout.LOG_SCALE.start, layout.OPACITY_LOGIT):
        parameters[40, column] = float("nan")
    bounds = bounds_of(kernels, parameters)
    first = bounds[0]
    assert torch.equal(first[BOUND_LOWER], parameters[:32][rest[:32], :3].amin(dim=0))
    assert torch.equal(first[BOUND_UPPER], parameters[:32][rest[:32], :3].amax(dim=0))
    assert torch.isfinite(bounds).all()
    parameters[:32, 0] = poison
    assert not seen_by(kernels, bounds_of(kernels, parameters), view.camera)[0]
    assert len(bounds_of(kernels, parameters[:0])) == 0


@BACKENDS
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    convention=st.sampled_from(sorted(CONVENTIONS)),
    footprint=st.sampled_from(["ellipse", "square"]),
    sizes=st.sampled_from([(0.01, 1.0), (0.7, 12.0), (5.0, 400.0)]),
    needle=st.sampled_from([0.0, 3.0]),
    far=st.sampled_from([math.inf, 3.0]),
    offset=st.sampled_from([0.0, 3000.0]),
)
def test_no_view_loses_a_gaussian_by_its_bound(
    parity, backend, seed, convention, footprint, sizes, needle, far, offset
):
    """Each Gaussian in a group of its own, which is the narrowest bound there is."""
    view = parity.view(seed, gaussians=150, sizes=sizes)
    camera, parameters = replace(view.camera, far=far), view.parameters.clone()
    parameters[:, layout.LOG_SCALE.start] += needle
    # Far from the world's origin float32 has few digits left for what is near the camera.
    pose = camera.world_to_camera.copy()
    pose[:3, 3] -= pose[:3, :3] @ np.full(3, offset)
    parameters[:, layout.MEAN] += offset
    camera = replace(camera, world_to_camera=pose)
    kernels = parity.kernels(backend, convention, footprint=footprint)
    oracle = parity.oracle(kernels)
    seen = seen_by(kernels, bounds_of(kernels, alone(parameters)), camera)
    for own, table in ((kernels, parameters), (oracle, parameters.double())):
        assert seen[visible_rows(own, table, camera)].all()
    exact = seen_by(oracle, bounds_of(oracle, alone(parameters.double())), camera)
    assert exact[visible_rows(oracle, parameters.double(), camera)].all()


@BACKENDS
def test_far_from_the_worlds_origin_nothing_at_the_far_plane_is_lost(parity, backend):
    """The camera's own place is rounded there, by more than what is seen lies from the plane."""
    view, kernels = parity.view(1, gaussians=3000), parity.kernels(backend)
    # Each coordinate lies half way between two numbers of float32, and the view goes along the diagonal.
    pose, away = np.eye(4), np.full(3, 3000.00012)
    pose[:3, :3] = [[np.sqrt(0.5), -np.sqrt(0.5), 0], [np.sqrt(1 / 6), np.sqrt(1 / 6), -np.sqrt(2 / 3)], [3**-0.5] * 3]
    pose[:3, 3] = -pose[:3, :3] @ away
    camera = replace(view.camera, far=3.0, world_to_camera=pose)
    at_plane = torch.from_numpy(away + 3.0 * pose[2, :3])
    generator = torch.Generator().manual_seed(2)
    spread = 3e-4 * torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    view.parameters[:, layout.MEAN] = (at_plane + spread).float()
    visible = visible_rows(parity.oracle(kernels), view.parameters.double(), camera)
    assert 100 < len(visible) < 2900
    seen = seen_by(kernels, bounds_of(kernels, alone(view.parameters)), camera)
    assert seen[visible].all()
    assert seen[visible_rows(kernels, view.parameters, camera)].all()


@BACKENDS
def test_most_of_what_no_view_sees_is_left_out(parity, backend):
    kernels = parity.kernels(backend)
    lost, kept = 0, 0
    for seed in range(8):
        view = parity.view(seed, gaussians=200, width=400, height=300, sizes=(0.1, 1.0))
        parameters = view.parameters[torch.sigmoid(view.parameters[:, layout.OPACITY_LOGIT]) > 0.01]
        unseen = torch.ones(len(parameters), dtype=torch.bool)
        unseen[visible_rows(kernels, parameters, view.camera)] = False
        seen = seen_by(kernels, bounds_of(kernels, alone(parameters)), view.camera)
        lost, kept = lost + int((unseen & ~seen).sum()), kept + int((unseen & seen).sum())
    assert lost > 8 * kept > 0, (lost, kept)


def near_and_far(count: int) -> torch.Tensor:
    """Small Gaussians in a cube around the origin, in the order of a curve through 16^3 cells."""
    parameters = torch.zeros(count, layout.PARAMETERS)
    generator = torch.Generator().manual_seed(0)
    means = 10 * torch.rand(count, 3, generator=generator) - 5
    cells = ((means + 5) / 10 * 16).long()
    code = sum((cells[:, a] >> bit & 1) << (3 * bit + a) for bit in range(4) for a in range(3))
    parameters[:, layout.MEAN] = means[torch.argsort(code)]
    parameters[:, layout.LOG_SCALE] = math.log(0.02)
    parameters[:, layout.OPACITY_LOGIT] = 3.0
    return parameters


@BACKENDS
def test_of_neighbours_in_storage_few_groups_are_looked_at_in_vain(parity, backend):
    kernels, parameters = parity.kernels(backend), near_and_far(16_000)
    camera = Camera(64, 48, 80.0, 80.0, 32.0, 24.0, np.eye(4), far=4.0)
    seen = seen_by(kernels, bounds_of(kernels, parameters), camera)
    needed = torch.zeros(len(seen), dtype=torch.bool)
    needed[visible_rows(kernels, parameters, camera) // GROUP] = True
    assert seen[needed].all()
    assert 5 < int(needed.sum()) <= int(seen.sum()) < 3 * int(needed.sum())
    assert int(seen.sum()) < len(seen) / 5


@BACKENDS
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([1e-3, 0.5, 100.0]))
def test_widened_bounds_hold_what_moved_and_never_shrink(parity, backend, seed, scale):
    kernels = parity.kernels(backend)
    generator = torch.Generator().manual_seed(seed)
    parameters = parity.view(seed, gaussians=150).parameters
    before = bounds_of(kernels, parameters)
    rows = torch.randperm(150, generator=generator)[:60]
    parameters[rows] += scale * torch.randn(60, layout.PARAMETERS, generator=generator)
    parameters[rows[0], 0] = float("nan")
    parameters[rows[1], :3] = torch.tensor([0.0, -0.0, 1e-30])
    widened = before.clone()
    widen_groups(kernels, parameters, rows, widened)
    rest = torch.ones(150, dtype=torch.bool)
    rest[rows] = False
    least = bounds_of(kernels, torch.where(rest[:, None], torch.nan, parameters))
    room = least[:, BOUND_EXTENT, None].clamp(max=torch.finfo(torch.float32).max) / 32 * (backend == "compiled")
    for columns, wider in ((BOUND_LOWER, torch.minimum), (BOUND_UPPER, torch.maximum)):
        exact = wider(before[:, columns], least[:, columns])
        assert torch.equal(wider(widened[:, columns], exact), widened[:, columns])
        assert ((widened[:, columns] - exact).abs() <= room * 1.001 + 1e-5 * exact.abs()).all()
    exact = torch.maximum(before[:, BOUND_EXTENT], least[:, BOUND_EXTENT])
    assert (widened[:, BOUND_EXTENT] >= exact).all()
    assert (widened[:, BOUND_EXTENT] <= exact * (1 + 1.001 / 32)).all()
    again = widened.clone()
    widen_groups(kernels, parameters, rows, again)
    assert torch.equal(again, widened)


def test_bounds_of_another_number_of_groups_are_refused():
    with pytest.raises(ValueError, match=r"expected contiguous bounds \(2, 8\), got \(1, 8\)"):
        bound_groups(KernelSet("reference"), torch.zeros(33, layout.PARAMETERS), torch.zeros(1, layout.BOUND))


@pytest.mark.gpu
@pytest.mark.parametrize("footprint", ["ellipse", "square"])
def test_on_a_gpu_the_bounds_are_those_of_the_reference_and_culling_loses_nothing(parity, footprint):
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    device = torch.device("cuda", 0)
    ours = KernelSet("compiled", device, footprint=footprint)
    oracle = KernelSet("reference", device, footprint=footprint)
    parameters = near_and_far(200_003).to(device)
    parameters[::7, layout.LOG_SCALE] += 2.0
    bounds, expected = bounds_of(ours, parameters), bounds_of(oracle, parameters)
    assert torch.equal(bounds[:, :3], expected[:, :3])
    assert torch.equal(bounds[:, 4:], expected[:, 4:])
    torch.testing.assert_close(bounds[:, BOUND_EXTENT], expected[:, BOUND_EXTENT], rtol=1e-5, atol=0)
    ids = torch.arange(len(parameters), device=device)
    for angle in (0.0, 0.7, 2.9):
        pose = np.eye(4)
        pose[:3, :3] = [[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]]
        camera = Camera(640, 481, 500.0, 520.0, 300.0, 250.0, pose)
        seen = seen_by(ours, bounds, camera)
        rows = op.project(ours, parameters, ids, camera, 0, Workspace(device)).rows
        assert len(rows) > 1000
        assert seen[rows // GROUP].all()
        exact = seen_by(oracle, bounds, camera)
        assert int((seen != exact).sum()) <= 2
        assert int(seen.sum()) < 0.5 * len(seen)
