"""project and project_backward of every back end against `reference` in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.operators import Splats, project, project_backward
from cuda_src.workspace import Workspace

seeds = st.integers(0, 2**31)
bounded = settings(max_examples=12, deadline=None)


def assert_projection_agrees(parity, kernels, view, sh_degree):
    oracle = parity.oracle(kernels)
    ours = project(kernels, view.parameters, view.ids, view.camera, sh_degree, Workspace())
    exact = project(oracle, view.parameters.double(), view.ids, view.camera, sh_degree, Workspace())
    clear = parity.clear_rows(kernels, view, sh_degree)
    # A Gaussian has about ten decisions of relative width 1e-4 each: a few per thousand are unclear.
    assert clear.double().mean() >= 0.9
    mine, theirs = clear[ours.rows], clear[exact.rows]
    assert ours.rows[mine].tolist() == exact.rows[theirs].tolist()
    assert ours.rows.tolist() == sorted(ours.rows.tolist())
    assert ours.ids.tolist() == view.ids[ours.rows].tolist()
    assert torch.isfinite(ours.records).all()
    records, expected = ours.records[mine], exact.records[theirs]
    parity.groups_close(records, expected, parity.record_groups)
    assert records[:, layout.RECORD_RADIUS].tolist() == expected[:, layout.RECORD_RADIUS].tolist()
    return ours


def assert_gradients_agree(parity, kernels, view, sh_degree, splats, seed=0):
    upstream = torch.randn(splats.count, layout.GRADIENT, generator=torch.Generator().manual_seed(seed))
    oracle = parity.oracle(kernels)
    args = (splats, view.camera, sh_degree)
    ours = project_backward(kernels, view.parameters, *args, upstream, Workspace())
    exact = project_backward(oracle, view.parameters.double(), *args, upstream.double(), Workspace())
    assert ours.shape == (splats.count, layout.PARAMETERS)
    assert torch.isfinite(ours).all()
    clear = parity.clear_rows(kernels, view, sh_degree)[splats.rows]
    parity.groups_close(ours[clear], exact[clear], layout.PARAMETER_GROUPS)


@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
@bounded
@given(seed=seeds)
def test_projection_and_its_gradient_agree_with_float64_at_every_sh_degree(parity, backend, sh_degree, seed):
    kernels, view = parity.kernels(backend), parity.view(seed)
    splats = assert_projection_agrees(parity, kernels, view, sh_degree)
    assert_gradients_agree(parity, kernels, view, sh_degree, splats, seed)


@pytest.mark.parametrize("convention", ["inria", "gsplat153"])
@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (17, 33), (50, 40)])
def test_projection_agrees_in_other_conventions_footprints_and_sizes(
    parity, backend, convention, footprint, width, height
):
    kernels = parity.kernels(backend, convention, footprint=footprint)
    view = parity.view(5, gaussians=120, width=width, height=height)
    splats = assert_projection_agrees(parity, kernels, view, 3)
    assert splats.count > 0
    assert_gradients_agree(parity, kernels, view, 3, splats)


@pytest.mark.parametrize("sh_degree", [0, 1, 2])
def test_coefficients_above_the_degree_get_no_gradient(parity, backend, sh_degree):
    kernels, view = parity.kernels(backend), parity.view(1)
    splats = project(kernels, view.parameters, view.ids, view.camera, sh_degree, Workspace())
    gradient = project_backward(
        kernels, view.parameters, splats, view.camera, sh_degree, torch.ones(splats.count, layout.GRADIENT), Workspace()
    )
    used = 3 * (sh_degree + 1) ** 2
    assert (gradient[:, layout.SH][:, used:] == 0).all()
    assert (gradient[:, layout.SH][:, :used] != 0).any()


def test_gaussians_whose_footprint_meets_no_tile_are_culled(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(2, gaussians=400)
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    assert 0 < splats.count < 400
    # The builder spreads means over 1.6 times the image's sides: some must be outside.
    everything = project(
        kernels,
        view.parameters,
        view.ids,
        view.camera.__class__(500, 500, view.camera.fx, view.camera.fy, 250.0, 250.0, view.camera.world_to_camera),
        3,
        Workspace(),
    )
    assert everything.count > splats.count


def test_gradients_of_a_subset_of_splats_are_rows_of_the_whole(parity, backend):
    """Owners differentiate only what came back to them."""
    kernels, view = parity.kernels(backend), parity.view(3)
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    upstream = torch.randn(splats.count, layout.GRADIENT, generator=torch.Generator().manual_seed(0))
    whole = project_backward(kernels, view.parameters, splats, view.camera, 3, upstream, Workspace()).clone()
    some = torch.arange(0, splats.count, 3)
    part = Splats(splats.rows[some], splats.ids[some], splats.records[some])
    gradient = project_backward(kernels, view.parameters, part, view.camera, 3, upstream[some], Workspace())
    assert torch.equal(gradient, whole[some])


@pytest.mark.parametrize("rows", [[], [0]])
def test_projection_of_no_or_one_gaussian_works(parity, backend, rows):
    kernels, view = parity.kernels(backend), parity.view(4).only(rows)
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    assert splats.count <= len(rows)
    assert splats.records.shape == (splats.count, layout.RECORD)
    gradient = project_backward(
        kernels, view.parameters, splats, view.camera, 3, torch.ones(splats.count, layout.GRADIENT), Workspace()
    )
    assert gradient.shape == (splats.count, layout.PARAMETERS)


@pytest.mark.parametrize("backend", [pytest.param("compiled", marks=pytest.mark.gpu)], indirect=True)
def test_a_view_of_more_groups_than_a_gpu_takes_at_once_equals_its_parts(parity, backend):
    """A warp of the compiled kernels then looks at several groups of rows, the next one on its way."""
    view, part = parity.view(11, gaussians=800_003, width=130, height=97), 32 * 4096
    kernels = parity.kernels(backend)
    whole = project(kernels, view.parameters, view.ids, view.camera, 1, Workspace())
    parts = [
        (first, project(kernels, parameters, ids, view.camera, 1, Workspace()))
        for first, parameters, ids in zip(
            range(0, 800_003, part), view.parameters.split(part), view.ids.split(part), strict=True
        )
    ]
    assert whole.rows.tolist() == [row + first for first, splats in parts for row in splats.rows.tolist()]
    assert torch.equal(whole.ids, torch.cat([splats.ids for _, splats in parts]))
    assert torch.equal(whole.records, torch.cat([splats.records for _, splats in parts]))
