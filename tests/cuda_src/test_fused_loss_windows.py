"""Windows of the loss that a fused raster can keep on chip: `tile` and `l1`, of every back end against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.operators import LossWindow, l1_ssim
from cuda_src.workspace import Workspace

SIZES = [(1, 1), (17, 33), (50, 40), (70, 64)]


def pictures(seed: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image, target and mask; no image value equals its target's, where L1 has no gradient."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    image = (target.float() + torch.randint(-30, 30, target.shape, generator=generator) + 0.5) / 255
    mask = torch.randint(0, 256, (height, width), generator=generator, dtype=torch.uint8)
    mask[: height // 3, : width // 2] = 0
    return image, target, mask


def losses(parity, backend, image, target, **arguments):
    kernels = parity.kernels(backend)
    ours = l1_ssim(kernels, image, target, Workspace(), **arguments)
    return ours, l1_ssim(parity.oracle(kernels), image.double(), target, Workspace(), **arguments)


def assert_agree(ours, exact):
    pixels = exact.gradient[..., 0].numel()
    for name in ("value", "l1", "ssim"):
        assert abs(getattr(ours, name).item() - getattr(exact, name).item()) <= 1e-5 + 1e-4 / pixels, name
    assert torch.isfinite(ours.gradient).all()
    bound = 1e-4 * exact.gradient.abs().amax() + 2e-5 / pixels
    assert (ours.gradient - exact.gradient).abs().amax() <= bound


@pytest.mark.parametrize(("width", "height"), SIZES)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    offset=st.tuples(st.integers(0, 31), st.integers(0, 31)),
    masked=st.booleans(),
    kind=st.sampled_from(["tile", "l1"]),
)
def test_loss_and_gradient_of_a_window_agree_with_float64(parity, backend, width, height, seed, offset, masked, kind):
    image, target, mask = pictures(seed, height, width)
    assert_agree(
        *losses(parity, backend, image, target, mask=mask if masked else None, window=LossWindow(kind, offset))
    )


@pytest.mark.parametrize("window", [LossWindow("tile", (7, 20)), LossWindow("l1")])
def test_regions_that_share_out_the_image_add_up_to_the_window_s_loss(parity, backend, window):
    image, target, mask = pictures(1, 40, 50)
    kernels = parity.kernels(backend)
    whole = l1_ssim(kernels, image, target, Workspace(), mask, window=window)
    parts = [
        l1_ssim(kernels, image, target, Workspace(), mask, torch.tensor(tiles, dtype=torch.int32), window=window)
        for tiles in ([0, 3, 4], [1, 2, 5, 6, 7, 8, 9, 10, 11], [])
    ]
    for name in ("value", "l1", "ssim"):
        assert sum(getattr(p, name).item() for p in parts) == pytest.approx(getattr(whole, name).item(), rel=1e-5)
    parity.close(sum(p.gradient for p in parts), whole.gradient, 1e-5)


def test_a_block_is_an_image_of_its_own_and_its_windows_weigh_one_at_its_border(parity, backend):
    kernels = parity.kernels(backend)
    target = torch.full((64, 64, 3), 100, dtype=torch.uint8)
    image = torch.full((64, 64, 3), 100 / 255)
    # Windows that lost their outer taps without renormalisation would see a darker image at the border.
    flat = l1_ssim(kernels, image + 0.2, target, Workspace(), window=LossWindow("tile"))
    inner = l1_ssim(
        kernels, image[:32, :32] + 0.2, target[:32, :32].contiguous(), Workspace(), window=LossWindow("tile")
    )
    assert flat.ssim.item() == pytest.approx(inner.ssim.item(), rel=1e-5)
    before = l1_ssim(kernels, image + 0.2, target, Workspace(), window=LossWindow("tile")).gradient.clone()
    image[31, 40] += 0.5  # In the block at the upper right.
    after = l1_ssim(kernels, image + 0.2, target, Workspace(), window=LossWindow("tile")).gradient
    changed = ((after - before).abs() > 1e-9).any(dim=2)
    assert changed[:32, 32:].any()
    assert not changed[32:].any()
    assert not changed[:, :32].any()


def test_an_offset_moves_the_borders_of_blocks(parity, backend):
    image, target, _ = pictures(2, 64, 64)
    kernels = parity.kernels(backend)
    windows = [LossWindow("exact"), LossWindow("tile"), LossWindow("tile", (16, 0)), LossWindow("tile", (0, 16))]
    values = {l1_ssim(kernels, image, target, Workspace(), window=w).ssim.item() for w in windows}
    assert len(values) == 4


def test_l1_window_has_no_ssim_and_ignores_its_weight(parity, backend):
    image, target, _ = pictures(3, 20, 30)
    loss = l1_ssim(parity.kernels(backend), image, target, Workspace(), ssim_weight=0.9, window=LossWindow("l1"))
    assert loss.ssim == 0
    assert loss.value == loss.l1
    expected = (image.double() - target.double() / 255).abs().mean()
    assert loss.value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_cut_halo_is_refused_for_windows_that_end_by_themselves(parity, backend):
    image, target, _ = pictures(4, 20, 30)
    with pytest.raises(ValueError, match="halo none"):
        l1_ssim(parity.kernels(backend), image, target, Workspace(), halo="none", window=LossWindow("tile"))
