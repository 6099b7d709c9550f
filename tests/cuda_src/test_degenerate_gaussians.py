"""Gaussians at the edge of what can be drawn: every back end decides as `reference` does, and nothing turns NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import (
    bin_splats,
    l1_ssim,
    project,
    project_backward,
    raster_backward,
    raster_forward,
)
from cuda_src.workspace import Workspace

INF, NAN = math.inf, math.nan

DRAWN = {
    "zero scale": {"log_scale": -INF},
    "vanishing scale": {"log_scale": -50.0},
    "one flat axis": {"log_scale": [-INF, -2.0, -2.0]},
    "zero quaternion": {"quaternion": 0.0},
    "long quaternion": {"quaternion": [30.0, -20.0, 10.0, 5.0]},
    "opacity one": {"opacity": INF},
    "opacity almost one": {"opacity": 30.0},
    "on the near plane": {"mean": [0.0, 0.0, 0.2]},
    "larger than the image": {"log_scale": 3.0},
    "beside the field of view, reaching in": {"mean": [6.0, 0.0, 2.0], "log_scale": 1.0},
    "black": {"sh_dc": -20.0, "sh_rest": 0.0},
    "very bright": {"sh_dc": 1e6},
}
CULLED = {
    "opacity zero": {"opacity": -INF},
    "opacity below 1/255": {"opacity": -30.0},
    "behind the camera": {"mean": [0.0, 0.0, -2.0]},
    "at the camera": {"mean": [0.0, 0.0, 0.0]},
    "nearer than the near plane": {"mean": [0.0, 0.0, 0.1999]},
    "far outside": {"mean": [1e6, 0.0, 2.0]},
    "mean not a number": {"mean": NAN},
    "mean infinite": {"mean": INF},
    "scale not a number": {"log_scale": NAN},
    "scale infinite": {"log_scale": INF},
    "scale beyond the number range": {"log_scale": 80.0},
    "quaternion not a number": {"quaternion": NAN},
    "opacity not a number": {"opacity": NAN},
    "colour not a number": {"sh_dc": NAN},
    "colour infinite": {"sh_dc": INF},
}


def view_with(parity, **groups):
    """A camera at the origin, a degenerate Gaussian (row 2) on its axis, and four ordinary ones around it."""
    camera = Camera(50, 40, 45.0, 45.0, 25.0, 20.0, torch.eye(4, dtype=torch.float64).numpy())
    view = parity.view(21, gaussians=5)
    view.parameters[:, layout.MEAN] = torch.tensor(
        [[-0.3, 0.1, 1.5], [0.4, 0.2, 3.0], [0.0, 0.0, 2.0], [0.1, -0.5, 2.5], [0.0, 0.3, 1.0]]
    )
    view.parameters[:, layout.LOG_SCALE] -= 1.0
    view.parameters[:, layout.OPACITY_LOGIT] = 0.5
    return replace(view, camera=camera).having(2, **groups)


def train_step(kernels, view, target):
    """Every operator in a row: splats, the pictures, the loss and both gradients."""
    workspace = Workspace()
    parameters = view.parameters.to(kernels.dtype)
    splats = project(kernels, parameters, view.ids, view.camera, 3, workspace)
    bins = bin_splats(kernels, splats, view.camera, workspace)
    raster = raster_forward(kernels, splats, bins, view.camera, workspace)
    loss = l1_ssim(kernels, raster.colour, target, workspace)
    by_splat = raster_backward(
        kernels,
        splats,
        bins,
        raster,
        view.camera,
        loss.gradient,
        workspace,
        grad_depth=torch.full(view.pixels, 1e-3, dtype=kernels.dtype),
    )
    by_row = project_backward(kernels, parameters, splats, view.camera, 3, by_splat, workspace)
    for tensor in (splats.records, raster.colour, raster.transmittance, raster.depth, loss.value, loss.gradient):
        assert torch.isfinite(tensor).all()
    assert torch.isfinite(by_splat).all()
    assert torch.isfinite(by_row).all()
    return splats, raster, by_row


def grey(view):
    return torch.full((*view.pixels, 3), 100, dtype=torch.uint8)


@pytest.mark.parametrize("groups", DRAWN.values(), ids=DRAWN.keys())
def test_it_is_drawn_and_differentiated_as_in_float64(parity, backend, groups):
    view, kernels = view_with(parity, **groups), parity.kernels(backend)
    splats, raster, gradient = train_step(kernels, view, grey(view))
    exact_splats, exact_raster, exact = train_step(parity.oracle(kernels), view, grey(view))
    assert splats.rows.tolist() == exact_splats.rows.tolist() == [0, 1, 2, 3, 4]
    # The scene is fixed, so no threshold is met by chance; 1e-4 is the accumulated float32 error of the whole step.
    parity.close(raster.colour, exact_raster.colour, 1e-4)
    parity.close(raster.transmittance, exact_raster.transmittance, 1e-4)
    parity.groups_close(gradient, exact, layout.PARAMETER_GROUPS, 2e-4)


@pytest.mark.parametrize("groups", CULLED.values(), ids=CULLED.keys())
def test_it_is_culled_and_leaves_no_trace(parity, backend, groups):
    view, kernels = view_with(parity, **groups), parity.kernels(backend)
    splats, raster, gradient = train_step(kernels, view, grey(view))
    colour = raster.colour.clone()
    gradient = gradient.clone()
    assert splats.rows.tolist() == [0, 1, 3, 4]
    _, without, expected = train_step(kernels, view.only([0, 1, 3, 4]), grey(view))
    assert torch.equal(colour, without.colour)
    parity.close(gradient, expected, 1e-6)


def test_a_zero_quaternion_is_the_identity_with_zero_gradient(parity, backend):
    kernels = parity.kernels(backend)
    zero = view_with(parity, quaternion=0.0)
    _, raster, gradient = train_step(kernels, zero, grey(zero))
    colour = raster.colour.clone()
    assert (gradient[2, layout.QUATERNION] == 0).all()
    _, identity, _ = train_step(kernels, view_with(parity, quaternion=[2.0, 0.0, 0.0, 0.0]), grey(zero))
    parity.close(colour, identity.colour, 1e-6)


def test_a_gaussian_on_the_near_plane_of_gsplat_is_behind_the_standard_one(parity, backend):
    view = view_with(parity, mean=[0.0, 0.0, 0.1])
    assert 2 in train_step(parity.kernels(backend, "gsplat153"), view, grey(view))[0].rows.tolist()
    assert 2 not in train_step(parity.kernels(backend), view, grey(view))[0].rows.tolist()


def test_a_gaussian_beyond_the_cameras_far_plane_is_culled(parity, backend):
    view = view_with(parity)
    near_sighted = replace(view, camera=replace(view.camera, far=2.25))
    splats, _, _ = train_step(parity.kernels(backend), near_sighted, grey(view))
    assert splats.rows.tolist() == [0, 2, 4]  # the others lie at 3.0 and 2.5


def test_a_view_of_nothing_trains_nothing(parity, backend):
    view, kernels = view_with(parity), parity.kernels(backend)
    for empty in (view.only([]), view.having(2, mean=[0.0, 0.0, -1.0]).only([2])):
        splats, raster, gradient = train_step(kernels, empty, grey(view))
        assert splats.count == 0
        assert (raster.transmittance == 1).all()
        assert gradient.shape == (0, layout.PARAMETERS)
