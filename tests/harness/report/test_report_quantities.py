"""Numbers as people read them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.report.palette import stage_colour, stage_order, strategy_colour
from harness.report.quantities import NONE, count, duration, memory, milliseconds, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.234, "1.23"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
    ],
)
def test_number_has_three_digits_that_matter(value: float, text: str):
    assert number(value) == text


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=1e-3, max_value=1e11))
def test_number_read_back_is_within_half_a_percent(value: float):
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize("absent", [None, math.nan, np.nan, "text"])
def test_absent_values_are_a_dash(absent):
    assert {number(absent), count(absent), memory(absent), duration(absent), milliseconds(absent)} == {NONE}


def test_integers_of_numpy_are_numbers():
    assert count(np.int64(1_234_567)) == "1,234,567"


@pytest.mark.parametrize(
    ("size", "text"), [(812, "812 B"), (999_600, "1.00 MB"), (48e6, "48.0 MB"), (1.234e9, "1.23 GB"), (141e9, "141 GB")]
)
def test_memory_is_in_decimal_units(size: float, text: str):
    assert memory(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.24, "8.2 s"), (59.99, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_duration_is_in_the_units_of_a_clock(seconds: float, text: str):
    assert duration(seconds) == text


def test_fused_stage_stands_and_is_coloured_where_its_first_one_is():
    fused = "raster_forward+loss+raster_backward"
    assert stage_order("bin") < stage_order(fused) < stage_order("raster_backward") < stage_order("unheard_of")
    assert stage_colour(fused) == stage_colour("raster_forward")


def test_strategies_from_outside_have_a_colour_that_stays():
    assert strategy_colour("mine") == strategy_colour("mine")
    assert strategy_colour("mine") != strategy_colour("single")
