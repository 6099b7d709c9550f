"""Gradients of the oracle against finite differences in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuda_src import layout
from cuda_src.conventions import CONVENTIONS
from cuda_src.operators import bin_splats, l1_ssim, project, project_backward, raster_backward
from cuda_src.reference.projection import rotation_matrices, splat_records
from cuda_src.reference.raster import composite
from cuda_src.workspace import Workspace


@pytest.fixture
def kernels64(parity):
    return parity.oracle(parity.kernels("reference"))


@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_projection_gradients_equal_finite_differences(parity, kernels64, sh_degree):
    view = parity.view(41, gaussians=6)
    splats = project(kernels64, view.parameters.double(), view.ids, view.camera, sh_degree, Workspace())
    parameters = view.parameters.double()[splats.rows].requires_grad_()

    def records(rows):
        return splat_records(rows, view.camera, sh_degree, kernels64.convention)[:, : layout.GRADIENT]

    assert splats.count >= 3
    assert torch.autograd.gradcheck(records, parameters, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


def test_rotations_have_finite_gradients_at_and_near_a_zero_quaternion():
    quaternions = torch.tensor([[0.0] * 4, [1e-8, 0, 0, 0], [1.0, 2, 3, 4]], dtype=torch.float64, requires_grad=True)
    matrices = rotation_matrices(quaternions)
    assert torch.equal(matrices[0], torch.eye(3, dtype=torch.float64))
    assert torch.allclose(matrices[2] @ matrices[2].T, torch.eye(3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(matrices.sum(), quaternions)
    assert torch.isfinite(gradient).all()
    assert (gradient[0] == 0).all()


@pytest.mark.parametrize("convention", ["standard", "gsplat153"])
def test_compositing_gradients_equal_finite_differences(parity, convention):
    """For colour, transmittance and depth at once, capped alphas and stopped pixels included."""
    kernels = parity.oracle(parity.kernels("reference", convention, t_stop=0.1))
    view = parity.view(42, gaussians=14, width=18, height=5)
    view.parameters[:, layout.OPACITY_LOGIT] += 1.0
    splats = project(kernels, view.parameters.double(), view.ids, view.camera, 1, Workspace())
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    start = torch.rand(view.pixels, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.5

    def images(records):
        raster = composite(kernels, records, bins, view.camera, start)
        return raster.colour, raster.transmittance, raster.depth

    assert composite(kernels, splats.records, bins, view.camera, start).stopped.any()
    records = splats.records.clone().requires_grad_()
    assert torch.autograd.gradcheck(images, records, eps=1e-7, atol=1e-5, rtol=1e-4, fast_mode=True)


def test_raster_backward_is_the_gradient_of_colour_plus_what_shows_of_the_background(parity, kernels64):
    view = parity.view(43, gaussians=20, width=20, height=20)
    splats = project(kernels64, view.parameters.double(), view.ids, view.camera, 1, Workspace())
    bins = bin_splats(kernels64, splats, view.camera, Workspace())
    generator = torch.Generator().manual_seed(1)
    background = torch.rand(*view.pixels, 3, dtype=torch.float64, generator=generator)
    upstream = torch.randn(*view.pixels, 3, dtype=torch.float64, generator=generator)
    upstream_t, upstream_d = torch.randn(2, *view.pixels, dtype=torch.float64, generator=generator)
    records = splats.records.clone().requires_grad_()
    raster = composite(kernels64, records, bins, view.camera)
    image = raster.colour + raster.transmittance[..., None] * background
    total = (image * upstream).sum() + (raster.transmittance * upstream_t).sum() + (raster.depth * upstream_d).sum()
    (expected,) = torch.autograd.grad(total, records)
    actual = raster_backward(
        kernels64, splats, bins, raster, view.camera, upstream, Workspace(), background, upstream_t, upstream_d
    )
    assert torch.allclose(actual, expected[:, : layout.GRADIENT], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tiles", [None, [1, 2]])
@pytest.mark.parametrize("halo", ["exact", "none"])
def test_loss_gradients_equal_finite_differences(kernels64, tiles, halo):
    generator = torch.Generator().manual_seed(2)
    image = torch.rand(20, 36, 3, dtype=torch.float64, generator=generator)
    target = torch.randint(0, 256, (20, 36, 3), dtype=torch.uint8, generator=generator)
    listed = None if tiles is None else torch.tensor(tiles, dtype=torch.int32)
    gradient = l1_ssim(kernels64, image, target, Workspace(), tiles=listed, halo=halo).gradient
    inside = torch.ones(20, 36, dtype=torch.bool)
    if tiles is not None:
        inside[:] = False
        inside[:16, 16:] = True
    assert (gradient[~inside] == 0).all()
    # The exact gradient is that of the whole image's loss; without a halo, of the listed pixels' alone.
    scope = listed if halo == "none" else None
    for y, x, c in [(0, 16, 0), (15, 16, 1), (15, 35, 2), (8, 20, 0), (3, 30, 1)]:
        values = []
        for step in (1e-6, -1e-6):
            moved = image.clone()
            moved[y, x, c] += step
            values.append(l1_ssim(kernels64, moved, target, Workspace(), tiles=scope, halo=halo).value.item())
        assert gradient[y, x, c].item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-9)


def test_a_masks_gradient_is_the_masked_losss_times_the_mask(kernels64):
    generator = torch.Generator().manual_seed(3)
    image = torch.rand(20, 20, 3, dtype=torch.float64, generator=generator)
    target = torch.randint(0, 256, (20, 20, 3), dtype=torch.uint8, generator=generator)
    mask = torch.randint(0, 256, (20, 20), dtype=torch.uint8, generator=generator)
    gradient = l1_ssim(kernels64, image, target, Workspace(), mask=mask).gradient
    for y, x, c in [(0, 0, 0), (10, 10, 1), (19, 5, 2)]:
        values = []
        for step in (1e-6, -1e-6):
            moved = image.clone()
            moved[y, x, c] += step
            values.append(l1_ssim(kernels64, moved, target, Workspace(), mask=mask).value.item())
        expected = (values[0] - values[1]) / 2e-6 * mask[y, x].item() / 255
        assert gradient[y, x, c].item() == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_gradients_of_the_whole_step_equal_finite_differences(parity, kernels64):
    """Smooth throughout: no alpha is skipped or capped and nothing stops, so the composed gradient must fit."""
    smooth = replace(CONVENTIONS["standard"], name="smooth", alpha_min=1e-12, alpha_max=1.0 - 1e-9)
    kernels = replace(kernels64, convention=smooth, t_stop=0.0)
    view = parity.view(44, gaussians=4, width=12, height=10)
    target = torch.randint(0, 256, (*view.pixels, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    parameters = view.parameters.double()

    def forward(values: torch.Tensor):
        splats = project(kernels, values, view.ids, view.camera, 2, Workspace())
        bins = bin_splats(kernels, splats, view.camera, Workspace())
        raster = composite(kernels, splats.records, bins, view.camera)
        return splats, bins, raster, l1_ssim(kernels, raster.colour, target, Workspace())

    splats, bins, raster, loss = forward(parameters)
    by_splat = raster_backward(kernels, splats, bins, raster, view.camera, loss.gradient, Workspace())
    gradient = project_backward(kernels, parameters, splats, view.camera, 2, by_splat, Workspace())
    for index, row in enumerate(splats.rows.tolist()):
        for column in (0, 1, 2, 3, 5, 6, 9, layout.OPACITY_LOGIT, 11, 17, 30):
            values = []
            for step in (1e-6, -1e-6):
                moved = parameters.clone()
                moved[row, column] += step
                values.append(forward(moved)[3].value.item())
            expected = (values[0] - values[1]) / 2e-6
            assert gradient[index, column].item() == pytest.approx(expected, rel=1e-3, abs=1e-8)
