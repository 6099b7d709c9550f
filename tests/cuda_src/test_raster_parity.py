"""raster_forward and raster_backward of every back end against `reference` in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.camera import TILE
from cuda_src.operators import Bins, Raster, Splats, bin_splats, project, raster_backward, raster_forward
from cuda_src.workspace import Workspace

seeds = st.integers(0, 2**31)
bounded = settings(max_examples=6, deadline=None)


@dataclass(frozen=True)
class Both:
    """The same splats composited by a back end and by its oracle."""

    splats: Splats
    bins: Bins
    ours: Raster
    exact: Raster
    clear: torch.Tensor


def composite_both(parity, kernels, view, tiles=None, start=None) -> Both:
    oracle = parity.oracle(kernels)
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    splats = Splats(splats.rows.clone(), splats.ids.clone(), splats.records.clone())
    bins = bin_splats(kernels, splats, view.camera, Workspace(), tiles)
    ours = raster_forward(kernels, splats, bins, view.camera, Workspace(), start)
    start64 = None if start is None else start.double()
    exact = raster_forward(oracle, parity.splats64(splats), bins, view.camera, Workspace(), start64)
    return Both(splats, bins, ours, exact, parity.clear_pixels(kernels, splats, bins, view.camera, start))


def assert_images_agree(parity, both: Both):
    # A pixel meets tens of splats, each with three thresholds of relative width 2e-4: one in a hundred is unclear.
    assert both.clear.double().mean() >= 0.9
    for name in ("colour", "transmittance", "depth"):
        image = getattr(both.ours, name)
        assert torch.isfinite(image).all(), name
        parity.close(image[both.clear], getattr(both.exact, name)[both.clear], 2e-5, name)
    for name in ("stopped", "last"):
        assert torch.equal(getattr(both.ours, name)[both.clear], getattr(both.exact, name)[both.clear]), name


def assert_gradients_agree(parity, kernels, view, both: Both, seed=0, start=None, background=None, extra=False):
    """With per-pixel upstream gradients that are zero where float32 may have decided differently."""
    generator = torch.Generator().manual_seed(seed)
    clear = both.clear.float()
    grad_colour = torch.randn(*view.pixels, 3, generator=generator) * clear[..., None]
    settings = {"background": background, "start_transmittance": start}
    if extra:
        settings["grad_transmittance"] = torch.randn(view.pixels, generator=generator) * clear
        settings["grad_depth"] = torch.randn(view.pixels, generator=generator) * clear
    settings64 = {name: None if value is None else value.double() for name, value in settings.items()}
    ours = raster_backward(
        kernels, both.splats, both.bins, both.ours, view.camera, grad_colour, Workspace(), **settings
    )
    exact = raster_backward(
        parity.oracle(kernels),
        parity.splats64(both.splats),
        both.bins,
        both.exact,
        view.camera,
        grad_colour.double(),
        Workspace(),
        **settings64,
    )
    assert ours.shape == (both.splats.count, layout.GRADIENT)
    parity.groups_close(ours, exact, parity.record_groups)
    return exact


@pytest.mark.parametrize("convention", ["standard", "inria", "gsplat153"])
@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@bounded
@given(seed=seeds)
def test_image_and_gradients_agree_with_float64_in_every_convention(parity, backend, convention, footprint, seed):
    kernels = parity.kernels(backend, convention, footprint=footprint)
    view = parity.view(seed)
    both = composite_both(parity, kernels, view)
    assert_images_agree(parity, both)
    assert_gradients_agree(parity, kernels, view, both, seed)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (17, 33), (16, 16)])
@bounded
@given(seed=seeds)
def test_image_and_gradients_agree_at_sizes_that_are_no_multiple_of_a_tile(parity, backend, width, height, seed):
    kernels, view = parity.kernels(backend), parity.view(seed, gaussians=30, width=width, height=height)
    both = composite_both(parity, kernels, view)
    if width > 1:
        assert_images_agree(parity, both)
    assert_gradients_agree(parity, kernels, view, both, seed, extra=True)


@pytest.mark.parametrize("t_stop", [0.0, 1e-4, 0.05])
@bounded
@given(seed=seeds)
def test_image_and_gradients_agree_behind_opaque_walls(parity, backend, t_stop, seed):
    """Large opaque splats: alphas at the cap, pixels that stop, and with t_stop 0 hundreds behind one another."""
    kernels = parity.kernels(backend, t_stop=t_stop)
    view = parity.view(seed, gaussians=60, sizes=(10.0, 60.0))
    view.parameters[:, layout.OPACITY_LOGIT] += 4.0
    both = composite_both(parity, kernels, view)
    assert_images_agree(parity, both)
    if t_stop > 0:
        assert both.exact.stopped.sum() > 0
    assert_gradients_agree(parity, kernels, view, both, seed, extra=True)


@bounded
@given(seed=seeds)
def test_all_upstream_gradients_and_a_per_pixel_background_agree(parity, backend, seed):
    kernels, view = parity.kernels(backend), parity.view(seed)
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(view.pixels, generator=generator)
    start[:5] = 0.0
    background = torch.rand(*view.pixels, 3, generator=generator)
    both = composite_both(parity, kernels, view, start=start)
    assert_images_agree(parity, both)
    assert_gradients_agree(parity, kernels, view, both, seed, start=start, background=background, extra=True)


@bounded
@given(seed=seeds)
def test_a_background_shows_through_by_what_is_left_of_the_light(parity, backend, seed):
    """Behind listed tiles alone: pixels of others stay zero."""
    kernels, view = parity.kernels(backend), parity.view(seed)
    generator = torch.Generator().manual_seed(seed)
    tiles = torch.tensor([1, 2, 5, 6, 7, 11], dtype=torch.int32)
    listed = torch.zeros(view.camera.tiles, dtype=torch.bool)
    listed[tiles.long()] = True
    by_tile = listed.view(view.camera.tiles_y, view.camera.tiles_x)
    by_pixel = by_tile.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)[: view.camera.height, : view.camera.width]
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    bins = bin_splats(kernels, splats, view.camera, Workspace(), tiles)
    start = torch.rand(view.pixels, generator=generator)
    black = raster_forward(kernels, splats, bins, view.camera, Workspace(), start)
    for background in (torch.rand(3, generator=generator), torch.rand(*view.pixels, 3, generator=generator)):
        ours = raster_forward(kernels, splats, bins, view.camera, Workspace(), start, background=background)
        parity.close(ours.colour, black.colour + black.transmittance[..., None] * background, 1e-6)
        assert torch.equal(ours.transmittance, black.transmittance)
        assert (ours.colour[~by_pixel] == 0).all()
        assert (ours.colour[by_pixel] > 0).any()


def test_one_background_colour_equals_the_same_colour_at_every_pixel(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(3)
    both = composite_both(parity, kernels, view)
    colour = torch.tensor([0.2, 0.9, 0.4])
    assert_gradients_agree(parity, kernels, view, both, background=colour)
    grad = torch.randn(*view.pixels, 3, generator=torch.Generator().manual_seed(1))
    args = (kernels, both.splats, both.bins, both.ours, view.camera, grad)
    one = raster_backward(*args, Workspace(), background=colour)
    every = raster_backward(*args, Workspace(), background=colour.expand(*view.pixels, 3).contiguous())
    parity.close(one, every, 1e-6)


def test_a_capped_alpha_passes_its_gradient_only_in_the_inria_convention(parity, backend):
    view = parity.view(6, gaussians=1, width=16, height=16)
    camera = view.camera
    records = torch.tensor([[8.5, 8.5, 1.0, 0.0, 1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 3.0]])
    splats = Splats(torch.tensor([0]), torch.tensor([0]), records)
    at_centre = torch.zeros(16, 16, 3)
    at_centre[8, 8] = 1.0
    gradient = {}
    for convention in ("standard", "inria"):
        kernels = parity.kernels(backend, convention)
        bins = bin_splats(kernels, splats, camera, Workspace())
        raster = raster_forward(kernels, splats, bins, camera, Workspace())
        assert raster.transmittance[8, 8].item() == pytest.approx(0.01, rel=1e-5)
        gradient[convention] = raster_backward(kernels, splats, bins, raster, camera, at_centre, Workspace())
    assert gradient["standard"][0, layout.RECORD_OPACITY] == 0
    assert gradient["inria"][0, layout.RECORD_OPACITY].item() == pytest.approx(1.5)


@pytest.mark.parametrize(("t_stop", "blended"), [(0.25, True), (0.250001, False)])
def test_the_splat_that_would_bring_transmittance_below_the_stop_is_not_blended(parity, backend, t_stop, blended):
    """Two splats of alpha 1/2, exact in float32: transmittance 1/4 is not below 1/4."""
    view = parity.view(6, gaussians=1, width=1, height=1)
    records = torch.tensor([[0.5, 0.5, 1.0, 0.0, 1.0, 0.5, 1.0, 0.0, 0.0, float(d), 3.0] for d in (1, 2)])
    splats = Splats(torch.arange(2), torch.arange(2), records)
    kernels = parity.kernels(backend, t_stop=t_stop)
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    raster = raster_forward(kernels, splats, bins, view.camera, Workspace())
    assert raster.transmittance.item() == (0.25 if blended else 0.5)
    assert raster.stopped.item() == (0 if blended else 1)
    assert raster.last.item() == (2 if blended else 1)
    assert raster.depth.item() == (1.0 if blended else 0.5)
    if blended:
        inclusive = parity.kernels(backend, "gsplat153", t_stop=t_stop)
        raster = raster_forward(inclusive, splats, bins, view.camera, Workspace())
        assert raster.transmittance.item() == 0.5


def test_a_pixel_that_starts_below_the_stop_stops_at_the_first_splat_it_does_not_skip(parity, backend):
    view = parity.view(6, gaussians=1, width=16, height=1)
    records = torch.tensor([[0.5, 0.5, 1.0, 0.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 3.0]])
    splats = Splats(torch.arange(1), torch.arange(1), records)
    kernels = parity.kernels(backend)
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    raster = raster_forward(kernels, splats, bins, view.camera, Workspace(), torch.zeros(1, 16))
    # exp(-x^2 / 2) falls below 1/255 four pixels away.
    assert raster.stopped.tolist() == [[1] * 4 + [0] * 12]
    assert (raster.last == 0).all()


def test_pixels_where_rounding_made_the_exponent_positive_are_skipped(parity, backend):
    """A conic that rounding left indefinite would otherwise grow without bound along one diagonal."""
    view = parity.view(6, gaussians=1, width=16, height=16)
    records = torch.tensor([[8.5, 8.5, 1.0, 2.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 9.0]])
    splats = Splats(torch.arange(1), torch.arange(1), records)
    kernels = parity.kernels(backend)
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    raster = raster_forward(kernels, splats, bins, view.camera, Workspace())
    assert raster.colour[8, 8, 0].item() == 0.5
    assert raster.colour[9, 9, 0].item() == pytest.approx(0.5 * math.exp(-3), rel=1e-5)
    assert raster.colour[7, 9, 0].item() == 0
    gradient = raster_backward(
        kernels, splats, bins, raster, view.camera, torch.ones(16, 16, 3), Workspace(), grad_depth=torch.ones(16, 16)
    )
    assert torch.isfinite(gradient).all()


def test_nothing_visible_leaves_black_and_full_transmittance(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(7).only([])
    both = composite_both(parity, kernels, view)
    assert (both.ours.colour == 0).all()
    assert (both.ours.transmittance == 1).all()
    assert (both.ours.stopped == 0).all()
    assert (both.ours.last == 0).all()
    gradient = raster_backward(
        kernels, both.splats, both.bins, both.ours, view.camera, torch.ones(*view.pixels, 3), Workspace()
    )
    assert gradient.shape == (0, layout.GRADIENT)


def test_start_transmittance_carries_the_front_half_into_the_back_half(parity, backend):
    """Compositing in two depth ranges equals compositing at once, where the stop plays no part."""
    kernels, view = parity.kernels(backend, t_stop=0.0), parity.view(12)
    whole = composite_both(parity, kernels, view)
    median = whole.splats.records[:, layout.RECORD_DEPTH].median()
    halves = []
    start = None
    for part in (
        whole.splats.records[:, layout.RECORD_DEPTH] <= median,
        whole.splats.records[:, layout.RECORD_DEPTH] > median,
    ):
        splats = Splats(whole.splats.rows[part], whole.splats.ids[part], whole.splats.records[part])
        bins = bin_splats(kernels, splats, view.camera, Workspace())
        halves.append(raster_forward(kernels, splats, bins, view.camera, Workspace(), start))
        start = halves[0].transmittance
    parity.close(halves[0].colour + halves[1].colour, whole.ours.colour, 1e-6)
    parity.close(halves[0].depth + halves[1].depth, whole.ours.depth, 1e-6)
    parity.close(halves[1].transmittance, whole.ours.transmittance, 1e-6)


def test_a_partition_of_the_tiles_adds_up_to_the_whole_image_and_its_gradients(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(13)
    whole = composite_both(parity, kernels, view)
    grad = torch.randn(*view.pixels, 3, generator=torch.Generator().manual_seed(2))
    expected = raster_backward(kernels, whole.splats, whole.bins, whole.ours, view.camera, grad, Workspace())
    colour, transmittance = torch.zeros(*view.pixels, 3), torch.zeros(view.pixels)
    gradient = torch.zeros(whole.splats.count, layout.GRADIENT)
    for tiles in ([0, 3, 4], [1, 2, 5, 6, 7], [8, 9, 10, 11]):
        part = composite_both(parity, kernels, view, torch.tensor(tiles, dtype=torch.int32))
        colour += part.ours.colour
        transmittance += part.ours.transmittance
        gradient += raster_backward(kernels, part.splats, part.bins, part.ours, view.camera, grad, Workspace())
    assert torch.equal(colour, whole.ours.colour)
    assert torch.equal(transmittance, whole.ours.transmittance)
    parity.groups_close(gradient, expected, parity.record_groups, 1e-5)
