"""A comparison as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from harness.evidence.comparison import Comparison, Pair
from harness.evidence.sheet import Sheet
from harness.evidence.verdicts import MIN_REPEATS
from harness.report.quantities import NONE, change, milliseconds


def comparison_sheet(comparison: Comparison) -> Sheet:
    """Medians of both sides, the change of time, the verdict and its reason; then the counts that differ."""
    rows, below = [], []
    seen = Counter(pair.label for pair in comparison.pairs)
    for pair in comparison.pairs:
        judgement = pair.judgement
        verdict = NONE if comparison.across and pair.a and pair.b and _unlike(pair) else str(judgement.verdict)
        cell = pair.a or pair.b
        assert cell is not None
        label = pair.label if seen[pair.label] == 1 else f"{pair.label} · {cell.scene}"
        figures = [milliseconds(judgement.base), milliseconds(judgement.new), change(judgement.change)]
        rows.append([label, *figures, verdict, judgement.reason])
        if pair.counts:
            below.append(f"{label}: {'; '.join(map(str, pair.counts))}")
    verdicts = Counter(str(pair.judgement.verdict) for pair in comparison.pairs)
    if below:
        below.insert(0, "Counts that differ:")
    if any(_too_few(pair) for pair in comparison.pairs):
        wanted = "--set repeats=5 runs what is missing of five"
        below.insert(0, f"A verdict takes {MIN_REPEATS} repeats a side: {wanted}.")
    below.insert(0, ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "Nothing to compare.")
    metrics = sorted({pair.metric for pair in comparison.pairs if pair.metric})
    if metrics:
        below.insert(0, f"Times: {', '.join(metrics)}, medians of repeats; change of B over A, less is better.")
    return Sheet(
        title=f"A {comparison.a}, B {comparison.b}" + (f", by {comparison.by}" if comparison.by else ""),
        columns=("cell", "A ms", "B ms", "change", "verdict", "reason"),
        rows=rows,
        right=frozenset({"A ms", "B ms", "change"}),
        under="reason",
        below=below,
        data=[_data(pair) for pair in comparison.pairs],
        facts={"a": comparison.a, "b": comparison.b, "by": comparison.by, "across": comparison.across},
    )


def _too_few(pair: Pair) -> bool:
    """Whether both sides have values, and one too few."""
    cells = [cell for cell in (pair.a, pair.b) if cell is not None and cell.ok]
    return len(cells) == 2 and bool(pair.metric) and min(len(cell.ok) for cell in cells) < MIN_REPEATS


def _unlike(pair: Pair) -> bool:
    assert pair.a is not None
    assert pair.b is not None
    return pair.a.key[1] != pair.b.key[1]


def _data(pair: Pair) -> dict[str, Any]:
    judgement = pair.judgement
    found: dict[str, Any] = {"cell": pair.label, "metric": pair.metric or None, "stage": pair.stage}
    for side, cell in (("a", pair.a), ("b", pair.b)):
        found |= {
            f"cell_id_{side}": cell.key[0] if cell else None,
            f"commit_{side}": cell.first.commit if cell else None,
            f"machine_{side}": cell.first.machine if cell else None,
            f"repeats_{side}": len(cell.ok) if cell else 0,
        }
    axis = pair.axis or (None, None)
    return found | {
        "axis_a": axis[0],
        "axis_b": axis[1],
        "seconds_a": judgement.base,
        "seconds_b": judgement.new,
        "change": judgement.change,
        "p": judgement.p,
        "verdict": str(judgement.verdict),
        "reason": judgement.reason,
        "counts": [str(count) for count in pair.counts],
    }
