"""The compiled kernels against gsplat 1.5.3, an oracle that shares no line with ours, under `convention: gsplat153`.

Both compute in float32, gsplat with the compiler's fast mathematics: its exponential, division and roots are off by a
few units in the last place, which a conic of a thin Gaussian magnifies. Hence 1e-4 of the largest value for what is
projected and blended, 1e-3 for gradients, which sum hundreds of such terms.
What may differ by more is a decision: at alpha = 1/255, at the cap of alpha and at the stop one side blends a splat and
the other does not. Pixels where float64 sees a value within 1e-4 of such a threshold are left out of the comparison and
of the loss that gradients come from; a test bounds how many these are. Tiles do not matter: gsplat lists a splat in
more tiles than we do (a box of at most 3.33 sigma), but never blends it below 1/255.
"""

from __future__ import annotations

import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.autograd import render
from cuda_src.conventions import CONVENTIONS
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace

pytestmark = pytest.mark.gpu

FORWARD, GRADIENT = 1e-4, 1e-3
VIEWS = [(1, 203, 117, 3000), (2, 97, 61, 4000), (3, 16, 16, 2000), (4, 31, 240, 5000), (5, 1, 1, 500)]
"""Seed, width, height and Gaussians: sizes that are no multiple of a tile, one that is, and a single pixel."""


@pytest.fixture
def gsplat():
    return pytest.importorskip("gsplat")


@pytest.fixture
def kernels(device) -> KernelSet:
    return KernelSet("compiled", device, CONVENTIONS["gsplat153"])


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[1]}x{view[2]}")
def view(request, parity):
    seed, width, height, count = request.param
    return parity.view(seed, gaussians=count, width=width, height=height, sizes=(0.7, 20.0))


def lens(camera, device) -> dict[str, torch.Tensor]:
    intrinsics = [[camera.fx, 0.0, camera.cx], [0.0, camera.fy, camera.cy], [0.0, 0.0, 1.0]]
    pose = torch.tensor(camera.world_to_camera, dtype=torch.float32, device=device)
    return {"viewmats": pose[None], "Ks": torch.tensor(intrinsics, device=device)[None]}


def rasterized(gsplat, parameters: torch.Tensor, camera, sh_degree: int = 3, **settings):
    """gsplat's image, alpha and meta of a table of parameters [N, 59], differentiable by it."""
    return gsplat.rasterization(
        means=parameters[:, layout.MEAN],
        quats=parameters[:, layout.QUATERNION],
        scales=parameters[:, layout.LOG_SCALE].exp(),
        opacities=parameters[:, layout.OPACITY_LOGIT].sigmoid(),
        colors=parameters[:, layout.SH].reshape(-1, layout.SH_COEFFICIENTS, 3),
        **lens(camera, parameters.device),
        width=camera.width,
        height=camera.height,
        near_plane=CONVENTIONS["gsplat153"].near,
        sh_degree=sh_degree,
        **{"packed": False, **settings},
    )


def undecided(parity, kernels, view) -> torch.Tensor:
    """[H, W] bool: pixels at which float32 may decide otherwise than float64."""
    exact = parity.oracle(KernelSet("reference", convention=kernels.convention))
    splats = op.project(exact, view.parameters.double(), view.ids, view.camera, 3, Workspace())
    bins = op.bin_splats(exact, splats, view.camera, Workspace())
    return ~parity.clear_pixels(exact, splats, bins, view.camera)


def test_what_is_projected_is_what_gsplat_projects(parity, gsplat, kernels, device, view):
    parameters, camera = view.parameters.to(device), view.camera
    _, _, meta = rasterized(gsplat, parameters, camera)
    splats = op.project(kernels, parameters, view.ids.to(device), camera, 3, Workspace(device))
    theirs = (meta["radii"][0] > 0).all(dim=1)
    clear = parity.clear_rows(KernelSet("reference", convention=kernels.convention), view, 3).to(device)
    # Their box around a splat reaches further than its ellipse: they see all that we see.
    assert theirs[splats.rows[clear[splats.rows]]].all()
    splats = Splats(*(t[theirs[splats.rows]] for t in (splats.rows, splats.ids, splats.records)))
    rows, records = splats.rows, splats.records
    assert len(rows) > 10 or camera.tiles == 1
    parity.close(records[:, layout.RECORD_MEAN2D], meta["means2d"][0][rows], FORWARD, "means")
    parity.close(records[:, layout.RECORD_CONIC], meta["conics"][0][rows], FORWARD, "conics")
    parity.close(records[:, layout.RECORD_DEPTH], meta["depths"][0][rows], FORWARD, "depths")
    parity.close(records[:, layout.RECORD_OPACITY], meta["opacities"][0][rows], FORWARD, "opacities")
    centre = torch.tensor(camera.centre, dtype=torch.float32, device=device)
    coefficients = parameters[:, layout.SH].reshape(-1, layout.SH_COEFFICIENTS, 3)
    colour = gsplat.spherical_harmonics(3, parameters[:, layout.MEAN] - centre, coefficients.contiguous())
    parity.close(records[:, layout.RECORD_COLOUR], (colour[rows] + 0.5).clamp(min=0), FORWARD, "colours")


@pytest.mark.parametrize("packed", [False, True])
def test_image_and_alpha_are_those_of_gsplat(parity, gsplat, kernels, device, view, packed):
    parameters, camera = view.parameters.to(device), view.camera
    image, alpha, _ = rasterized(gsplat, parameters, camera, packed=packed)
    splats = op.project(kernels, parameters, view.ids.to(device), camera, 3, Workspace(device))
    bins = op.bin_splats(kernels, splats, camera, Workspace(device))
    raster = op.raster_forward(kernels, splats, bins, camera, Workspace(device))
    unclear = undecided(parity, kernels, view).to(device)
    assert unclear.float().mean() < 0.1
    # A splat at the threshold is worth 1/255 of its colour, and several may lie there at one pixel.
    largest = max([1.0, *splats.records[:, layout.RECORD_COLOUR].flatten().tolist()])
    assert ((raster.colour - image[0])[unclear].abs() < 3 / 255 * largest).all()
    parity.close(raster.colour[~unclear], image[0][~unclear], FORWARD, "image")
    parity.close(1 - raster.transmittance[~unclear], alpha[0, ..., 0][~unclear], FORWARD, "alpha")


@pytest.mark.parametrize("sh_degree", [0, 3])
@pytest.mark.parametrize("background", [None, (0.9, 0.5, 0.1)])
def test_gradients_of_all_parameters_are_those_of_gsplat(parity, gsplat, kernels, device, view, sh_degree, background):
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(*view.pixels, 3, generator=generator)
    upstream[undecided(parity, kernels, view)] = 0
    colour = None if background is None else torch.tensor(background, device=device)
    ours, theirs = (view.parameters.to(device).requires_grad_() for _ in range(2))
    image = render(kernels, ours, view.camera, sh_degree, colour)
    (image * upstream.to(device)).sum().backward()
    behind = None if colour is None else colour[None]
    expected, _, _ = rasterized(gsplat, theirs, view.camera, sh_degree, backgrounds=behind)
    (expected[0] * upstream.to(device)).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    for name, columns in layout.PARAMETER_GROUPS.items():
        if name != "sh_rest" or sh_degree:
            assert theirs.grad[:, columns].abs().max() > 0, name
    parity.groups_close(ours.grad, theirs.grad, layout.PARAMETER_GROUPS, GRADIENT)


def test_the_sparse_adam_of_gsplat_is_ours_without_bias_correction(parity, gsplat, kernels, device):
    """With the rate and epsilon that the row `gsplat` gives it, it is `adam_rows` on the same rows."""
    generator = torch.Generator().manual_seed(2)
    count, images_seen, rate, epsilon = 500, 7, 1e-2, 1e-8
    table = torch.randn(count, layout.PARAMETERS, generator=generator).to(device)
    gradient = torch.randn(count, layout.PARAMETERS, generator=generator).to(device)
    moments = torch.zeros_like(table), torch.zeros_like(table)
    rows = (torch.rand(count, generator=generator) < 0.3).to(device)
    theirs = table.clone().requires_grad_()
    correction1, correction2 = 1 - 0.9**images_seen, (1 - 0.999**images_seen) ** 0.5
    adam = gsplat.SelectiveAdam([{"params": theirs}], eps=epsilon * correction2, betas=(0.9, 0.999))
    adam.param_groups[0]["lr"] = rate * correction2 / correction1
    theirs.grad = gradient.clone()
    adam.step(rows)
    chosen = rows.nonzero()[:, 0]
    ones = torch.ones_like(chosen, dtype=torch.int32)
    rates = torch.full((layout.PARAMETERS,), rate, device=device)
    op.adam_rows(kernels, table, *moments, chosen, gradient[chosen], ones, rates, images_seen, epsilon=epsilon)
    parity.close(theirs.detach(), table, 1e-6)
