"""l1_ssim of every back end against `reference` in float64, on images, regions and masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.camera import TILE
from cuda_src.operators import Loss, l1_ssim
from cuda_src.workspace import Workspace

PARTITION = ([0, 3, 4], [1, 2, 5, 6, 7], [8, 9, 10, 11])
"""The 12 tiles of a 50 x 40 image, in three regions that are not rectangles."""


def pictures(seed: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image, target and mask. No image value equals its target's: the sign of their difference is certain."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    near = target.float() + torch.randint(-30, 30, target.shape, generator=generator)
    image = (near + 0.3 + 0.4 * torch.rand(target.shape, generator=generator)) / 255
    mask = torch.randint(0, 256, (height, width), generator=generator, dtype=torch.uint8)
    mask[torch.rand(height, width, generator=generator) < 0.5] = 255
    mask[: height // 3, : width // 2] = 0
    return image, target, mask


def tile_list(tiles: list[int] | None) -> torch.Tensor | None:
    return None if tiles is None else torch.tensor(tiles, dtype=torch.int32)


def copied(loss: Loss) -> Loss:
    return Loss(loss.value.clone(), loss.l1.clone(), loss.ssim.clone(), loss.gradient.clone())


def loss_and_oracle(parity, backend, image, target, **settings) -> tuple[Loss, Loss]:
    kernels = parity.kernels(backend)
    ours = l1_ssim(kernels, image, target, Workspace(), **settings)
    return ours, l1_ssim(parity.oracle(kernels), image.double(), target, Workspace(), **settings)


def assert_losses_agree(parity, ours: Loss, exact: Loss):
    for name in ("value", "l1", "ssim"):
        actual, expected = getattr(ours, name), getattr(exact, name)
        assert actual.shape == ()
        # A share of the image's mean: absolute, since regions of little weight add little. SSIM's variances are
        # differences of float32 second moments, so one pixel's SSIM is off by up to 1e-7 / C2 = 1e-4.
        assert abs(actual.item() - expected.item()) <= 1e-5 + 1e-4 / exact.gradient[..., 0].numel(), name
    assert torch.isfinite(ours.gradient).all()
    # The gradient of a lone pixel's SSIM is what is left of terms that cancel, each off by that 1e-4.
    floor = 1e-4 if exact.gradient[..., 0].numel() == 1 else 0.0
    bound = 1e-4 * exact.gradient.abs().amax() + floor
    assert (ours.gradient - exact.gradient).abs().amax() <= bound


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (17, 33), (50, 40)])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31), weight=st.sampled_from([0.0, 0.2, 1.0]))
def test_loss_and_gradient_agree_with_float64(parity, backend, width, height, masked, seed, weight):
    image, target, mask = pictures(seed, height, width)
    settings = {"mask": mask if masked else None, "ssim_weight": weight}
    assert_losses_agree(parity, *loss_and_oracle(parity, backend, image, target, **settings))


@pytest.mark.parametrize("halo", ["exact", "none"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tiles", [[], [5], [0, 11], *PARTITION])
def test_loss_and_gradient_of_a_region_agree_with_float64(parity, backend, halo, masked, tiles):
    image, target, mask = pictures(3, 40, 50)
    settings = {"mask": mask if masked else None, "tiles": tile_list(tiles), "halo": halo}
    assert_losses_agree(parity, *loss_and_oracle(parity, backend, image, target, **settings))


@pytest.mark.parametrize("backend", [pytest.param("compiled", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("listed", [None, 0.3])
def test_strips_of_many_rows_agree_with_float64(parity, backend, masked, listed):
    """An image of more strips than a GPU has at once, so that they are not of the least height."""
    height, width = 451, 1003
    image, target, mask = pictures(9, height, width)
    all_tiles = -(-height // TILE) * -(-width // TILE)
    chosen = torch.rand(all_tiles, generator=torch.Generator().manual_seed(9)) < (listed or 1.0)
    tiles = None if listed is None else chosen.nonzero()[:, 0].to(torch.int32)
    settings = {"mask": mask if masked else None, "tiles": tiles}
    assert_losses_agree(parity, *loss_and_oracle(parity, backend, image, target, **settings))


@pytest.mark.parametrize("masked", [False, True])
def test_regions_that_share_out_the_image_add_up_to_its_loss_and_gradient(parity, backend, masked):
    image, target, mask = pictures(4, 40, 50)
    kernels = parity.kernels(backend)
    settings = {"mask": mask if masked else None}
    whole = l1_ssim(kernels, image, target, Workspace(), **settings)
    parts = [l1_ssim(kernels, image, target, Workspace(), tiles=tile_list(t), **settings) for t in PARTITION]
    for name in ("value", "l1", "ssim"):
        assert sum(getattr(p, name).item() for p in parts) == pytest.approx(getattr(whole, name).item(), rel=1e-5)
    parity.close(sum(p.gradient for p in parts), whole.gradient, 1e-5)


def test_an_exact_halo_looks_at_ten_pixels_around_the_region_and_no_further(parity, backend):
    image, target, _ = pictures(5, 48, 80)
    kernels, tiles = parity.kernels(backend), tile_list([7])  # rows 16-31, columns 32-47
    known = torch.zeros(48, 80, dtype=torch.bool)
    known[16 - 10 : 32 + 10, 32 - 10 : 48 + 10] = True
    whole = copied(l1_ssim(kernels, image, target, Workspace(), tiles=tiles))
    blank = torch.where(known[..., None], image, torch.full_like(image, float("nan")))
    partial = l1_ssim(kernels, blank, target, Workspace(), tiles=tiles)
    assert torch.equal(partial.gradient, whole.gradient)
    assert partial.value == whole.value
    changed = image.clone()
    changed[16 - 10, 40] += 0.5
    assert not torch.equal(l1_ssim(kernels, changed, target, Workspace(), tiles=tiles).gradient, whole.gradient)


def test_without_a_halo_a_region_equals_an_image_of_its_own(parity, backend):
    image, target, _ = pictures(6, 48, 80)
    kernels = parity.kernels(backend)
    cut = copied(l1_ssim(kernels, image, target, Workspace(), tiles=tile_list([7]), halo="none"))
    at = (slice(TILE, 2 * TILE), slice(2 * TILE, 3 * TILE))
    alone = l1_ssim(kernels, image[at].contiguous(), target[at].contiguous(), Workspace())
    share = TILE * TILE / (48 * 80)
    assert cut.value.item() == pytest.approx(alone.value.item() * share, rel=1e-5)
    parity.close(cut.gradient[at], alone.gradient * share, 1e-5)
    outside = cut.gradient.clone()
    outside[at] = 0
    assert (outside == 0).all()


def test_masked_pixels_count_nothing_and_get_no_gradient(parity, backend):
    image, target, mask = pictures(7, 40, 50)
    kernels = parity.kernels(backend)
    loss = copied(l1_ssim(kernels, image, target, Workspace(), mask=mask))
    assert (loss.gradient[mask == 0] == 0).all()
    assert (loss.gradient[mask == 255] != 0).all()
    nothing = l1_ssim(kernels, image, target, Workspace(), mask=torch.zeros_like(mask))
    assert nothing.value == 0
    assert (nothing.gradient == 0).all()


def test_equal_images_lose_nothing(parity, backend):
    _, target, _ = pictures(8, 40, 50)
    image = target.float() / 255
    loss = l1_ssim(parity.kernels(backend), image, target, Workspace())
    assert abs(loss.value.item()) <= 1e-6
    assert loss.ssim.item() == pytest.approx(1.0, abs=1e-5)
    assert torch.isfinite(loss.gradient).all()


@pytest.mark.parametrize("level", [0, 255])
def test_flat_images_have_finite_gradients(parity, backend, level):
    """Variances vanish: only the constants keep SSIM defined."""
    target = torch.full((20, 20, 3), level, dtype=torch.uint8)
    for value in (0.0, 1.0):
        ours, exact = loss_and_oracle(parity, backend, torch.full((20, 20, 3), value), target)
        assert torch.isfinite(ours.gradient).all()
        assert ours.value.item() == pytest.approx(exact.value.item(), abs=1e-5)
