"""What the compiled raster is given and gives back, as far as it needs no GPU; and its gradients' memory, on one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.compiled.raster import aligned_records, raster_backward
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.workspace import Workspace

CAMERA = Camera(16, 16, 20.0, 20.0, 8.0, 8.0, np.eye(4))


def words(count: int) -> torch.Tensor:
    """Records as `project` leaves them."""
    return torch.rand(count, layout.RECORD_STRIDE)[:, : layout.RECORD]


def test_records_in_words_of_16_bytes_are_read_where_they_lie():
    records = words(5)
    assert aligned_records(records, Workspace()) is records


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("kind", ["packed", "other stride", "not aligned", "filtered"])
def test_other_records_are_copied_into_words_of_16_bytes(kind, count):
    records = {
        "packed": torch.rand(count, layout.RECORD),
        "other stride": torch.rand(count, 16)[:, : layout.RECORD],
        "not aligned": torch.rand(1 + 12 * count)[1:].view(count, 12)[:, : layout.RECORD],
        "filtered": words(count + 1)[torch.arange(count)],
    }[kind]
    aligned = aligned_records(records, Workspace())
    assert torch.equal(aligned, records)
    assert aligned.data_ptr() % 16 == 0
    assert count == 0 or aligned.stride() == (layout.RECORD_STRIDE, 1)


def test_a_raster_of_another_back_end_is_refused():
    pixel = torch.zeros(16, 16)
    other = Raster(torch.zeros(16, 16, 3), pixel, pixel, pixel.to(torch.uint8), pixel.to(torch.int32), pixel)
    none = torch.zeros(0, dtype=torch.int64)
    splats = Splats(none, none, words(0))
    bins = Bins(torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int64), none.to(torch.int32), none, none)
    with pytest.raises(ValueError, match="needs the raster of its own raster_forward"):
        raster_backward(
            KernelSet("compiled"), splats, bins, other, CAMERA, torch.zeros(16, 16, 3), Workspace(), *[None] * 5
        )


@pytest.mark.gpu
def test_gradients_lie_in_words_of_16_bytes_and_are_zero_where_nothing_blends(parity):
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    device = torch.device("cuda", 0)
    kernels, view, work = KernelSet("compiled", device), parity.view(2), Workspace(device)
    splats = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, work)
    tiles = torch.zeros(1, dtype=torch.int32, device=device)
    bins = op.bin_splats(kernels, splats, view.camera, work, tiles)
    raster = op.raster_forward(kernels, splats, bins, view.camera, work)
    upstream = torch.ones((*view.pixels, 3), device=device)
    gradients = op.raster_backward(kernels, splats, bins, raster, view.camera, upstream, work)
    assert gradients.stride() == (layout.GRADIENT_STRIDE, 1)
    assert gradients.data_ptr() % 16 == 0
    listed = torch.zeros(splats.count, dtype=torch.bool, device=device)
    listed[bins.splat.long()] = True
    assert (gradients[~listed] == 0).all()
    assert gradients[listed].any()


@pytest.mark.gpu
def test_repeated_passes_leave_the_same_image_whichever_block_comes_first(parity):
    """Blocks share long lists and finish in any order; what they leave is added up in one."""
    if not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    device = torch.device("cuda", 0)
    kernels, work = KernelSet("compiled", device, t_stop=0.0), Workspace(device)
    view = parity.view(4, gaussians=30_000, sizes=(3.0, 12.0))
    parameters = view.parameters.to(device)
    parameters[:, layout.OPACITY_LOGIT] = -4.0
    splats = op.project(kernels, parameters, view.ids.to(device), view.camera, 3, work)
    bins = op.bin_splats(kernels, splats, view.camera, work)
    assert bins.starts.diff().max() > 3000
    first = op.raster_forward(kernels, splats, bins, view.camera, Workspace(device))
    for _ in range(20):
        again = op.raster_forward(kernels, splats, bins, view.camera, work)
        # By how much segments attenuate may be taken from either of two sources: a few units in the last place.
        assert torch.equal(again.last, first.last)
        parity.close(again.colour, first.colour, 1e-6)
        parity.close(again.transmittance, first.transmittance, 1e-5)
