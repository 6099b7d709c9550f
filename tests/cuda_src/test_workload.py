"""Counted work of a view: against a count by pixel and splat, and the compiled counter against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import SUBTILE_HEIGHT, SUBTILE_WIDTH, TILE
from cuda_src.workload import CELL, COUNTED, Workload, workload
from cuda_src.workspace import Workspace


def counted(kernels, view, device="cpu") -> tuple[Workload, op.Splats, op.Bins, op.Raster]:
    work = Workspace(device)
    splats = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, work)
    bins = op.bin_splats(kernels, splats, view.camera, work)
    raster = op.raster_forward(kernels, splats, bins, view.camera, work)
    return workload(kernels, len(view.ids), splats, bins, raster, view.camera), splats, bins, raster


def by_pixel_and_splat(kernels, splats, bins, camera) -> dict[str, int]:
    """The same counts from compositing one pixel after another in plain Python."""
    found = dict.fromkeys(COUNTED, 0)
    for k, tile in enumerate(bins.tiles.tolist()):
        rows = [splats.records[v].tolist() for v in bins.splat[bins.starts[k] : bins.starts[k + 1]].tolist()]
        x0, y0 = tile % camera.tiles_x * TILE, tile // camera.tiles_x * TILE
        pixels = {
            (x, y): _composited(kernels, rows, x, y)
            for x in range(x0, min(x0 + TILE, camera.width))
            for y in range(y0, min(y0 + TILE, camera.height))
        }
        found["instances_forward"] += max(end for end, _ in pixels.values())
        found["instances_backward"] += max(max(blended, default=0) for _, blended in pixels.values())
        found["blended_pairs"] += sum(len(blended) for _, blended in pixels.values())
        for kind, width, height in (("evaluations", SUBTILE_WIDTH, SUBTILE_HEIGHT), ("cells", CELL, CELL)):
            patches: dict[tuple[int, int], list[tuple[int, set[int]]]] = {}
            for (x, y), of_pixel in pixels.items():
                patches.setdefault((x - (x - x0) % width, y - (y - y0) % height), []).append(of_pixel)
            for (x, y), own in patches.items():
                box = x, y, min(x + width, camera.width), min(y + height, camera.height)
                reached = [i + 1 for i, r in enumerate(rows) if _touches(r, box, kernels.convention.alpha_min)]
                end, last = max(end for end, _ in own), max(max(blended, default=0) for _, blended in own)
                found[f"{kind}_forward"] += sum(number <= end for number in reached)
                found[f"{kind}_backward"] += sum(number <= last for number in reached)
                if kind == "evaluations":
                    found["evaluations_blending"] += len(set().union(*(blended for _, blended in own)))
    return found


def _composited(kernels, rows: list[list[float]], x: int, y: int) -> tuple[int, set[int]]:
    """How many entries the pixel goes through, and the numbers (from 1) of those that it blends."""
    convention, light, blended = kernels.convention, 1.0, set()
    for number, r in enumerate(rows, start=1):
        dx, dy = x + 0.5 - r[0], y + 0.5 - r[1]
        sigma = 0.5 * (r[2] * dx * dx + r[4] * dy * dy) + r[3] * dx * dy
        alpha = min(convention.alpha_max, r[layout.RECORD_OPACITY] * math.exp(-sigma))
        if sigma < 0 or alpha < convention.alpha_min:
            continue
        if light * (1 - alpha) < kernels.stop:
            return number, blended
        light *= 1 - alpha
        blended.add(number)
    return len(rows), blended


def _touches(r: list[float], box: tuple[int, int, int, int], alpha_min: float) -> bool:
    """By sampling each edge of the rectangle of pixel centres densely: sigma is smallest there or at the mean."""
    x0, y0, x1, y1 = box[0] + 0.5, box[1] + 0.5, box[2] - 0.5, box[3] - 0.5
    if x0 <= r[0] <= x1 and y0 <= r[1] <= y1:
        return True
    steps = torch.linspace(0, 1, 400, dtype=torch.float64)
    xs, ys = x0 + (x1 - x0) * steps, y0 + (y1 - y0) * steps
    edge_x = torch.cat([xs, xs, torch.full_like(ys, x0), torch.full_like(ys, x1)]) - r[0]
    edge_y = torch.cat([torch.full_like(xs, y0), torch.full_like(xs, y1), ys, ys]) - r[1]
    sigma = 0.5 * (r[2] * edge_x**2 + r[4] * edge_y**2) + r[3] * edge_x * edge_y
    return bool(sigma.min() <= math.log(r[layout.RECORD_OPACITY] / alpha_min))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 37), height=st.integers(1, 21))
def test_counts_are_those_of_compositing_pixel_by_pixel(parity, seed, width, height):
    kernels = parity.oracle(parity.kernels("reference"))
    found, splats, bins, _ = counted(kernels, parity.view(seed, gaussians=12, width=width, height=height))
    expected = by_pixel_and_splat(kernels, splats, bins, parity.view(seed, width=width, height=height).camera)
    for name, value in expected.items():
        # Sampling edges may miss an ellipse that only just touches a sub-tile.
        exact = name.startswith(("instances", "blended")) or name == "evaluations_blending"
        slack = 0 if exact else 1 + value // 50
        assert value <= getattr(found, name) <= value + slack, name


def test_counts_nest_as_their_definitions_do(parity):
    kernels = parity.kernels("portable")
    found, splats, bins, raster = counted(kernels, parity.view(3, gaussians=400))
    assert (found.gaussians, found.visible, found.instances) == (400, splats.count, bins.instances)
    assert (found.pixels, found.tiles) == (50 * 40, 4 * 3)
    assert 0 < found.instances_backward <= found.instances_forward <= found.instances
    assert 0 < found.evaluations_blending <= found.evaluations_backward <= found.evaluations_forward
    assert found.evaluations_forward < found.cells_forward <= 2 * found.evaluations_forward
    assert found.evaluations_backward < found.cells_backward <= 2 * found.evaluations_backward
    assert found.evaluations_blending <= found.blended_pairs <= 32 * found.evaluations_blending
    assert found.active_lanes == found.blended_pairs / found.evaluations_forward
    assert found.blended_pairs >= int((raster.last > 0).sum())


def test_opaque_layers_end_every_list_at_the_one_that_stops(parity):
    """Alpha 0.95 each: the fourth would leave 6e-6 of the light, less than the stop, and is not blended."""
    view = parity.view(1, gaussians=5, width=16, height=16)
    records = torch.zeros(5, layout.RECORD, dtype=torch.float64)
    records[:, layout.RECORD_MEAN2D] = 8.0
    records[:, layout.RECORD_CONIC] = torch.tensor([1e-9, 0.0, 1e-9], dtype=torch.float64)
    records[:, layout.RECORD_OPACITY] = 0.95
    records[:, layout.RECORD_DEPTH] = torch.arange(5) + 1.0
    records[:, layout.RECORD_RADIUS] = 1e5
    kernels, work = parity.oracle(parity.kernels("reference")), Workspace()
    splats = op.Splats(torch.arange(5), torch.arange(5), records)
    bins = op.bin_splats(kernels, splats, view.camera, work)
    raster = op.raster_forward(kernels, splats, bins, view.camera, work)
    found = workload(kernels, 5, splats, bins, raster, view.camera)
    assert (found.instances, found.instances_forward, found.instances_backward) == (5, 4, 3)
    assert (found.blended_pairs, found.evaluations_blending) == (768, 24)
    assert (found.evaluations_forward, found.evaluations_backward) == (32, 24)
    assert (found.cells_forward, found.cells_backward) == (64, 48)
    assert found.active_lanes == 24


def test_a_view_that_sees_nothing_has_no_work(parity):
    view = parity.view(1, gaussians=4).having(0, mean=[0.0, 0.0, -1e6])
    found, *_ = counted(parity.kernels("portable"), view.only([0]))
    assert found == Workload(1, 0, 2000, 12, *[0] * 9)
    assert found.active_lanes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("convention", ["standard", "gsplat153"])
@pytest.mark.parametrize(("seed", "gaussians", "size"), [(1, 30, (16, 16)), (2, 3000, (133, 75)), (3, 1, (7, 3))])
def test_the_compiled_counter_counts_what_the_reference_does(parity, convention, seed, gaussians, size):
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    kernels = op.KernelSet("compiled", torch.device("cuda", 0), parity.kernels("reference", convention).convention)
    view = parity.view(seed, gaussians=gaussians, width=size[0], height=size[1])
    found, splats, bins, raster = counted(kernels, view, "cuda")
    expected = workload(parity.oracle(kernels), gaussians, splats, bins, raster, view.camera)
    for name in Workload.__dataclass_fields__:
        one, other = getattr(found, name), getattr(expected, name)
        # float32 falls on the other side of a threshold in a few of these.
        assert abs(one - other) <= 2 + 0.002 * other, f"{name}: {one} and {other}"


@pytest.mark.gpu
def test_the_compiled_counter_takes_a_view_that_sees_nothing(parity):
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    view = parity.view(1, gaussians=4).having(0, mean=[0.0, 0.0, -1e6])
    kernels = op.KernelSet("compiled", torch.device("cuda", 0))
    found, *_ = counted(kernels, view.only([0]), "cuda")
    assert found == Workload(1, 0, 2000, 12, *[0] * 9)
