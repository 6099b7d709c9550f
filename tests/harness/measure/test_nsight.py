"""Nsight Compute's CSV: sums by operator, and what is not there stays absent."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness.measure.nsight import (
    ISSUE_ACTIVE,
    METRICS,
    RANGE,
    WARPS_ACTIVE,
    Counted,
    UnreadableError,
    find_ncu,
    profiling_command,
    read_csv,
)

SAMPLE = (Path(__file__).parent / "ncu_raw.csv").read_text()


def test_kernels_of_one_range_are_summed_and_others_left_out():
    found = read_csv(SAMPLE)
    assert list(found) == ["project", "raster_forward"]
    project = found["project"]
    assert project.kernels == 2
    assert project.dram_bytes == 1_884_160_000 + 2_560_000 + 803_000_000 + 151_000_000
    assert project.l2_bytes == 2_011_000_064 + 1_004_000_000
    assert project.instructions == 137_250_000
    assert project.seconds == pytest.approx(903_112e-9)
    assert project.l2_reductions == 1000


def test_shares_are_means_over_the_time_of_kernels():
    project = read_csv(SAMPLE)["project"]
    assert project.issue_active == pytest.approx((0.2 * 562_112 + 0.8 * 341_000) / 903_112)
    assert project.warps_active == pytest.approx((0.5 * 562_112 + 0.25 * 341_000) / 903_112)


@pytest.mark.parametrize(("name", "there"), [(ISSUE_ACTIVE, "warps_active"), (WARPS_ACTIVE, "issue_active")])
def test_a_profiler_without_a_counter_that_is_not_needed_counts_the_others(name, there):
    found = read_csv(SAMPLE.replace(name, "another"))["raster_forward"]
    assert found.dram_bytes == 250e6
    assert getattr(found, there) > 0
    assert [math.isnan(found.issue_active), math.isnan(found.warps_active)].count(True) == 1


def test_units_that_were_scaled_for_people_are_scaled_back():
    text = SAMPLE.replace('"byte","byte","nsecond"', '"Mbyte","Kbyte","us"')
    text = text.replace('"190,000,000","60,000,000","1,102,000"', '"190.5","60,000.25","1,102.5"')
    found = read_csv(text)["raster_forward"]
    assert found.dram_bytes == pytest.approx(190.5e6 + 60_000.25e3)
    assert found.seconds == pytest.approx(1102.5e-6)


def test_the_range_is_found_in_a_column_of_its_own_too():
    text = SAMPLE.replace('"operator.raster_forward"', '"composite"').replace(
        '"(8160, 1, 1)"', f'"{RANGE}raster_forward"'
    )
    assert read_csv(text)["raster_forward"] == read_csv(SAMPLE)["raster_forward"]


def test_what_was_not_counted_is_no_number():
    text = SAMPLE.replace('"190,000,000"', '"n/a"')
    found = read_csv(text)["raster_forward"]
    assert math.isnan(found.dram_bytes)
    assert found.instructions == 402_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no table"),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission to access GPU counters", "ERR_NVGPUCTRPERM"),
        (SAMPLE.replace("lts__t_bytes.sum", "other"), "no column lts__t_bytes.sum"),
        ("\n".join(line for line in SAMPLE.splitlines() if '"byte"' not in line), "no row of units"),
    ],
)
def test_output_without_the_table_says_why(text, said):
    with pytest.raises(UnreadableError, match=said):
        read_csv(text)


def test_a_table_without_kernels_counts_nothing():
    head = "\n".join(SAMPLE.splitlines()[:7])
    assert read_csv(head) == {}
    assert read_csv(head.rsplit("\n", 1)[0]) == {}


def test_the_command_profiles_only_what_the_program_asks_for(tmp_path):
    command = profiling_command(Path("/opt/ncu"), tmp_path / "log", ["python", "-m", "x"])
    assert command[0] == "/opt/ncu"
    assert command[-3:] == ["python", "-m", "x"]
    text = " ".join(command)
    for words in ("--clock-control none", "--profile-from-start off", "--print-units base", ",".join(METRICS)):
        assert words in text


def test_the_profiler_is_looked_for_on_the_path_and_in_cuda_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert find_ncu() is None
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_ncu() == program
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.delenv("CUDA_HOME")
    assert find_ncu() == program


def test_counts_of_one_operator_are_plain_numbers():
    assert read_csv(SAMPLE)["raster_forward"] == Counted(
        1, 250e6, 2_904e6, 402e6, pytest.approx(1.102e-3), pytest.approx(0.6125), pytest.approx(0.625), 0
    )
