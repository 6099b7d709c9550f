"""How sure a median is, and when measuring may stop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.measure.statistics import enough, median, median_noise, percentile
from harness.suite.cell import Stop

positive = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=40)


def test_noise_is_the_formula_of_its_docstring():
    # Median 3, absolute deviations 2 1 0 1 2: MAD 1.
    assert median_noise([1, 2, 3, 4, 5]) == pytest.approx(1.4826 * 1 * 1.253 / math.sqrt(5) / 3)


def test_noise_of_normal_samples_is_the_standard_error_of_their_median():
    generator = np.random.default_rng(0)
    medians = [np.median(generator.normal(10, 1, 400)) for _ in range(400)]
    assert median_noise(generator.normal(10, 1, 400)) == pytest.approx(np.std(medians) / 10, rel=0.25)


def test_one_outlier_hardly_moves_it():
    calm = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.01, 0.99, 1.0, 1.01]
    assert median_noise([*calm, 1000.0]) < 2 * median_noise(calm)


@settings(max_examples=25, deadline=None)
@given(positive, st.floats(0.1, 10.0))
def test_noise_is_relative(samples, factor):
    assert median_noise([factor * s for s in samples]) == pytest.approx(median_noise(samples), abs=1e-9)


def test_few_or_degenerate_samples():
    assert median_noise([]) == math.inf
    assert median_noise([1.0]) == math.inf
    assert median_noise([2.0, 2.0, 2.0]) == 0.0
    assert median_noise([-1.0, 0.0, 1.0]) == math.inf
    assert math.isnan(median([]))
    assert math.isnan(percentile([], 50))
    assert percentile([0.0, 10.0], 25) == 2.5


def test_a_series_needs_its_passes_and_calm():
    stop = Stop(noise=0.01, min_passes=5, max_seconds=60)
    assert not enough([1.0] * 4, stop, 1.0)
    assert enough([1.0] * 5, stop, 1.0)
    assert not enough([1.0, 2.0, 1.0, 2.0, 3.0], stop, 1.0)


def test_the_cap_ends_any_series():
    stop = Stop(noise=1e-9, min_passes=1000, max_seconds=60)
    assert enough([1.0, 5.0], stop, 60.0)
    assert not enough([1.0, 5.0], stop, 59.9)
