"""The oracle itself, against independent computations: loops, matrices, scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.signal
import torch

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.operators import Splats, bin_splats, l1_ssim, project, raster_forward
from cuda_src.reference.projection import sh_basis
from cuda_src.workspace import Workspace


@pytest.fixture
def kernels64(parity):
    return parity.oracle(parity.kernels("reference"))


def composited_by_a_loop(records, convention, stop, x, y):
    """Kerbl et al. 2023, eq. 3, one pixel, plain floats; records in front-to-back order."""
    light, colour, depth, last, stopped = 1.0, [0.0, 0.0, 0.0], 0.0, 0, 0
    for index, (mx, my, a, b, c, opacity, red, green, blue, z, _) in enumerate(records, start=1):
        dx, dy = x - mx, y - my
        sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
        alpha = min(convention.alpha_max, opacity * math.exp(-sigma))
        if sigma < 0 or alpha < convention.alpha_min:
            continue
        after = light * (1 - alpha)
        if after < stop or (convention.stop_inclusive and after == stop):
            stopped = 1
            break
        colour = [old + light * alpha * new for old, new in zip(colour, (red, green, blue), strict=True)]
        depth += light * alpha * z
        light, last = after, index
    return colour, light, depth, last, stopped


@pytest.mark.parametrize("convention", ["standard", "gsplat153"])
def test_compositing_four_splats_equals_a_scalar_loop(parity, convention):
    kernels = parity.oracle(parity.kernels("reference", convention, t_stop=0.02))
    camera = Camera(21, 19, 20.0, 20.0, 10.0, 9.0, np.eye(4))
    records = torch.tensor(
        [  # mean, conic, opacity, colour, depth, radius
            [8.3, 9.1, 0.05, 0.01, 0.08, 0.95, 0.9, 0.1, 0.2, 4.0, 20.0],
            [12.2, 6.7, 0.30, -0.1, 0.20, 1.00, 0.1, 0.8, 0.3, 1.0, 20.0],
            [10.0, 10.0, 0.02, 0.0, 0.01, 0.99, 0.3, 0.2, 0.7, 3.0, 30.0],
            [15.5, 14.5, 1.00, 0.5, 0.90, 0.60, 0.5, 0.5, 0.5, 2.0, 5.0],
        ],
        dtype=torch.float64,
    )
    splats = Splats(torch.arange(4), torch.arange(4), records)
    bins = bin_splats(kernels, splats, camera, Workspace())
    raster = raster_forward(kernels, splats, bins, camera, Workspace())
    assert raster.stopped.any()
    assert not raster.stopped.all()
    for tile in range(camera.tiles):
        listed = records[bins.splat[bins.starts[tile] : bins.starts[tile + 1]].long()].tolist()
        top, left = tile // camera.tiles_x * TILE, tile % camera.tiles_x * TILE
        for y in range(top, min(top + TILE, camera.height)):
            for x in range(left, min(left + TILE, camera.width)):
                colour, light, depth, last, stopped = composited_by_a_loop(
                    listed, kernels.convention, kernels.stop, x + 0.5, y + 0.5
                )
                assert raster.colour[y, x].tolist() == pytest.approx(colour, abs=1e-12)
                assert raster.transmittance[y, x].item() == pytest.approx(light, abs=1e-12)
                assert raster.depth[y, x].item() == pytest.approx(depth, abs=1e-12)
                assert (raster.last[y, x].item(), raster.stopped[y, x].item()) == (last, stopped)


def test_ssim_and_l1_equal_scipys_convolutions(parity, kernels64):
    rng = np.random.default_rng(0)
    image, target = rng.random((23, 31, 3)), rng.integers(0, 256, (23, 31, 3), dtype=np.uint8)
    loss = l1_ssim(kernels64, torch.from_numpy(image), torch.from_numpy(target), Workspace())
    y, x = np.mgrid[-5:6, -5:6]
    window = np.exp(-(x**2 + y**2) / (2 * 1.5**2))
    window /= window.sum()
    truth = target / 255
    channels = []
    for c in range(3):
        p, q = image[..., c], truth[..., c]
        mp, mq, pp, qq, pq = (
            scipy.signal.convolve2d(plane, window, mode="same") for plane in (p, q, p * p, q * q, p * q)
        )
        channels.append(
            (2 * mp * mq + 1e-4) * (2 * (pq - mp * mq) + 9e-4)
            / ((mp**2 + mq**2 + 1e-4) * (pp - mp**2 + qq - mq**2 + 9e-4))
        )  # fmt: skip
    ssim, l1 = np.mean(channels), np.abs(image - truth).mean()
    assert loss.ssim.item() == pytest.approx(ssim, rel=1e-10)
    assert loss.l1.item() == pytest.approx(l1, rel=1e-10)
    assert loss.value.item() == pytest.approx(0.8 * l1 + 0.2 * (1 - ssim), rel=1e-10)


def test_spherical_harmonics_are_orthonormal_with_3dgs_signs():
    nodes, weights = np.polynomial.legendre.leggauss(8)
    angles = np.arange(16) * (2 * np.pi / 16)
    z, phi = (g.ravel() for g in np.meshgrid(nodes, angles, indexing="ij"))
    ring = np.sqrt(1 - z**2)
    directions = torch.tensor(np.stack([ring * np.cos(phi), ring * np.sin(phi), z], axis=1))
    basis = sh_basis(directions, 3)
    weight = torch.tensor(np.repeat(weights, 16) * (2 * np.pi / 16))
    assert torch.allclose(basis.T @ (weight[:, None] * basis), torch.eye(16, dtype=torch.float64), atol=1e-12)
    # Signs where x, y and z are positive: the Condon-Shortley phase, as trained files hold it.
    signs = torch.sign(sh_basis(torch.tensor([[0.6, 0.3, 0.2]], dtype=torch.float64), 3)[0]).tolist()
    assert signs[:9] == [1, -1, 1, -1, 1, -1, -1, -1, 1]
    # Order by degree: each polynomial of odd degree is odd.
    odd = [-1 if degree % 2 else 1 for degree in (0, *[1] * 3, *[2] * 5, *[3] * 7)]
    assert torch.allclose(sh_basis(-directions, 3), basis * torch.tensor(odd))


def test_projection_equals_the_covariance_under_a_numerical_jacobian(parity, kernels64):
    view = parity.view(31, gaussians=60)
    camera, parameters = view.camera, view.parameters.double().numpy()

    def pinhole(point):
        seen = camera.world_to_camera[:3, :3] @ point + camera.world_to_camera[:3, 3]
        return np.array([camera.fx * seen[0] / seen[2] + camera.cx, camera.fy * seen[1] / seen[2] + camera.cy]), seen[2]

    splats = project(kernels64, view.parameters.double(), view.ids, camera, 3, Workspace())
    checked = 0
    for row, record in zip(splats.rows.tolist(), splats.records.numpy(), strict=True):
        mean = parameters[row, layout.MEAN]
        pixel, depth = pinhole(mean)
        assert record[:2] == pytest.approx(pixel)
        assert record[layout.RECORD_DEPTH] == pytest.approx(depth)
        w, *v = parameters[row, layout.QUATERNION] / np.linalg.norm(parameters[row, layout.QUATERNION])
        cross = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
        rotation = np.eye(3) + 2 * w * cross + 2 * cross @ cross  # Rodrigues' formula for a unit quaternion
        covariance = rotation @ np.diag(np.exp(2 * parameters[row, layout.LOG_SCALE])) @ rotation.T
        if not ((pixel >= 0) & (pixel <= (camera.width, camera.height))).all():
            continue  # its Jacobian may be clamped
        step = 1e-6
        jacobian = np.stack(
            [(pinhole(mean + step * e)[0] - pinhole(mean - step * e)[0]) / (2 * step) for e in np.eye(3)], axis=1
        )
        shape = jacobian @ covariance @ jacobian.T + 0.3 * np.eye(2)
        xx, xy, yy = record[layout.RECORD_CONIC]
        assert np.array([[xx, xy], [xy, yy]]) == pytest.approx(np.linalg.inv(shape), rel=1e-5)
        assert record[layout.RECORD_RADIUS] == math.ceil(3 * math.sqrt(np.linalg.eigvalsh(shape)[-1]))
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("side", [-1, 1])
def test_far_outside_the_view_the_jacobian_stays_that_of_the_border(parity, kernels64, axis, side):
    """Beyond 0.3 tan(fov / 2) outside the image a mean that moves on sideways keeps its shape."""
    camera = Camera(50, 40, 45.0, 60.0, 20.0, 25.0, np.eye(4))
    view = parity.view(1, gaussians=2)
    view.parameters[:, layout.MEAN] = torch.tensor([0.0, 0.0, 2.0])
    view.parameters[:, axis] = side * torch.tensor([4.0, 5.0])
    view.parameters[:, layout.LOG_SCALE] = 1.5
    view.parameters[:, layout.OPACITY_LOGIT] = 3.0
    splats = project(kernels64, view.parameters.double(), view.ids, camera, 0, Workspace())
    assert splats.rows.tolist() == [0, 1]
    focal, principal = ((45.0, 20.0), (60.0, 25.0))[axis]
    size = (50, 40)[axis]
    border = (size - principal) / focal if side > 0 else -principal / focal
    ratio = border + side * 0.3 * 0.5 * size / focal
    jacobian = np.array([[22.5, 0, 0], [0, 30.0, 0]])
    jacobian[axis, 2] = -focal / 2 * ratio
    conic = np.linalg.inv(math.exp(1.5) ** 2 * jacobian @ jacobian.T + 0.3 * np.eye(2))
    for record in splats.records:
        assert record[layout.RECORD_CONIC].tolist() == pytest.approx(conic[[0, 0, 1], [0, 1, 1]], abs=1e-12)


def test_colour_is_the_harmonic_sum_plus_a_half_and_never_negative(parity, kernels64):
    view = parity.view(32, gaussians=40)
    parameters = view.parameters.double()
    splats = project(kernels64, parameters, view.ids, view.camera, 1, Workspace())
    offset = parameters[splats.rows, layout.MEAN].numpy() - view.camera.centre
    x, y, z = (offset / np.linalg.norm(offset, axis=1, keepdims=True)).T
    sh = parameters[splats.rows, layout.SH].numpy().reshape(-1, 16, 3)
    ring = math.sqrt(3 / (4 * math.pi))
    linear = -y[:, None] * sh[:, 1] + z[:, None] * sh[:, 2] - x[:, None] * sh[:, 3]
    expected = 0.5 + math.sqrt(1 / (4 * math.pi)) * sh[:, 0] + ring * linear
    assert (expected < 0).any()
    assert splats.records[:, layout.RECORD_COLOUR].numpy() == pytest.approx(np.maximum(0, expected))


def test_an_ellipse_lists_every_tile_with_a_visible_pixel_and_no_tile_beyond_its_level_set(parity, kernels64):
    view = parity.view(33, gaussians=80, width=90, height=70)
    view.parameters[:, layout.LOG_SCALE.start] += 1.5  # needles, most of them tilted
    camera = view.camera
    splats = project(kernels64, view.parameters.double(), view.ids, camera, 0, Workspace())
    bins = bin_splats(kernels64, splats, camera, Workspace())
    steps = torch.linspace(0, 1, 151, dtype=torch.float64)  # every tenth of a pixel, and all pixel centres
    for tile in range(camera.tiles):
        listed = set(bins.splat[bins.starts[tile] : bins.starts[tile + 1]].tolist())
        left, top = tile % camera.tiles_x * TILE + 0.5, tile // camera.tiles_x * TILE + 0.5
        right, bottom = min(left + 15, camera.width - 0.5), min(top + 15, camera.height - 0.5)
        x, y = left + (right - left) * steps, top + (bottom - top) * steps
        for index, (mx, my, a, b, c, opacity, *_) in enumerate(splats.records.tolist()):
            dx, dy = (x - mx)[None, :], (y - my)[:, None]
            alpha = opacity * torch.exp(-0.5 * (a * dx**2 + c * dy**2) - b * dx * dy)
            level = kernels64.convention.alpha_min
            if index in listed:
                assert alpha.max() > 0.7 * level  # half a step of the grid beside the ridge of the thinnest needle
            else:
                assert alpha.max() < level


def test_a_square_lists_the_tiles_whose_pixel_centres_it_reaches(parity):
    kernels = parity.oracle(parity.kernels("reference", footprint="square"))
    view = parity.view(34, gaussians=80, width=90, height=70)
    camera = view.camera
    splats = project(kernels, view.parameters.double(), view.ids, camera, 0, Workspace())
    bins = bin_splats(kernels, splats, camera, Workspace())
    for tile in range(camera.tiles):
        left, top = tile % camera.tiles_x * TILE + 0.5, tile // camera.tiles_x * TILE + 0.5
        right, bottom = min(left + 15, camera.width - 0.5), min(top + 15, camera.height - 0.5)
        expected = {
            index
            for index, (x, y, *_, radius) in enumerate(splats.records.tolist())
            if left - radius <= x <= right + radius and top - radius <= y <= bottom + radius
        }
        assert set(bins.splat[bins.starts[tile] : bins.starts[tile + 1]].tolist()) == expected
