"""Portable CUDA kernels in Numba's simulator against `reference` in float64: run with NUMBA_ENABLE_CUDASIM=1.

The simulator runs some 600 threads a second: views of one or two tiles, a few Gaussians.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

# As in NumPy 2.5, where numba-cuda misses it.
if "row_stack" in vars(np):
    del np.row_stack  # noqa: NPY201

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.portable.on_cuda import runtime
from cuda_src.workspace import Workspace

KERNELS = op.KernelSet("portable", torch.device("cuda"))
EXACT = op.KernelSet("reference", precision="float64")
GENERATOR = torch.Generator().manual_seed(3)


def close(ours: torch.Tensor, exact: torch.Tensor, tolerance: float, what: str) -> None:
    assert ours.shape == exact.shape, what
    assert torch.isfinite(ours).all(), what
    if exact.numel():
        error = (ours.double() - exact.double()).abs().max().item()
        assert error <= tolerance * max(exact.abs().max().item(), 1e-12), f"{what}: {error}"


def double(values: torch.Tensor | None) -> torch.Tensor | None:
    return values if values is None or not values.dtype.is_floating_point else values.double()


def gaussians(count: int) -> torch.Tensor:
    parameters = 0.3 * torch.randn(count, layout.PARAMETERS, generator=GENERATOR)
    parameters[:, 2] = 1.0 + 3.0 * torch.rand(count, generator=GENERATOR)
    parameters[:, layout.LOG_SCALE] -= 1.5
    parameters[0, 2] = -1.0  # Behind the camera.
    return parameters


def check_view(camera: Camera, limited: bool) -> None:
    """project to project_backward; limited: a tile left out, sub-tiles, a depth limit, ranges, every upstream."""
    parameters, ids, work = gaussians(9), torch.arange(9).flip(0), Workspace()
    splats = op.project(KERNELS, parameters, ids, camera, 3, work)
    expected = op.project(EXACT, parameters.double(), ids, camera, 3, Workspace())
    assert splats.rows.tolist() == expected.rows.tolist()
    assert splats.ids.tolist() == expected.ids.tolist()
    close(splats.records, expected.records, 1e-5, "records")
    if splats.count > 1:
        splats.records[-1, layout.RECORD_DEPTH] = splats.records[0, layout.RECORD_DEPTH]  # A tie.
    splats64 = replace(splats, records=splats.records.double())

    tiles = subtiles = limit = start = ranges = grad_transmittance = grad_depth = None
    size, background = (camera.height, camera.width), torch.tensor([0.2, 0.7, 0.4])
    if limited:
        tiles = torch.tensor([1], dtype=torch.int32)
        subtiles = torch.tensor([255, 0b10110110], dtype=torch.uint8)
        limit = torch.tensor([math.inf, 3.5])
        ranges = torch.tensor([1.2, 3.0]).expand(*size, 2).contiguous()
        background = torch.rand(*size, 3, generator=GENERATOR)
        start, grad_transmittance, grad_depth = (torch.rand(size, generator=GENERATOR) for _ in range(3))
    bins = op.bin_splats(KERNELS, splats, camera, work, tiles, subtiles, limit)
    exact_bins = op.bin_splats(EXACT, splats64, camera, Workspace(), tiles, subtiles, double(limit))
    for name in ("tiles", "starts", "splat", "slot", "splat_starts"):
        assert torch.equal(getattr(bins, name), getattr(exact_bins, name)), name

    given = start, subtiles, ranges, background
    raster = op.raster_forward(KERNELS, splats, bins, camera, work, *given)
    exact = op.raster_forward(EXACT, splats64, bins, camera, Workspace(), *map(double, given))
    for name in ("colour", "transmittance", "depth"):
        close(getattr(raster, name), getattr(exact, name), 1e-5, name)
    for name in ("stopped", "last"):
        assert torch.equal(getattr(raster, name), getattr(exact, name)), name
    upstream = torch.randn(*size, 3, generator=GENERATOR)
    given = background, grad_transmittance, grad_depth, start, ranges
    partial = op.raster_backward(KERNELS, splats, bins, raster, camera, upstream, work, *given)
    exact_partial = op.raster_backward(
        EXACT, splats64, bins, exact, camera, upstream.double(), Workspace(), *map(double, given)
    )
    close(partial, exact_partial, 1e-5, "gradients of splats")
    by_row = op.project_backward(KERNELS, parameters, splats, camera, 3, partial, work)
    exact_rows = op.project_backward(EXACT, parameters.double(), splats64, camera, 3, exact_partial, Workspace())
    close(by_row, exact_rows, 1e-4, "gradients of parameters")


def check_long_list(count: int) -> None:
    """More splats in a tile than a batch holds, on two by two pixels."""
    records = torch.zeros(count, layout.RECORD)
    records[:, 0:2] = 2 * torch.rand(count, 2, generator=GENERATOR)
    records[:, layout.RECORD_CONIC] = torch.tensor([0.4, 0.1, 0.3])
    records[:, layout.RECORD_OPACITY] = 0.02
    records[:, layout.RECORD_COLOUR] = torch.rand(count, 3, generator=GENERATOR)
    records[:, layout.RECORD_DEPTH] = 1 + torch.rand(count, generator=GENERATOR)
    records[:, layout.RECORD_RADIUS] = 6.0
    splats, camera = op.Splats(torch.arange(count), torch.arange(count), records), Camera(2, 2, 9, 9, 1, 1, np.eye(4))
    splats64, upstream = replace(splats, records=records.double()), torch.rand(2, 2, 3, generator=GENERATOR)
    bins, work = op.bin_splats(KERNELS, splats, camera, Workspace()), Workspace()
    raster = op.raster_forward(KERNELS, splats, bins, camera, work)
    exact = op.raster_forward(EXACT, splats64, bins, camera, Workspace())
    assert raster.last.tolist() == exact.last.tolist() == [[count] * 2] * 2
    close(raster.colour, exact.colour, 1e-5, "colour of a long list")
    partial = op.raster_backward(KERNELS, splats, bins, raster, camera, upstream, work)
    exact_partial = op.raster_backward(EXACT, splats64, bins, exact, camera, upstream.double(), Workspace())
    close(partial, exact_partial, 1e-5, "gradients of a long list")


def check_loss(width: int, window: op.LossWindow, halo: op.Halo, tiles: list[int] | None) -> None:
    target = torch.randint(0, 256, (5, width, 3), generator=GENERATOR, dtype=torch.uint8)
    image = (target.float() + torch.rand(target.shape, generator=GENERATOR) - 0.4) / 255
    mask = torch.randint(0, 256, (5, width), generator=GENERATOR, dtype=torch.uint8)
    listed = None if tiles is None else torch.tensor(tiles, dtype=torch.int32)
    given = mask, listed, halo, 0.2, window
    loss = op.l1_ssim(KERNELS, image, target, Workspace(), *given)
    exact = op.l1_ssim(EXACT, image.double(), target, Workspace(), *given)
    for name in ("value", "l1", "ssim"):
        assert abs(getattr(loss, name).item() - getattr(exact, name).item()) < 1e-5, name
    close(loss.gradient, exact.gradient, 1e-4, f"gradient of the loss, {window}")


def check_adam() -> None:
    tables = [torch.rand(4, layout.PARAMETERS, generator=GENERATOR) for _ in range(3)]
    exact = [table.double() for table in tables]
    rows, views = torch.tensor([0, 3]), torch.tensor([1, 4], dtype=torch.int32)
    gradients, rates = torch.randn(2, layout.PARAMETERS, generator=GENERATOR), torch.rand(layout.PARAMETERS)
    gradients[1, 5] = math.nan
    op.adam_rows(KERNELS, *tables, rows, gradients, views, rates, 7)
    op.adam_rows(EXACT, *exact, rows, gradients.double(), views, rates.double(), 7)
    for ours, theirs in zip(tables, exact, strict=True):
        close(ours, theirs, 1e-5, "Adam")


def check_statistics(camera: Camera) -> None:
    numbers, records = torch.tensor([3, 0, 1]), torch.rand(3, layout.RECORD, generator=GENERATOR)
    splats = op.Splats(numbers, numbers, records)
    gradients, ours = torch.randn(3, layout.GRADIENT, generator=GENERATOR), torch.rand(4, layout.STATISTICS)
    gradients[1, 0] = math.inf
    exact = ours.double()
    op.densification_statistics(KERNELS, splats, camera, gradients, ours)
    op.densification_statistics(EXACT, replace(splats, records=records.double()), camera, gradients.double(), exact)
    close(ours, exact, 1e-6, "statistics")


if __name__ == "__main__":
    assert runtime.SIMULATED
    assert hasattr(np, "row_stack")
    wide = Camera(20, 9, 18.0, 19.0, 9.0, 5.0, np.eye(4))
    check_view(wide, limited=False)
    check_view(wide, limited=True)
    check_view(replace(wide, width=1, height=1), limited=False)
    check_long_list(257)
    check_loss(20, op.WHOLE_IMAGE, "exact", [1])
    check_loss(7, op.LossWindow("tile", (27, 30)), "exact", None)
    check_loss(20, op.WHOLE_IMAGE, "none", [0])
    check_loss(7, op.LossWindow("l1"), "exact", None)
    check_adam()
    check_statistics(wide)
    try:
        op.raster_fused(KERNELS, *[None] * 2, wide, None, Workspace(), window=op.LossWindow("l1"))  # type: ignore[arg-type]
    except NotImplementedError as error:
        print(error)
