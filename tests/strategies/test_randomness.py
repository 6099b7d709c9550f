"""Counter-based randomness: a number is a function of its keys alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.randomness import bits, normal, permutation, uniform

seeds = st.integers(-(2**63), 2**63 - 1)
bounded = settings(max_examples=25, deadline=None)


def splitmix64(state: int) -> int:
    """SplitMix64's finaliser on unbounded integers (Steele, Lea, Flood 2014)."""
    state &= 2**64 - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return state ^ (state >> 31)


@bounded
@given(seed=seeds, stream=st.integers(0, 1000), counter=seeds)
def test_bits_are_those_of_integer_arithmetic_without_overflow(seed, stream, counter):
    golden = 0x9E3779B97F4A7C15
    key = splitmix64(splitmix64(seed * golden + stream) + golden)
    expected = splitmix64(splitmix64(counter * golden + key) + golden)
    actual = bits(seed, stream, torch.tensor([counter])).item()
    assert actual % 2**64 == expected


@bounded
@given(seed=seeds, stream=st.integers(0, 1000), cut=st.integers(0, 50))
def test_numbers_depend_on_neither_order_nor_company(seed, stream, cut):
    counters = torch.arange(50) * 1_000_003
    whole = uniform(seed, stream, counters)
    assert torch.equal(torch.cat([uniform(seed, stream, counters[:cut]), uniform(seed, stream, counters[cut:])]), whole)
    assert torch.equal(uniform(seed, stream, counters.flip(0)), whole.flip(0))
    assert torch.equal(uniform(seed, stream, counters.view(5, 10)), whole.view(5, 10))


def test_uniform_numbers_fill_the_half_open_unit_interval_evenly():
    values = uniform(0, 1, torch.arange(200_000))
    assert values.min() >= 0
    assert values.max() < 1
    counts = torch.histc(values, bins=20, min=0, max=1)
    # Each bin is binomial with deviation 97; six deviations.
    assert (counts - 10_000).abs().max() < 600


def test_normal_numbers_have_the_moments_of_a_standard_normal():
    values = normal(3, 2, torch.arange(200_000)).double()
    assert torch.isfinite(values).all()
    # Standard errors: mean 0.0022, variance 0.0032, fourth moment 0.022.
    assert abs(values.mean().item()) < 0.012
    assert values.var().item() == pytest.approx(1, abs=0.02)
    assert (values**4).mean().item() == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize(("one", "other"), [((0, 1), (0, 2)), ((0, 1), (1, 1)), ((0, 1), (1, 0)), ((-1, 0), (1, 0))])
def test_seeds_and_streams_are_independent(one, other):
    counters = torch.arange(20_000)
    a, b = uniform(*one, counters).double(), uniform(*other, counters).double()
    # A correlation of independent numbers has deviation 0.007.
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 0.04


def test_neighbouring_counters_differ_in_half_of_their_bits():
    raw = bits(7, 0, torch.arange(4096))
    changed = raw[1:] ^ raw[:-1]
    share = torch.stack([(changed >> k) & 1 for k in range(64)]).double().mean(dim=1)
    # Per bit, 4095 tosses: deviation 0.008.
    assert (share - 0.5).abs().max() < 0.05


@bounded
@given(seed=seeds, n=st.integers(0, 200))
def test_a_permutation_holds_every_number_once(seed, n):
    assert permutation(seed, 1, n).sort().values.tolist() == list(range(n))


def test_permutations_differ_by_seed_and_stream_but_repeat_for_the_same():
    orders = [permutation(seed, stream, 30).tolist() for seed in (0, 1) for stream in (1, 17)]
    assert len({tuple(order) for order in orders}) == 4
    assert permutation(0, 1, 30).tolist() == orders[0]
