"""The rule by which two sets of repeats are faster, same, slower, or nothing that can be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from harness.measure.statistics import median, median_noise

MIN_REPEATS = 4
"""Of each side: three against three cannot go below p = 0.1."""
MAX_P = 0.05
STRICT_P = 0.005
"""Of all repeats together, where the first run alone shows nothing at MAX_P."""
GPU_EFFECT, CPU_EFFECT = 0.03, 0.10
"""The smallest change of a median that counts, relative."""


class Verdict(StrEnum):
    faster = "faster"
    same = "same"
    slower = "slower"
    ambiguous = "ambiguous"
    no_data = "no data"


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason.

    base, new: medians, seconds. p: of the Mann-Whitney test, two-sided. repeats: of both sides, seconds, and effect the
    smallest change that counts, where there was enough to test. grew: of what is slower, the stage that grew most.
    """

    verdict: Verdict
    reason: str
    base: float | None = None
    new: float | None = None
    p: float | None = None
    repeats: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    effect: float = 0.0
    grew: str = ""

    @property
    def change(self) -> float | None:
        """Relative, of the seconds: 0.1 is 10 % slower."""
        return None if self.base is None or self.new is None or self.base == 0 else self.new / self.base - 1

    @property
    def suspect(self) -> bool:
        """Slower by more than the effect, of enough repeats, whatever p they have alone: a fresh re-run decides."""
        return self.p is not None and self.change is not None and self.change > self.effect

    def but(self, verdict: Verdict, reason: str) -> Judgement:
        return replace(self, verdict=verdict, reason=reason)


def minimum_effect(device: str) -> float:
    return CPU_EFFECT if device == "cpu" else GPU_EFFECT


def judge(base: Sequence[float], new: Sequence[float], effect: float) -> Judgement:
    """What process repeats of two sides say, in seconds: less is better.

    *slower* and *faster* need a ratio of medians beyond `effect` and a Mann-Whitney p (Mann & Whitney 1947) below
    0.05. Within `effect` they are the *same*, unless the repeats scatter so much that it could hide in them.
    """
    if not len(base) or not len(new):
        side = "neither side has" if not len(base) and not len(new) else f"{'B' if len(base) else 'A'} has no"
        return Judgement(Verdict.no_data, f"{side} measurement", median(base) if len(base) else None)
    middle = median(base), median(new)
    if not all(value > 0 for value in middle):
        return Judgement(Verdict.no_data, "a median of zero has no ratio", *middle)
    if min(len(base), len(new)) < MIN_REPEATS:
        return Judgement(Verdict.ambiguous, f"{len(base)} and {len(new)} repeats, {MIN_REPEATS} each needed", *middle)
    p = mann_whitney(base, new)
    found = Judgement(Verdict.same, "", *middle, p, (tuple(base), tuple(new)), effect)
    change = found.change
    assert change is not None
    if abs(change) > effect:
        if p < MAX_P:
            return found.but(Verdict.slower if change > 0 else Verdict.faster, f"p = {p:.2g}")
        return found.but(Verdict.ambiguous, f"beyond {effect:.0%}, but p = {p:.2g}")
    noise = max(median_noise(base), median_noise(new))
    if noise > effect:
        return found.but(Verdict.ambiguous, f"medians are uncertain by {noise:.0%}")
    return found.but(Verdict.same, f"within {effect:.0%}")


def confirm(once: Judgement, twice: Judgement | None) -> Judgement:
    """What a fresh re-run makes of a suspect, or the want of one.

    It is slower when the re-run alone is slower by more than the effect, and all repeats of both runs together have
    p < 0.05, or 0.005 where the first run did not: a disturbance of either does not hide what both show.
    """
    assert once.change is not None
    change = f"{once.change:+.0%}"
    if twice is None or twice.change is None:
        return once.but(Verdict.ambiguous, f"{change} (p = {once.p:.2g}), not confirmed by a re-run")
    again = f"{change} and, run again, {twice.change:+.0%}"
    # A stored side is the same in both runs, and counts once.
    base = once.repeats[0] if once.repeats[0] == twice.repeats[0] else (*once.repeats[0], *twice.repeats[0])
    new = (*once.repeats[1], *twice.repeats[1])
    p = mann_whitney(base, new)
    if twice.change > once.effect and p < (MAX_P if once.verdict is Verdict.slower else STRICT_P):
        where = f"; most in {once.grew}" if once.grew else ""
        return once.but(Verdict.slower, f"{again}, together p = {p:.2g}{where}")
    return once.but(Verdict.ambiguous, again)


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p that samples as unlike as these come from one distribution; exact for few without ties."""
    from scipy.stats import mannwhitneyu  # Takes longer to import than most commands take.

    return float(mannwhitneyu(a, b, alternative="two-sided", method="auto").pvalue)
