"""The autograd wrappers: a user's own model trains through them with any back end."""

from __future__ import annotations

import pytest
import torch

from cuda_src import layout
from cuda_src.autograd import l1_ssim_loss, render
from cuda_src.operators import bin_splats, project
from cuda_src.reference.projection import splat_records
from cuda_src.reference.raster import composite
from cuda_src.workspace import Workspace


@pytest.mark.parametrize("background", [None, "colour", "picture"])
def test_render_and_its_gradient_equal_autograd_through_the_reference(parity, backend, background):
    view, kernels = parity.view(51), parity.kernels(backend)
    oracle, generator = parity.oracle(kernels), torch.Generator().manual_seed(0)
    behind = {
        None: None,
        "colour": torch.tensor([0.9, 0.5, 0.1]),
        "picture": torch.rand(*view.pixels, 3, generator=generator),
    }[background]
    upstream = torch.randn(*view.pixels, 3, generator=generator)
    parameters = view.parameters.clone().requires_grad_()
    image = render(kernels, parameters, view.camera, 3, behind)
    (image * upstream).sum().backward()

    exact = view.parameters.double().requires_grad_()
    splats = project(oracle, exact.detach(), view.ids, view.camera, 3, Workspace())
    bins = bin_splats(oracle, splats, view.camera, Workspace())
    records = splat_records(exact[splats.rows], view.camera, 3, oracle.convention)
    raster = composite(oracle, records, bins, view.camera)
    expected = raster.colour
    if behind is not None:
        expected = expected + raster.transmittance[..., None] * behind.double()
    (expected * upstream).sum().backward()
    assert parameters.grad is not None
    assert exact.grad is not None
    parity.close(image, expected, 1e-4)
    parity.groups_close(parameters.grad, exact.grad, layout.PARAMETER_GROUPS, 1e-3)


def test_two_renders_may_wait_for_one_backward(parity, backend):
    """Each keeps its own intermediate results."""
    kernels, first, second = parity.kernels(backend), parity.view(52), parity.view(53)
    parameters = first.parameters.clone().requires_grad_()
    alone = []
    for camera in (first.camera, second.camera):
        (gradient,) = torch.autograd.grad(render(kernels, parameters, camera).square().sum(), parameters)
        alone.append(gradient)
    both = render(kernels, parameters, first.camera).square().sum()
    both = both + render(kernels, parameters, second.camera).square().sum()
    (gradient,) = torch.autograd.grad(both, parameters)
    parity.close(gradient, alone[0] + alone[1], 1e-5)


def test_gaussians_out_of_sight_get_zero_gradient(parity, backend):
    view = parity.view(54)
    behind = view.having(0, mean=(view.camera.centre - view.camera.world_to_camera[2, :3]).tolist())
    parameters = behind.parameters.clone().requires_grad_()
    render(parity.kernels(backend), parameters, behind.camera).sum().backward()
    assert parameters.grad is not None
    assert (parameters.grad[0] == 0).all()
    assert (parameters.grad != 0).any()


def test_descent_through_the_wrappers_lowers_the_loss(parity, backend):
    view, kernels = parity.view(55), parity.kernels(backend)
    with torch.no_grad():
        truth = render(kernels, view.parameters, view.camera)
    target = (truth.clamp(0, 1) * 255).round().to(torch.uint8)
    parameters = view.parameters + 0.05 * torch.randn(view.parameters.shape, generator=torch.Generator().manual_seed(1))
    parameters.requires_grad_()
    optimizer = torch.optim.Adam([parameters], lr=3e-3)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = l1_ssim_loss(kernels, render(kernels, parameters, view.camera), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_the_loss_scales_its_gradient_by_what_comes_from_above(parity, backend):
    kernels = parity.kernels(backend)
    generator = torch.Generator().manual_seed(2)
    target = torch.randint(0, 256, (20, 24, 3), dtype=torch.uint8, generator=generator)
    mask = torch.randint(0, 2, (20, 24), dtype=torch.uint8, generator=generator) * 255
    image = torch.rand(20, 24, 3, generator=generator, requires_grad=True)
    (once,) = torch.autograd.grad(l1_ssim_loss(kernels, image, target, mask), image)
    (thrice,) = torch.autograd.grad(3 * l1_ssim_loss(kernels, image, target, mask), image)
    assert torch.allclose(thrice, 3 * once)
    assert (once[mask == 0] == 0).all()
