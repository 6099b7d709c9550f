"""Threads and memory of the portable back end: results depend on neither, and a steady step takes no new memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from cuda_src import layout, operators
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from cuda_src.portable.threads import even_ranges, run_ranges, weighted_ranges
from cuda_src.workspace import Workspace


def gaussians(count: int, seed: int) -> torch.Tensor:
    """Rows 0-49 opaque and large, so that pixels stop."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, layout.PARAMETERS, generator=generator) * 0.3
    rows[:, layout.MEAN] = torch.randn(count, 3, generator=generator) + torch.tensor([0.0, 0.0, 4.0])
    rows[:, layout.LOG_SCALE] -= 3.0
    rows[:, layout.QUATERNION] = torch.randn(count, 4, generator=generator)
    rows[:50, layout.OPACITY_LOGIT] = 6.0
    rows[:50, layout.LOG_SCALE] += 2.0
    return rows


def step(kernels: KernelSet, workspace: Workspace, seed: int = 0, count: int = 3000) -> list[torch.Tensor]:
    """One training step; copies of all that it computes."""
    camera = Camera(150, 101, 120.0, 125.0, 70.0, 55.0, np.eye(4))
    parameters = gaussians(count, seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(count, generator=generator)
    target = torch.randint(0, 256, (101, 150, 3), dtype=torch.uint8, generator=generator)
    splats = operators.project(kernels, parameters, ids, camera, 3, workspace)
    bins = operators.bin_splats(kernels, splats, camera, workspace)
    raster = operators.raster_forward(kernels, splats, bins, camera, workspace)
    loss = operators.l1_ssim(kernels, raster.colour, target, workspace)
    gradients = operators.raster_backward(kernels, splats, bins, raster, camera, loss.gradient, workspace)
    by_rows = operators.project_backward(kernels, parameters, splats, camera, 3, gradients, workspace)
    moment1, moment2 = torch.zeros_like(parameters), torch.zeros_like(parameters)
    views = torch.ones(splats.count, dtype=torch.int32)
    rates = torch.full((layout.PARAMETERS,), 1e-2)
    operators.adam_rows(kernels, parameters, moment1, moment2, splats.rows, by_rows, views, rates, 1)
    assert raster.stopped.any()
    results = [splats.rows, splats.ids, splats.records, bins.starts, bins.splat, bins.slot, bins.splat_starts]
    results += [raster.colour, raster.transmittance, raster.depth, raster.stopped, raster.last, loss.value]
    results += [loss.gradient, gradients, by_rows, parameters, moment1, moment2]
    return [tensor.clone() for tensor in results]


def assert_same(results: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for position, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        assert torch.equal(result, wanted), f"result {position} differs"


@pytest.mark.parametrize("threads", [2, 3])
def test_results_are_bit_equal_for_any_number_of_threads(threads):
    assert_same(step(KernelSet(threads=threads), Workspace()), step(KernelSet(threads=1), Workspace()))


@pytest.mark.parametrize("threads", [1, 2])
def test_several_python_threads_compute_at_once_without_disturbing_each_other(threads):
    kernels = KernelSet(threads=threads)
    expected = [step(kernels, Workspace(), seed) for seed in range(3)]
    together = threading.Barrier(3)

    def work(seed: int) -> None:
        workspace = Workspace()
        together.wait()
        for _ in range(3):
            assert_same(step(kernels, workspace, seed), expected[seed])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_repeated_step_takes_no_more_workspace(threads):
    workspace = Workspace()
    first = step(KernelSet(threads=threads), workspace)
    peak = workspace.peak_bytes
    second = step(KernelSet(threads=threads), workspace)
    assert workspace.peak_bytes == peak
    assert workspace.bytes == peak
    assert_same(second, first)


def test_ranges_cover_everything_once_and_in_order():
    for ranges in (
        even_ranges(1000, 2, least=10),
        even_ranges(1000, 1),
        even_ranges(7, 4, least=1),
        weighted_ranges(np.cumsum([0, *([0, 90, 3, 0] * 250)]), 1, 2),
    ):
        rows = [row for lo, hi in ranges for row in range(lo, hi)]
        assert rows == list(range(len(rows)))
        assert all(hi > lo for lo, hi in ranges)
        assert len(rows) in (1000, 7)
    assert even_ranges(0, 2) == []
    assert weighted_ranges(np.zeros(1, dtype=np.int64), 1, 2) == []


def test_weighted_ranges_balance_cost_rather_than_count():
    cost = np.array([1000, *([1] * 1000)])
    ranges = weighted_ranges(np.concatenate([[0], np.cumsum(cost)]), 0, 1 + 1)
    assert max(int(cost[lo:hi].sum()) for lo, hi in ranges) <= 1000 + 2000 // 8


def test_an_error_in_a_range_reaches_the_caller():
    def work(chunk: int, lo: int, hi: int) -> None:
        if lo == 3:
            raise ZeroDivisionError("range 3")

    with pytest.raises(ZeroDivisionError, match="range 3"):
        run_ranges(2, [(k, k + 1) for k in range(8)], work)
