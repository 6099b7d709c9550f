"""Sub-tiles, depth limits, depth ranges and stop depths of every back end against `reference` in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.camera import SUBTILE_HEIGHT, SUBTILE_WIDTH, TILE
from cuda_src.operators import Bins, Raster, Splats, bin_splats, project, raster_backward, raster_forward
from cuda_src.reference.binning import least_sigma, subtile_rectangles
from cuda_src.workspace import Workspace

seeds = st.integers(0, 2**31)
bounded = settings(max_examples=6, deadline=None)


def splats_of(parity, kernels, view) -> Splats:
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    splats = parity.away_from_edges(kernels, splats, view.camera)
    return Splats(splats.rows.clone(), splats.ids.clone(), splats.records.clone())


def away_from_subtile_edges(parity, kernels, splats, camera) -> Splats:
    """The splats whose footprint neither just touches nor just misses a sub-tile."""
    records, clear = splats.records.double(), torch.ones(splats.count, dtype=torch.bool)
    for subtile in range(8):
        rectangles = subtile_rectangles(camera, torch.arange(camera.tiles), subtile, torch.float64)
        if kernels.footprint == "ellipse":
            reach = torch.log(records[:, layout.RECORD_OPACITY] / kernels.convention.alpha_min)[:, None]
            gap = (least_sigma(records, rectangles) - reach).abs() / (1 + reach.abs())
        else:
            mean, radius = records[:, layout.RECORD_MEAN2D], records[:, layout.RECORD_RADIUS, None, None]
            gap = ((rectangles - mean.repeat(1, 2)[:, None]).abs() - radius).abs().amin(dim=2)
        clear &= (gap > parity.border).all(dim=1)
    assert clear.double().mean() >= 0.8
    return Splats(splats.rows[clear], splats.ids[clear], splats.records[clear])


def random_subtiles(camera, seed: int) -> torch.Tensor:
    """Masks by tile, some of them empty and some full."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, 256, (camera.tiles,), dtype=torch.uint8, generator=generator)
    kind = torch.randint(0, 4, (camera.tiles,), generator=generator)
    masks[kind == 0] = 0
    masks[kind == 1] = 255
    return masks


def pixels_of(subtiles: torch.Tensor, camera) -> torch.Tensor:
    """[H, W] bool, pixel by pixel: the pixel's sub-tile is rendered."""
    pixels = torch.zeros(camera.height, camera.width, dtype=torch.bool)
    for y in range(camera.height):
        for x in range(camera.width):
            tile = y // TILE * camera.tiles_x + x // TILE
            bit = y % TILE // SUBTILE_HEIGHT * 2 + x % TILE // SUBTILE_WIDTH
            pixels[y, x] = int(subtiles[tile]) >> bit & 1
    return pixels


def listed(bins: Bins) -> list[tuple[int, int]]:
    """Pairs (tile, splat) in the order of the lists."""
    tiles = bins.tiles.repeat_interleave(bins.starts[1:] - bins.starts[:-1])
    return list(zip(tiles.tolist(), bins.splat.tolist(), strict=True))


def assert_same_bins(ours: Bins, exact: Bins) -> None:
    for name in ("tiles", "starts", "splat", "splat_starts") + (("slot",) if ours.slot is not None else ()):
        assert torch.equal(getattr(ours, name), getattr(exact, name)), name


@dataclass(frozen=True)
class Limits:
    """Random limits of all kinds for one view."""

    subtiles: torch.Tensor
    depth_limit: torch.Tensor
    depth_range: torch.Tensor

    @classmethod
    def of(cls, splats: Splats, camera, seed: int) -> Limits:
        generator = torch.Generator().manual_seed(seed)
        depth = splats.records[:, layout.RECORD_DEPTH]

        def some_depths(*shape: int) -> torch.Tensor:
            # Depths of splats themselves: comparisons must be exact, so equality is the case to meet.
            return depth[torch.randint(0, len(depth), shape, generator=generator)]

        limit = some_depths(camera.tiles)
        limit[::3] = torch.inf
        both = some_depths(camera.height, camera.width, 2).sort(dim=2).values
        both[::5, :, 0] = -torch.inf
        both[:, ::4, 1] = torch.inf
        return cls(random_subtiles(camera, seed), limit, both)


@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@bounded
@given(seed=seeds)
def test_bins_of_some_subtiles_equal_the_oracle(parity, backend, footprint, seed):
    kernels, view = parity.kernels(backend, footprint=footprint), parity.view(seed, width=45, height=37)
    splats = away_from_subtile_edges(parity, kernels, splats_of(parity, kernels, view), view.camera)
    limits = Limits.of(splats, view.camera, seed)
    chosen = torch.tensor([0, 1, 3, 5, 8], dtype=torch.int32)
    for tiles in (None, chosen):
        given_limits = (view.camera, Workspace(), tiles, limits.subtiles, limits.depth_limit)
        ours = bin_splats(kernels, splats, *given_limits)
        exact = bin_splats(parity.oracle(kernels), parity.splats64(splats), *given_limits)
        assert_same_bins(ours, exact)


@pytest.mark.parametrize("footprint", ["ellipse", "square"])
def test_a_subtile_of_one_row_or_column_is_met_wherever_the_mean_lies(parity, backend, footprint):
    """33 x 37 pixels leave the last tiles one column and five rows: a sub-tile of one pixel, seen by every splat."""
    kernels, view = parity.kernels(backend, footprint=footprint), parity.view(1, width=33, height=37)
    splats = splats_of(parity, kernels, view)
    records = splats.records[:1].repeat(500, 1)
    records[:, layout.RECORD_MEAN2D] = 33 * torch.rand(500, 2, generator=torch.Generator().manual_seed(1))
    records[:, layout.RECORD_CONIC] = torch.tensor([1e-4, 0.0, 1e-4])
    records[:, layout.RECORD_OPACITY] = 0.9
    records[:, layout.RECORD_RADIUS] = 300.0
    numbers = torch.arange(500)
    subtiles = torch.zeros(view.camera.tiles, dtype=torch.uint8)
    subtiles[-1] = 1 << 2
    bins = bin_splats(kernels, Splats(numbers, numbers, records), view.camera, Workspace(), None, subtiles)
    assert (bins.starts[1:] - bins.starts[:-1]).tolist() == [0] * (view.camera.tiles - 1) + [500]


def test_full_masks_and_infinite_limits_change_nothing(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(21)
    splats, tiles = splats_of(parity, kernels, view), view.camera.tiles
    plain = bin_splats(kernels, splats, view.camera, Workspace())
    full, unlimited = torch.full((tiles,), 255, dtype=torch.uint8), torch.full((tiles,), torch.inf)
    limited = bin_splats(kernels, splats, view.camera, Workspace(), None, full, unlimited)
    assert_same_bins(limited, plain)
    everywhere = torch.tensor([-torch.inf, torch.inf]).expand(*view.pixels, 2).contiguous()
    expected = raster_forward(kernels, splats, plain, view.camera, Workspace())
    raster = raster_forward(kernels, splats, plain, view.camera, Workspace(), None, full, everywhere)
    for name in Raster.__dataclass_fields__:
        assert torch.equal(getattr(raster, name), getattr(expected, name)), name
    grad = torch.randn(*view.pixels, 3, generator=torch.Generator().manual_seed(1))
    args = (kernels, splats, plain, expected, view.camera, grad)
    # A back end may sum a splat's gradient in any order.
    ranged = raster_backward(*args, Workspace(), depth_range=everywhere)
    parity.groups_close(ranged, raster_backward(*args, Workspace()), parity.record_groups, 1e-6)


def test_instances_of_one_subtile_are_the_splats_that_meet_its_pixels(parity, backend):
    """One bit at a time on a view that the tiles' edges do not divide evenly, so that some sub-tiles are cut off."""
    kernels, view = parity.kernels(backend), parity.view(22, width=20, height=22)
    camera = view.camera
    splats = away_from_subtile_edges(parity, kernels, splats_of(parity, kernels, view), camera)
    reach = torch.log(splats.records[:, layout.RECORD_OPACITY].double() / kernels.convention.alpha_min)
    for subtile in range(8):
        masks = torch.full((camera.tiles,), 1 << subtile, dtype=torch.uint8)
        bins = bin_splats(kernels, splats, camera, Workspace(), None, masks)
        expected = []
        for tile in range(camera.tiles):
            left = tile % camera.tiles_x * TILE + subtile % 2 * SUBTILE_WIDTH
            top = tile // camera.tiles_x * TILE + subtile // 2 * SUBTILE_HEIGHT
            right, bottom = min(left + SUBTILE_WIDTH, camera.width), min(top + SUBTILE_HEIGHT, camera.height)
            if right <= left or bottom <= top:
                continue
            rectangle = torch.tensor([[left + 0.5, top + 0.5, right - 0.5, bottom - 0.5]], dtype=torch.float64)
            met = least_sigma(splats.records.double(), rectangle)[:, 0] <= reach
            expected += [(tile, v) for v in met.nonzero()[:, 0].tolist()]
        assert sorted(listed(bins)) == expected


def test_a_depth_limit_keeps_what_lies_at_it_and_drops_what_lies_behind(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(23)
    splats, camera = splats_of(parity, kernels, view), view.camera
    limits = Limits.of(splats, camera, 5)
    plain = bin_splats(kernels, splats, camera, Workspace())
    limited = bin_splats(kernels, splats, camera, Workspace(), depth_limit=limits.depth_limit)
    depth = splats.records[:, layout.RECORD_DEPTH]
    kept = [(tile, v) for tile, v in listed(plain) if depth[v] <= limits.depth_limit[tile]]
    assert listed(limited) == kept
    assert any(depth[v] == limits.depth_limit[tile] for tile, v in kept)
    assert len(kept) < plain.instances


def composite_both(parity, kernels, view, seed, tiles=None, start=None):
    """Back end and oracle with all limits, and the pixels at which float32 cannot decide differently."""
    oracle, splats = parity.oracle(kernels), splats_of(parity, kernels, view)
    limits = Limits.of(splats, view.camera, seed)
    bins = bin_splats(kernels, splats, view.camera, Workspace(), tiles, limits.subtiles, limits.depth_limit)
    ours = raster_forward(kernels, splats, bins, view.camera, Workspace(), start, limits.subtiles, limits.depth_range)
    start64 = None if start is None else start.double()
    exact = raster_forward(
        oracle,
        parity.splats64(splats),
        bins,
        view.camera,
        Workspace(),
        start64,
        limits.subtiles,
        limits.depth_range.double(),
    )
    # Compositing stops at another splat where the range hides some: clear of the stop is clear at every pair, and
    # with few splats a pixel there is a good share of those.
    clear = parity.clear_pixels(kernels, splats, bins, view.camera, start)
    return splats, limits, bins, ours, exact, clear


def near_the_stop(parity, kernels, exact: Raster) -> torch.Tensor:
    """[H, W] bool: transmittance left is so little that a rounding error decides about the stop."""
    return (exact.transmittance / kernels.stop - 1).abs() < parity.border


@bounded
@given(seed=seeds)
def test_limited_image_and_gradients_equal_the_oracle(parity, backend, seed):
    kernels, view = parity.kernels(backend, t_stop=0.02), parity.view(seed, gaussians=50, sizes=(4.0, 30.0))
    view.parameters[:, layout.OPACITY_LOGIT] += 1.0
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(view.pixels, generator=generator) * 0.5 + 0.5
    splats, limits, bins, ours, exact, clear = composite_both(parity, kernels, view, seed, start=start)
    clear = clear & ~near_the_stop(parity, kernels, exact)
    assert clear.double().mean() >= 0.8
    agree = (ours.last == exact.last) & (ours.stopped == exact.stopped)
    assert agree[clear].double().mean() >= 0.995
    clear = clear & agree
    for name in ("colour", "transmittance", "depth"):
        parity.close(getattr(ours, name)[clear], getattr(exact, name)[clear], 2e-5, name)
    assert torch.equal(ours.stop_depth[clear].double(), exact.stop_depth[clear])

    upstream = torch.randn(*view.pixels, 3, generator=generator) * clear[..., None]
    others = {
        "grad_transmittance": torch.randn(view.pixels, generator=generator) * clear,
        "grad_depth": torch.randn(view.pixels, generator=generator) * clear,
        "start_transmittance": start,
        "depth_range": limits.depth_range,
        "background": torch.rand(*view.pixels, 3, generator=generator),
    }
    gradient = raster_backward(kernels, splats, bins, ours, view.camera, upstream, Workspace(), **others)
    expected = raster_backward(
        parity.oracle(kernels),
        parity.splats64(splats),
        bins,
        exact,
        view.camera,
        upstream.double(),
        Workspace(),
        **{name: value.double() for name, value in others.items()},
    )
    assert (expected != 0).any()
    parity.groups_close(gradient, expected, parity.record_groups)


def test_pixels_of_subtiles_not_rendered_stay_as_if_no_splat_met_them(parity, backend):
    kernels, view = parity.kernels(backend, t_stop=0.5), parity.view(24, gaussians=80, sizes=(4.0, 30.0))
    start = torch.rand(view.pixels, generator=torch.Generator().manual_seed(0))
    splats = splats_of(parity, kernels, view)
    masks = random_subtiles(view.camera, 3)
    rendered = pixels_of(masks, view.camera)
    whole = bin_splats(kernels, splats, view.camera, Workspace())
    part = bin_splats(kernels, splats, view.camera, Workspace(), None, masks)
    assert part.instances < whole.instances
    expected = raster_forward(kernels, splats, whole, view.camera, Workspace(), start)
    for bins in (whole, part):
        raster = raster_forward(kernels, splats, bins, view.camera, Workspace(), start, masks)
        for name in ("colour", "transmittance", "depth", "stopped", "stop_depth"):
            ours, theirs = getattr(raster, name)[rendered], getattr(expected, name)[rendered]
            # The reference's matrix products add up in an order that a list's length decides, on some CPUs.
            summed = backend == "reference" and name in ("colour", "depth")
            assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7) if summed else torch.equal(ours, theirs), name
        assert torch.equal(raster.transmittance[~rendered], start[~rendered])
        assert (raster.colour[~rendered] == 0).all()
        assert (raster.depth[~rendered] == 0).all()
        assert (raster.stopped[~rendered] == 0).all()
        assert (raster.last[~rendered] == 0).all()
        assert (raster.stop_depth[~rendered] == torch.inf).all()
    assert expected.stopped[~rendered].any()


def test_gradients_pass_through_no_subtile_that_is_not_rendered(parity, backend):
    """They equal those of an upstream gradient that is zero there."""
    kernels, view = parity.kernels(backend), parity.view(25)
    splats, masks = splats_of(parity, kernels, view), random_subtiles(view.camera, 4)
    grad = torch.randn(*view.pixels, 3, generator=torch.Generator().manual_seed(2))
    whole = bin_splats(kernels, splats, view.camera, Workspace())
    raster = raster_forward(kernels, splats, whole, view.camera, Workspace())
    expected = raster_backward(
        kernels, splats, whole, raster, view.camera, grad * pixels_of(masks, view.camera)[..., None], Workspace()
    )
    part = bin_splats(kernels, splats, view.camera, Workspace(), None, masks)
    raster = raster_forward(kernels, splats, part, view.camera, Workspace(), None, masks)
    gradient = raster_backward(kernels, splats, part, raster, view.camera, grad, Workspace())
    parity.groups_close(gradient, expected, parity.record_groups, 1e-5)


def test_depth_ranges_that_meet_share_each_splat_at_each_pixel_once(parity, backend):
    """Half-open ranges [-inf, d) and [d, inf) with d the depth of a splat: front and back composite to the whole."""
    kernels, view = parity.kernels(backend, t_stop=0.0), parity.view(26)
    splats = splats_of(parity, kernels, view)
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    whole = raster_forward(kernels, splats, bins, view.camera, Workspace())
    cut = splats.records[:, layout.RECORD_DEPTH].sort().values[splats.count // 2]
    cuts = torch.where(torch.rand(view.pixels, generator=torch.Generator().manual_seed(3)) < 0.5, cut, 0.7 * cut)
    front_range = torch.stack([torch.full_like(cuts, -torch.inf), cuts], dim=2)
    back_range = torch.stack([cuts, torch.full_like(cuts, torch.inf)], dim=2)
    front = raster_forward(kernels, splats, bins, view.camera, Workspace(), None, None, front_range)
    back = raster_forward(kernels, splats, bins, view.camera, Workspace(), None, None, back_range)
    parity.close(front.colour + front.transmittance[..., None] * back.colour, whole.colour, 1e-6)
    parity.close(front.transmittance * back.transmittance, whole.transmittance, 1e-6)

    grad = torch.randn(*view.pixels, 3, generator=torch.Generator().manual_seed(4))
    expected = raster_backward(kernels, splats, bins, whole, view.camera, grad, Workspace())
    in_front = raster_backward(
        kernels, splats, bins, front, view.camera, grad, Workspace(), back.colour, depth_range=front_range
    )
    behind = raster_backward(
        kernels,
        splats,
        bins,
        back,
        view.camera,
        grad * front.transmittance[..., None],
        Workspace(),
        depth_range=back_range,
    )
    parity.groups_close(in_front + behind, expected, parity.record_groups, 1e-4)


def test_a_splat_out_of_range_does_not_stop_a_pixel(parity, backend):
    view = parity.view(6, gaussians=1, width=2, height=1)
    records = torch.tensor([[1.0, 0.5, 0.001, 0.0, 0.001, 0.9, 1.0, 1.0, 1.0, float(d), 90.0] for d in (1, 2, 3)])
    splats = Splats(torch.arange(3), torch.arange(3), records)
    kernels = parity.kernels(backend, t_stop=0.05)
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    depth_range = torch.tensor([[[0.0, 9.0], [2.0, 3.0]]])
    raster = raster_forward(kernels, splats, bins, view.camera, Workspace(), None, None, depth_range)
    assert raster.stopped.tolist() == [[1, 0]]
    assert raster.stop_depth.tolist() == [[2.0, torch.inf]]
    assert raster.last.tolist() == [[1, 2]]
    assert raster.depth[0, 1].item() == pytest.approx(2 * 0.9, rel=1e-3)


def test_stop_depth_is_the_depth_of_the_splat_that_would_bring_transmittance_below_the_stop(parity, backend):
    view = parity.view(6, gaussians=1, width=1, height=1)
    records = torch.tensor([[0.5, 0.5, 1.0, 0.0, 1.0, 0.5, 1.0, 0.0, 0.0, d, 3.0] for d in (1.25, 2.5, 3.75, 5.0)])
    splats = Splats(torch.arange(4), torch.arange(4), records)
    kernels = parity.kernels(backend, t_stop=0.2)
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    raster = raster_forward(kernels, splats, bins, view.camera, Workspace())
    assert (raster.stop_depth.item(), raster.last.item(), raster.transmittance.item()) == (3.75, 2, 0.25)
    raster = raster_forward(replace(kernels, t_stop=0.01), splats, bins, view.camera, Workspace())
    assert (raster.stop_depth.item(), raster.last.item(), raster.stopped.item()) == (torch.inf, 4, 0)


def test_tiles_that_are_not_listed_hold_zeros_in_every_field(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(27)
    splats, work = splats_of(parity, kernels, view), Workspace()
    raster_forward(kernels, splats, bin_splats(kernels, splats, view.camera, work), view.camera, work)
    bins = bin_splats(kernels, splats, view.camera, work, torch.tensor([1], dtype=torch.int32))
    raster = raster_forward(kernels, splats, bins, view.camera, work)
    for name in Raster.__dataclass_fields__:
        values = getattr(raster, name)
        assert not values[TILE:].any(), name
        assert not values[:, :TILE].any(), name


@bounded
@given(seed=seeds)
def test_what_lies_beyond_the_far_plane_is_culled_as_the_oracle_does(parity, backend, seed):
    kernels, view = parity.kernels(backend), parity.view(seed)
    everything = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    depth = everything.records[:, layout.RECORD_DEPTH].double().sort().values
    # Half-way between two splats, so that no rounding decides.
    widest = int(depth[len(depth) // 4 : -2].diff().argmax()) + len(depth) // 4
    cut = replace(view, camera=replace(view.camera, far=float(depth[widest : widest + 2].mean())))
    ours = project(kernels, cut.parameters, cut.ids, cut.camera, 3, Workspace())
    exact = project(parity.oracle(kernels), cut.parameters.double(), cut.ids, cut.camera, 3, Workspace())
    assert 0 < ours.count < len(depth)
    clear = parity.clear_rows(kernels, view, 3)
    assert ours.rows[clear[ours.rows]].tolist() == exact.rows[clear[exact.rows]].tolist()
