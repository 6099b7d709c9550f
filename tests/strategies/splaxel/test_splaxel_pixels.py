"""Lists of pixels, and the depths at which pixels are blended, are what their definitions say, on the CPU and a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies.distribution.halo import SSIM_HALO
from strategies.distribution.host_copies import HostCopies
from strategies.splaxel import subtiles
from strategies.splaxel.boxes import Boxes, median_boxes
from strategies.splaxel.depth_ranges import DepthRanges
from strategies.splaxel.sight import Sharing, look
from strategies.splaxel.visibility import Rays, depth_interval

NEAR = 0.2
CPU = torch.device("cpu")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(request.param)


def boxes_and_sight(look_at, ranks: int, boxes_per_rank: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    boxes = median_boxes(torch.rand(200, 3, generator=generator) * 4 - 2, ranks, boxes_per_rank)
    view = look_at([0.3, -0.2, -4.0], [0.1, 0.2, 0.3], 61, 43, 50.0)
    corners = torch.from_numpy(boxes.corners).clamp(-2, 2)
    return boxes, look(view, boxes, NEAR, list(corners), whole=False), generator


@pytest.mark.parametrize("at_once", [1 << 27, 50, 1])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("shape", [(3, 1000), (1, 7), (0, 5)])
def test_numbers_of_masks_whose_sizes_are_known_are_those_flagged(monkeypatch, device, shape, share, at_once):
    monkeypatch.setattr(subtiles, "_MOST_FLAGS", at_once)
    masks = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < share
    found = subtiles.numbers_of(masks.to(device), masks.sum(dim=1).tolist())
    assert len(found) == len(masks)
    for numbers, mask in zip(found, masks, strict=True):
        assert torch.equal(numbers.cpu(), mask.nonzero()[:, 0])


class Counters:
    """Who counts each pixel of a view, for `halo_of_pixels`."""

    def __init__(self, sharing: Sharing):
        self._pixels = subtiles.tile_pixels(sharing.counter, sharing.sight.camera)

    def pixel_owner(self, view: int) -> torch.Tensor:
        return self._pixels


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ranks=st.integers(1, 4),
    boxes_per_rank=st.integers(1, 3),
    compose=st.sampled_from(["all", "owner"]),
    seed=st.integers(0, 99),
)
def test_lists_hold_the_pixels_that_are_shown_and_needed(
    look_at, device, dilate, halo_of_pixels, ranks, boxes_per_rank, compose, seed
):
    _, sight, generator = boxes_and_sight(look_at, ranks, boxes_per_rank, seed)
    shape = subtiles.grid_shape(sight.camera)
    active = {box: torch.rand(shape, generator=generator) < 0.7 for box in sight.order[::2]}
    takes_part = frozenset(range(max(1, ranks - 1)))
    for rank in range(ranks):
        sharing = Sharing(sight, active, takes_part, compose, device)
        sharing.find(rank, ranks, HostCopies())
        lists, needs = sharing.lists, []
        for other in range(ranks):
            tiles = subtiles.tile_pixels(sharing.supervised(other), sight.camera)
            needs.append((dilate(tiles, SSIM_HALO) if compose == "all" else tiles).flatten())
        needed = needs[rank].nonzero()[:, 0]
        assert torch.equal(lists.needed.cpu(), needed)
        for number, (layer, grid) in enumerate(zip(sight.layers, sharing.grids, strict=True)):
            shown = subtiles.pixels_of(grid, sight.camera).flatten()
            for other in range(ranks) if layer.rank == rank else (rank,):
                assert torch.equal(lists.sent(number, other).cpu(), (shown & needs[other]).nonzero()[:, 0])
            assert torch.equal(lists.needed[lists.places(number)], lists.sent(number, rank))
        if compose == "owner":
            halo = halo_of_pixels(Counters(sharing), rank, ranks, 1)
            for side in ("gives", "takes"):
                for numbers, (expected,) in zip(getattr(lists, side), getattr(halo, side), strict=True):
                    assert torch.equal(numbers.cpu(), expected)


@pytest.mark.parametrize("boundary", ["drop", "exact"])
def test_intervals_that_are_kept_are_those_of_the_boxes(look_at, device, boundary):
    boxes, sight, _ = boxes_and_sight(look_at, 2, 2, 0)
    camera = sight.camera
    interval_bytes = camera.height * camera.width * 2 * 4
    ranges = DepthRanges(boundary, torch.float32, device, limit=3 * interval_bytes)
    for _ in range(2):
        for view in range(2):
            for box in sight.order:
                got = ranges.of(sight, boxes, box, Rays(camera, device), view)
                expected = depth_interval(Rays(camera, device), boxes.corners[box]).float()
                if boundary == "drop":
                    grid = sight.crowded & sight.projected[box]
                    contested = subtiles.pixels_of(grid, camera).to(device)
                    everything = torch.tensor([-torch.inf, torch.inf], device=device)
                    expected = torch.where(contested[..., None], expected, everything)
                assert torch.equal(got, expected)
                assert ranges.bytes <= 3 * interval_bytes
    assert ranges.bytes == 3 * interval_bytes
    held = ranges.bytes
    ranges.of(sight, boxes, sight.order[0], Rays(camera, device), None)
    assert ranges.bytes == held
    ranges.forget()
    assert ranges.bytes == 0


def test_a_box_that_is_alone_where_it_is_seen_is_blended_at_all_depths(look_at):
    boxes = Boxes(None, 1)
    view = look_at([0.0, 0.0, -4.0], [0.0, 0.0, 0.0])
    everywhere = torch.tensor(np.array([[-1.0] * 3, [1.0] * 3]))
    sight = look(view, boxes, NEAR, [everywhere], whole=False)
    assert DepthRanges("drop", torch.float32, CPU).of(sight, boxes, 0, Rays(view, CPU), 0) is None
    assert DepthRanges("keep", torch.float32, CPU).of(sight, boxes, 0, Rays(view, CPU), 0) is None
