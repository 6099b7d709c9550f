"""raster_fused of every back end equals forward, loss and backward one after another with the same window."""

from __future__ import annotations

import pytest
import torch

from cuda_src import layout
from cuda_src.camera import TILE
from cuda_src.operators import (
    WHOLE_IMAGE,
    LossWindow,
    bin_splats,
    l1_ssim,
    project,
    raster_backward,
    raster_forward,
    raster_fused,
)
from cuda_src.workspace import Workspace

WINDOWS = [WHOLE_IMAGE, LossWindow("tile"), LossWindow("tile", (5, 19)), LossWindow("l1")]
SIZES = [(50, 40), (70, 130), (16, 16), (33, 1), (1, 90)]
"""Width and height: rows of tiles fewer than, as many as and more than are at hand at once."""


def scene(parity, kernels, width, height, seed=1, work=None):
    """Splats and bins of a random view, its target and its mask."""
    view = parity.view(seed, 60, width, height, (1.0, 25.0))
    work = work or Workspace()
    splats = project(kernels, view.parameters.to(kernels.dtype), view.ids, view.camera, 3, work)
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
    mask = torch.randint(0, 256, (height, width), dtype=torch.uint8, generator=generator)
    return view.camera, splats, bin_splats(kernels, splats, view.camera, work), target, mask


def one_after_another(kernels, splats, bins, camera, target, background, mask, window):
    """Image, loss and gradients by the three operators."""
    work = Workspace()
    raster = raster_forward(kernels, splats, bins, camera, work)
    image = raster.colour + raster.transmittance[..., None] * background
    loss = l1_ssim(kernels, image, target, work, mask, bins.tiles, window=window)
    gradients = raster_backward(kernels, splats, bins, raster, camera, loss.gradient, work, background)
    return image, loss, gradients, raster.last


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(("threads", "masked"), [(1, False), (3, True)])
def test_fused_equals_the_operators_one_after_another(parity, backend, width, height, window, masked, threads):
    kernels = parity.kernels(backend, threads=threads)
    camera, splats, bins, target, mask = scene(parity, kernels, width, height)
    background = torch.tensor([0.2, 0.5, 0.9])
    mask = mask if masked else None
    image, loss, gradients, last = one_after_another(kernels, splats, bins, camera, target, background, mask, window)
    ours = torch.full_like(image, float("nan"))
    fused = raster_fused(
        kernels, splats, bins, camera, target, Workspace(), background, mask, window=window, image=ours
    )
    parity.close(ours, image, 1e-6, "image")
    for name in ("value", "l1", "ssim"):
        assert getattr(fused, name).item() == pytest.approx(getattr(loss, name).item(), rel=1e-6, abs=1e-7)
    parity.groups_close(fused.gradients, gradients, parity.record_groups, 1e-5)
    counts = torch.zeros(camera.tiles_y * TILE, camera.tiles_x * TILE, dtype=torch.int64)
    counts[:height, :width] = last
    by_tile = counts.view(camera.tiles_y, TILE, camera.tiles_x, TILE).sum(dim=(1, 3)).flatten()
    assert torch.equal(fused.contributors, by_tile)


def test_gradients_have_the_same_bits_where_nothing_was_rounded_differently(parity, backend):
    """On black every pixel's image has the same bits; with L1 so has its gradient, and sums keep their order."""
    kernels = parity.kernels(backend)
    camera, splats, bins, target, _ = scene(parity, kernels, 70, 130)
    black, window = torch.zeros(3), LossWindow("l1")
    _, _, gradients, _ = one_after_another(kernels, splats, bins, camera, target, black, None, window)
    fused = raster_fused(kernels, splats, bins, camera, target, Workspace(), black, window=window)
    assert torch.equal(fused.gradients, gradients)


def test_l1_is_fused_on_some_of_the_tiles(parity, backend):
    kernels, work = parity.kernels(backend), Workspace()
    camera, splats, _, target, mask = scene(parity, kernels, 70, 130, work=work)
    tiles = torch.tensor([0, 3, 4, 11, 12, 30], dtype=torch.int32)
    bins = bin_splats(kernels, splats, camera, Workspace(), tiles)
    black, window = torch.zeros(3), LossWindow("l1")
    _, loss, gradients, _ = one_after_another(kernels, splats, bins, camera, target, black, mask, window)
    fused = raster_fused(kernels, splats, bins, camera, target, Workspace(), black, mask, window=window)
    assert fused.value.item() == pytest.approx(loss.value.item(), rel=1e-6)
    parity.close(fused.gradients, gradients, 1e-6)


@pytest.mark.parametrize("window", WINDOWS[:3], ids=str)
def test_windows_that_look_beyond_the_listed_tiles_are_refused(parity, backend, window):
    kernels = parity.kernels(backend)
    camera, splats, _, target, _ = scene(parity, kernels, 50, 40)
    bins = bin_splats(kernels, splats, camera, Workspace(), torch.tensor([0, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match="whole image"):
        raster_fused(kernels, splats, bins, camera, target, Workspace(), window=window)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_no_tile_and_no_splat_leave_nothing(parity, backend, window):
    kernels = parity.kernels(backend)
    camera, splats, bins, target, _ = scene(parity, kernels, 50, 40)
    none = bin_splats(kernels, splats, camera, Workspace(), torch.empty(0, dtype=torch.int32))
    fused = raster_fused(kernels, splats, none, camera, target, Workspace(), window=window)
    assert fused.value == 0
    assert (fused.gradients == 0).all()
    assert fused.contributors.shape == (0,)
    empty = type(splats)(splats.rows[:0], splats.ids[:0], splats.records[:0])
    bins = bin_splats(kernels, empty, camera, Workspace())
    fused = raster_fused(kernels, empty, bins, camera, target, Workspace(), window=window)
    assert fused.gradients.shape == (0, layout.GRADIENT)
    assert fused.value > 0


def test_portable_holds_no_image_but_three_rows_of_tiles(parity):
    """Buffers grow with the width alone, but for the sums of each row and the gradients of splats."""
    kernels = parity.kernels("portable")

    def peak(height: int, window: LossWindow) -> int:
        camera, splats, bins, target, _ = scene(parity, kernels, 64, height)
        work = Workspace()
        raster_fused(kernels, splats, bins, camera, target, work, window=window)
        return work.peak_bytes

    for window in WINDOWS:
        assert peak(960, window) - peak(160, window) < 800 * 64 * 4  # One float a pixel; separate operators keep 30.
