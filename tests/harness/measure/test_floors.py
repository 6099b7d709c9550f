"""Floors: bytes and instructions from counted work, and the slower of the two decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuda_src.workload import Workload
from harness.measure.floors import OPERATORS, Rates, Work, floor_seconds
from harness.measure.rates import copy_bandwidth, issue_rate, measured_rates

NOTHING = Workload(0, 0, 0, 0, *[0] * 9)
AERIAL = Workload(
    gaussians=20_000_000,
    visible=3_400_000,
    pixels=1920 * 1080,
    tiles=8160,
    instances=6_600_000,
    instances_forward=6_000_000,
    instances_backward=5_500_000,
    blended_pairs=70_000_000,
    evaluations_forward=12_900_000,
    evaluations_backward=12_000_000,
    evaluations_blending=10_000_000,
    cells_forward=19_000_000,
    cells_backward=18_000_000,
)
H200 = Rates(bandwidth=4.2e12, issue=924e9)


def moved(operator: str, counted: Workload = AERIAL, degree: int = 3) -> float:
    return OPERATORS[operator].bytes(Work(counted, degree))


def test_moving_a_visible_row_takes_its_parameters_and_moments_twice_over():
    one = replace(NOTHING, visible=1)
    assert moved("project_backward_adam", one) == 1416 + 44 + 40 + 8
    assert moved("adam_rows", one) == 1416 + 236 + 8
    assert moved("project_backward", one) == 44 + 40 + 8 + 236 + 236


def test_culling_reads_a_byte_of_every_gaussian_and_whole_rows_only_of_visible_ones():
    assert moved("project", replace(NOTHING, gaussians=1000)) == 1000
    assert moved("project", replace(NOTHING, visible=1)) == 236 + 8 + 44
    assert moved("project", replace(NOTHING, visible=1), degree=0) == 44 + 12 + 8 + 44


def test_lists_are_written_and_sorted_once_whatever_the_image():
    assert moved("bin_splats", replace(NOTHING, visible=1, tiles=256)) - 257 * 8 == 32
    for tiles in (1, 256, 257):
        assert moved("bin_splats", replace(NOTHING, instances=1, tiles=tiles)) - (tiles + 1) * 8 == 4 + 16


def test_pixels_cost_their_pictures():
    pixel = replace(NOTHING, pixels=1)
    assert [moved(name, pixel) for name in ("raster_forward", "l1_ssim", "raster_backward")] == [29, 27, 20]


@given(st.sampled_from(sorted(OPERATORS)), st.sampled_from(sorted(Workload.__dataclass_fields__)), st.integers(0, 3))
def test_more_work_never_takes_less(operator, field, degree):
    more = replace(AERIAL, **{field: getattr(AERIAL, field) * 2})
    for rates in (H200, Rates(4.2e12, None)):
        assert floor_seconds(operator, Work(more, degree), rates) >= floor_seconds(
            operator, Work(AERIAL, degree), rates
        )
    assert floor_seconds(operator, Work(NOTHING, degree), H200) <= 1e-9


def test_the_slower_of_memory_and_issue_is_the_floor():
    work = Work(AERIAL, 3)
    forward = OPERATORS["raster_forward"]
    assert forward.instructions is not None
    assert floor_seconds("raster_forward", work, H200) == forward.instructions(work) / H200.issue
    assert floor_seconds("raster_forward", work, Rates(1e9, 924e9)) == forward.bytes(work) / 1e9
    assert floor_seconds("raster_forward", work, Rates(4.2e12, None)) == forward.bytes(work) / 4.2e12


def test_the_floor_of_a_step_at_20_million_is_a_few_milliseconds():
    names = ("project", "bin_splats", "raster_forward", "l1_ssim", "raster_backward", "project_backward_adam")
    step = sum(floor_seconds(name, Work(AERIAL, 3), H200) for name in names)
    assert 2e-3 < step < 6e-3


def test_a_copy_is_timed_by_bytes_read_and_written():
    rates = measured_rates(torch.device("cpu"), None)
    assert rates.issue is None
    assert 1e8 < rates.bandwidth < 1e13
    assert copy_bandwidth(torch.device("cpu"), 1 << 16) > 0


@pytest.mark.gpu
def test_a_gpu_copies_and_issues_as_fast_as_its_kind():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    device = torch.device("cuda", 0)
    assert copy_bandwidth(device) > 2e11
    properties = torch.cuda.get_device_properties(device)
    assert issue_rate(device, 1.5e9) == properties.multi_processor_count * 4 * 1.5e9
