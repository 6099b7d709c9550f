"""The rule of verdicts: each outcome with its reason, and no alarm where nothing changed."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evidence.verdicts import CPU_EFFECT, GPU_EFFECT, Verdict, confirm, judge, mann_whitney, minimum_effect

STEADY = (1.00, 1.01, 0.99, 1.005, 0.995)


def scaled(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


@pytest.mark.parametrize(
    ("base", "new", "effect", "verdict", "reason"),
    [
        (STEADY, scaled(1.5), CPU_EFFECT, Verdict.slower, "p = 0.0079"),
        (STEADY, scaled(0.6), CPU_EFFECT, Verdict.faster, "p = 0.0079"),
        (STEADY, scaled(1.04), GPU_EFFECT, Verdict.slower, "p = 0.0079"),
        (STEADY, scaled(1.04), CPU_EFFECT, Verdict.same, "within 10%"),
        (STEADY[:3], scaled(2)[:3], CPU_EFFECT, Verdict.ambiguous, "3 and 3 repeats, 4 each needed"),
        ((1, 1, 1, 2, 2), (1, 1, 2, 2, 2), CPU_EFFECT, Verdict.ambiguous, "beyond 10%, but p = 0.63"),
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), CPU_EFFECT, Verdict.ambiguous, "medians are uncertain by 28%"),
        ((), STEADY, CPU_EFFECT, Verdict.no_data, "A has no measurement"),
        (STEADY, (), CPU_EFFECT, Verdict.no_data, "B has no measurement"),
        ((), (), CPU_EFFECT, Verdict.no_data, "neither side has measurement"),
        ((0, 0, 0, 0), STEADY, CPU_EFFECT, Verdict.no_data, "a median of zero has no ratio"),
    ],
)
def test_every_verdict_comes_with_its_reason(base, new, effect, verdict, reason):
    found = judge(base, new, effect)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_gpus_are_held_to_three_per_cent_and_cpus_to_ten():
    assert minimum_effect("cuda") == 0.03
    assert minimum_effect("cpu") == 0.10


def test_mann_whitney_of_few_equals_its_definition_over_all_orders():
    a, b = (1.0, 2.0, 3.5), (2.5, 4.0, 5.0, 6.0)

    def statistic(order: tuple[int, ...]) -> float:
        chosen = set(order)
        values = sorted((*a, *b))
        mine, others = [values[i] for i in chosen], [v for i, v in enumerate(values) if i not in chosen]
        return sum(x > y for x in mine for y in others)

    orders = {tuple(sorted(order)) for order in permutations(range(7), 3)}
    all_of = [statistic(order) for order in orders]
    seen = sum(x > y for x in a for y in b)
    one_sided = sum(u <= seen for u in all_of) / len(all_of)
    assert mann_whitney(a, b) == pytest.approx(2 * one_sided)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=8), st.lists(st.floats(0.5, 2.0), min_size=4, max_size=8))
def test_swapping_the_sides_swaps_faster_and_slower(base, new):
    opposite = {Verdict.faster: Verdict.slower, Verdict.slower: Verdict.faster}
    there, back = judge(base, new, 0.0), judge(new, base, 0.0)
    assert back.verdict == opposite.get(there.verdict, there.verdict)


def test_a_disturbed_re_run_still_confirms_what_all_repeats_show():
    once = judge(STEADY, scaled(1.25), CPU_EFFECT)
    disturbed = judge((1.01, 1.02, 1.0, 1.5, 1.55), scaled(1.25), CPU_EFFECT)
    assert disturbed.verdict is Verdict.ambiguous
    assert confirm(once, disturbed).verdict is Verdict.slower


def test_a_disturbed_first_run_is_run_again_and_does_not_hide_what_both_show():
    disturbed = judge((1.01, 1.02, 1.0, 1.03, 1.5), scaled(1.25), CPU_EFFECT)
    assert (disturbed.verdict, disturbed.suspect) == (Verdict.ambiguous, True)
    assert confirm(disturbed, judge(STEADY, scaled(1.25), CPU_EFFECT)).verdict is Verdict.slower
    assert confirm(disturbed, disturbed).verdict is Verdict.ambiguous, "two disturbed runs are not one that shows it"
    assert confirm(disturbed, judge(STEADY, STEADY, CPU_EFFECT)).verdict is Verdict.ambiguous
    assert confirm(disturbed, None).verdict is Verdict.ambiguous


@pytest.mark.parametrize("now", [scaled(1.05), scaled(0.7), scaled(1.25)[:3]])
def test_what_is_within_the_effect_or_faster_or_of_too_few_repeats_is_not_run_again(now):
    assert not judge(STEADY, now, CPU_EFFECT).suspect


@pytest.mark.parametrize("again", [scaled(1.0), scaled(1.09), scaled(0.7)])
def test_a_re_run_within_the_effect_confirms_nothing(again):
    once = judge(STEADY, scaled(1.25), CPU_EFFECT)
    assert confirm(once, judge(STEADY, again, CPU_EFFECT)).verdict is Verdict.ambiguous
    assert confirm(once, None).reason == "+25% (p = 0.0079), not confirmed by a re-run"


def test_two_thousand_equal_pairs_with_noise_of_three_per_cent_raise_no_alarm():
    generator = np.random.default_rng(8)
    samples = 1 + 0.03 * generator.standard_normal((2000, 2, 5))
    alarms = [judge(a, b, CPU_EFFECT).verdict for a, b in samples]
    assert Verdict.slower not in alarms
    assert Verdict.faster not in alarms


def test_of_two_thousand_equal_pairs_with_noise_as_large_as_the_effect_few_raise_an_alarm_after_their_re_run():
    generator = np.random.default_rng(9)
    samples = 1 + CPU_EFFECT * generator.standard_normal((2000, 2, 2, 5))
    judged = [[judge(a, b, CPU_EFFECT) for a, b in pair] for pair in samples]
    alarms = [confirm(once, again).verdict is Verdict.slower for once, again in judged if once.suspect]
    assert 100 < len(alarms) < 300
    assert sum(alarms) <= 4
