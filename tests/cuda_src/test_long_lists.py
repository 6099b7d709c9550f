"""Tile lists of every length at which a back end changes its way: batches, groups of 32, segments, and none at all.

Records are made directly, so that a list is exactly as long as asked; images and gradients are held to `reference` in
float64 where no decision is close.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import Bins, Raster, Splats, bin_splats, raster_backward, raster_forward
from cuda_src.workspace import Workspace

BATCHES = (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
SEGMENTS = (1023, 1024, 1025, 1535, 1536, 1537, 2047, 2048, 2049, 3100)
MANY = (8 << 20) + 1
"""From so many instances on segments are twice as long."""
ONLY_COMPILED = [pytest.param("compiled", marks=pytest.mark.gpu)]
"""Only this back end treats long lists in its own way; on a CPU they take long."""
CAMERA = Camera(23, 19, 20.0, 20.0, 8.0, 8.0, np.eye(4))
"""Four tiles, three of them cut by the image's border."""


@dataclass(frozen=True)
class Drawn:
    splats: Splats
    bins: Bins
    raster: Raster


def splats_of(count: int, opacity: float, seed: int, spread: float = 1.0) -> Splats:
    """Ellipses over the whole image, or over its left `spread`, front to back in the order of their numbers."""
    generator = torch.Generator().manual_seed(seed)
    records = torch.zeros(count, layout.RECORD)
    records[:, 0] = 24 * spread * torch.rand(count, generator=generator) - 1
    records[:, 1] = 21 * torch.rand(count, generator=generator) - 1
    a, c = 0.02 + 0.4 * torch.rand(2, count, generator=generator)
    records[:, 2], records[:, 4] = a, c
    records[:, 3] = (a * c).sqrt() * (1.6 * torch.rand(count, generator=generator) - 0.8)
    records[:, layout.RECORD_OPACITY] = opacity * (0.5 + torch.rand(count, generator=generator))
    records[:, layout.RECORD_COLOUR] = torch.rand(count, 3, generator=generator)
    records[:, layout.RECORD_DEPTH] = 1 + torch.arange(count) / 64
    records[:, layout.RECORD_RADIUS] = 40.0
    return Splats(torch.arange(count), torch.arange(count), records)


def draw(kernels, splats: Splats, room: int = 0, **settings) -> Drawn:
    """With every splat listed in every tile, so that the lists are as long as there are splats.

    room: instances that there is room for, where that is more than there are.
    """
    tiles, count = CAMERA.tiles, splats.count
    instances = torch.arange(tiles * count)
    bins = Bins(
        torch.arange(tiles, dtype=torch.int32),
        torch.arange(tiles + 1) * count,
        instances.remainder(max(count, 1)).to(torch.int32),
        instances.remainder(max(count, 1)) * tiles + instances.div(max(count, 1), rounding_mode="floor"),
        torch.arange(count + 1) * tiles,
    )
    bins = replace(bins, splat=torch.cat([bins.splat, bins.splat.new_zeros(max(0, room - len(instances)))]))
    return Drawn(splats, bins, raster_forward(kernels, splats, bins, CAMERA, Workspace(), **settings))


def in_float64(settings: dict) -> dict:
    return {name: v.double() if torch.is_floating_point(v) else v for name, v in settings.items()}


def assert_agrees(parity, kernels, splats: Splats, seed: int, depth: bool = False, room: int = 0, **settings) -> Raster:
    """Image, decisions and gradients against float64; returns the exact raster."""
    oracle = parity.oracle(kernels)
    ours = draw(kernels, splats, room, **settings)
    exact = draw(oracle, parity.splats64(splats), **in_float64(settings))
    # A pixel of a long list is close to some threshold almost surely: such pixels may differ by a splat at alpha_min.
    clear = (ours.raster.last == exact.raster.last) & (ours.raster.stopped == exact.raster.stopped)
    assert clear.double().mean() >= 0.9
    tolerance = 2e-5 + 2e-6 * splats.count
    for name in ("colour", "transmittance", "depth"):
        here, there = getattr(ours.raster, name), getattr(exact.raster, name)
        assert torch.isfinite(here).all(), name
        parity.close(here[clear], there[clear], tolerance, name)
    stops = clear & (exact.raster.stopped > 0)
    assert torch.equal(ours.raster.stop_depth[stops], exact.raster.stop_depth[stops].float())
    assert torch.isinf(ours.raster.stop_depth[clear & ~stops]).all()

    generator = torch.Generator().manual_seed(seed)
    upstream = {"grad_colour": torch.randn(CAMERA.height, CAMERA.width, 3, generator=generator) * clear[..., None]}
    upstream["grad_transmittance"] = torch.randn(CAMERA.height, CAMERA.width, generator=generator) * clear
    if depth:
        upstream["grad_depth"] = torch.randn(CAMERA.height, CAMERA.width, generator=generator) * clear
    given = {name: v for name, v in settings.items() if name in ("background", "start_transmittance", "depth_range")}
    gradient = raster_backward(
        kernels, ours.splats, ours.bins, ours.raster, CAMERA, workspace=Workspace(), **upstream, **given
    )
    expected = raster_backward(
        oracle, exact.splats, exact.bins, exact.raster, CAMERA, workspace=Workspace(), **in_float64(upstream | given)
    )
    parity.groups_close(gradient, expected, parity.record_groups, 1e-3 + 1e-6 * splats.count)
    return exact.raster


@pytest.mark.parametrize("count", BATCHES)
def test_short_lists_agree_with_float64(parity, backend, count):
    assert_agrees(parity, parity.kernels(backend), splats_of(count, 0.3, count), count, depth=count % 2 == 0)


@pytest.mark.parametrize("runs", [(1, 0), (0, 1), (16, 16), (15, 17), (49, 3), (3, 65), (130, 40)])
def test_neighbouring_cells_see_runs_of_splats_in_turn(parity, backend, runs):
    """Small splats in one cell of 4 x 4 pixels, then in the next: one has work where the other has none."""
    splats = splats_of(170, 0.3, 12)
    left, right = runs
    turn = torch.arange(splats.count).remainder(left + right) < left
    splats.records[:, 0] = torch.where(turn, 2.0, 6.0) + splats.records[:, 0] / 24
    splats.records[:, 1] = 2.0 + splats.records[:, 1] / 21
    splats.records[:, layout.RECORD_CONIC] = torch.tensor([2.0, 0.1, 2.0])
    assert_agrees(parity, parity.kernels(backend, t_stop=0.0), splats, 12, depth=True)


@pytest.mark.parametrize("depth", [False, True])
@pytest.mark.parametrize("count", [1, 16, 21, 50])
def test_splats_over_the_whole_image_add_up_all_its_cells(parity, backend, count, depth):
    """Every cell of every tile adds to the same few splats, at the same time."""
    splats = splats_of(count, 0.02, count)
    splats.records[:, layout.RECORD_CONIC] *= 0.01
    assert_agrees(parity, parity.kernels(backend, t_stop=0.0), splats, count, depth=depth)


@pytest.mark.parametrize("backend", ONLY_COMPILED, indirect=True)
@pytest.mark.parametrize("count", SEGMENTS)
def test_long_transparent_lists_are_blended_to_their_end(parity, backend, count):
    exact = assert_agrees(parity, parity.kernels(backend, t_stop=0.0), splats_of(count, 0.01, count), count, depth=True)
    assert exact.last.max() > count - 20
    assert exact.stopped.sum() == 0


@pytest.mark.parametrize("backend", ONLY_COMPILED, indirect=True)
@pytest.mark.parametrize("count", [1537, 2047, 2048, 3071, 3072, 3073, 4097])
def test_longer_segments_in_a_view_of_very_many_instances(parity, backend, count):
    splats = splats_of(count, 0.01, count)
    assert_agrees(parity, parity.kernels(backend, t_stop=0.0), splats, count, depth=True, room=MANY)


@pytest.mark.parametrize("backend", ONLY_COMPILED, indirect=True)
@pytest.mark.parametrize("opacity", [0.05, 0.1, 0.9])
def test_long_lists_stop_where_one_pass_would(parity, backend, opacity):
    """In the second and third segment, in the first two, in the very first batches."""
    exact = assert_agrees(parity, parity.kernels(backend), splats_of(3100, opacity, 7), 7)
    assert exact.stopped.double().mean() > 0.5


@pytest.mark.parametrize("backend", ONLY_COMPILED, indirect=True)
def test_pixels_of_a_tile_stop_in_different_segments_or_never(parity, backend):
    """Splats on the left alone: what stops there goes on to the end of the list on the right."""
    exact = assert_agrees(parity, parity.kernels(backend), splats_of(3100, 0.1, 8, spread=0.4), 8, depth=True)
    assert 0 < exact.stopped[:, :16].sum() < exact.stopped[:, :16].numel()
    last = exact.last[exact.stopped > 0]
    assert last.min() < 1024 < last.max()


@pytest.mark.parametrize("backend", ONLY_COMPILED, indirect=True)
def test_long_lists_with_a_start_a_background_and_sub_tiles(parity, backend):
    generator = torch.Generator().manual_seed(9)
    size = (CAMERA.height, CAMERA.width)
    start = torch.rand(size, generator=generator)
    start[:3] = 0.0
    background = torch.rand(*size, 3, generator=generator)
    subtiles = torch.tensor([0b10110111, 255, 0, 0b00000001], dtype=torch.uint8)
    exact = assert_agrees(
        parity,
        parity.kernels(backend),
        splats_of(2500, 0.02, 9),
        9,
        depth=True,
        start_transmittance=start,
        background=background,
        subtiles=subtiles,
    )
    assert (exact.last == 0).any()


@pytest.mark.parametrize("backend", ONLY_COMPILED, indirect=True)
def test_long_lists_with_a_range_of_depths_for_each_pixel(parity, backend):
    generator = torch.Generator().manual_seed(10)
    near = 1 + 10 * torch.rand(CAMERA.height, CAMERA.width, generator=generator)
    ranges = torch.stack([near, near + 30 * torch.rand(near.shape, generator=generator)], dim=2)
    exact = assert_agrees(parity, parity.kernels(backend), splats_of(2500, 0.02, 10), 10, depth_range=ranges)
    assert exact.last.max() > 1536


@pytest.mark.parametrize("backend", ONLY_COMPILED, indirect=True)
def test_tiles_of_one_view_have_lists_of_every_kind(parity, backend):
    """Empty, short, whole and cut lists side by side, binned and not made by hand."""
    kernels = parity.kernels(backend, t_stop=0.0)
    splats = splats_of(2000, 0.01, 11, spread=0.55)
    splats.records[:, layout.RECORD_CONIC] = torch.tensor([2.0, 0.0, 2.0])
    splats.records[:, 1] *= 0.75
    bins = bin_splats(kernels, splats, CAMERA, Workspace())
    lengths = bins.starts.diff()
    assert lengths.min() == 0
    assert lengths.max() > 1536
    ours = raster_forward(kernels, splats, bins, CAMERA, Workspace())
    exact = raster_forward(parity.oracle(kernels), parity.splats64(splats), bins, CAMERA, Workspace())
    same = ours.last == exact.last
    assert same.double().mean() >= 0.9
    parity.close(ours.colour[same], exact.colour[same], 1e-3)
