"""Lists of more than 2^31 bytes, and more instances than have numbers: each splat covers every tile of 1920x1080."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.operators import Splats
from cuda_src.workspace import Workspace

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CAMERA = Camera(1920, 1080, 1000.0, 1000.0, 960.0, 540.0, np.eye(4))
SPLATS = 70_000
"""571 million instances: 2.3 GB of lists, 9 GB to sort them in."""
OPAQUE = 60
"""Splats after which no pixel has light left."""
NEEDED = 20 << 30
"""Bytes of the device that the test takes."""


def covering(count: int) -> Splats:
    """Splats as wide as the image, in no order of their depths."""
    generator = torch.Generator().manual_seed(count)
    records = torch.zeros(count, layout.RECORD)
    records[:, layout.RECORD_MEAN2D] = torch.tensor([960.0, 540.0]) + torch.randn(count, 2, generator=generator)
    records[:, layout.RECORD_CONIC] = torch.tensor([1e-6, 0.0, 1e-6])
    records[:, layout.RECORD_OPACITY] = 0.5
    records[:, layout.RECORD_COLOUR] = torch.rand(count, 3, generator=generator)
    records[:, layout.RECORD_DEPTH] = 1 + torch.randperm(count, generator=generator) / 64
    records[:, layout.RECORD_RADIUS] = 3000.0
    numbers = torch.arange(count)
    return Splats(numbers, numbers, records)


def nearest(splats: Splats, left: int, top: int) -> Splats:
    """The first splats that any pixel meets, in float64, before a camera whose first pixel is (left, top)."""
    rows = splats.records[:, layout.RECORD_DEPTH].argsort()[:OPAQUE]
    records = splats.records[rows].double()
    records[:, layout.RECORD_MEAN2D] -= torch.tensor([left, top], dtype=torch.float64)
    return Splats(rows, rows, records)


def test_lists_beyond_two_gigabytes_are_sorted_composited_and_differentiated(parity, kernels, device):
    if torch.cuda.mem_get_info(device)[0] < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of free memory on the GPU")
    splats, work = covering(SPLATS), Workspace(device)
    there = Splats(splats.rows.to(device), splats.ids.to(device), splats.records.to(device))
    bins = op.bin_splats(kernels, there, CAMERA, work)
    assert bins.instances == CAMERA.tiles * SPLATS > 1 << 29
    assert bins.starts.tolist() == list(range(0, bins.instances + 1, SPLATS))
    order = splats.records[:, layout.RECORD_DEPTH].argsort().to(device, torch.int32)
    for tiles in bins.splat.view(CAMERA.tiles, SPLATS).split(1000):
        assert (tiles == order).all()

    raster = op.raster_forward(kernels, there, bins, CAMERA, work)
    grad = torch.randn(CAMERA.height, CAMERA.width, 3, generator=torch.Generator().manual_seed(1)).to(device)
    grad[:1072] = 0  # All that the gradients come from is the last row of tiles, behind 2 GB of lists.
    grad[:, :1904] = 0
    gradient = op.raster_backward(kernels, there, bins, raster, CAMERA, grad, work).cpu()
    oracle = parity.oracle(kernels)
    for left, top, height in ((0, 0, 16), (1904, 1072, 8)):
        camera = Camera(16, height, 1000.0, 1000.0, 0.0, 0.0, np.eye(4))
        near = nearest(splats, left, top)
        lists = op.bin_splats(oracle, near, camera, Workspace())
        exact = op.raster_forward(oracle, near, lists, camera, Workspace())
        assert (exact.stopped > 0).all()
        here = (slice(top, top + height), slice(left, left + 16))
        parity.close(raster.colour[here].cpu(), exact.colour, 1e-4, "colour")
    expected = op.raster_backward(
        oracle, near, lists, exact, camera, grad[here].cpu().double(), Workspace()
    )  # fmt: skip
    parity.groups_close(gradient[near.rows], expected, parity.record_groups, 1e-3)
    beyond = torch.ones(SPLATS, dtype=torch.bool)
    beyond[near.rows] = False
    assert not gradient[beyond].any()


def test_more_instances_than_have_numbers_are_refused_by_their_count(kernels, device):
    if torch.cuda.mem_get_info(device)[0] < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of free memory on the GPU")
    count = (1 << 31) // CAMERA.tiles + 1
    splats = covering(count)
    there = Splats(splats.rows.to(device), splats.ids.to(device), splats.records.to(device))
    with pytest.raises(RuntimeError, match=f"^{count * CAMERA.tiles} tile instances in one view; expected fewer than"):
        op.bin_splats(kernels, there, CAMERA, Workspace(device))
