"""Claims and their verdicts as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.evidence.claim_verdicts import Tested
from harness.evidence.sheet import Sheet
from harness.report.quantities import number


def claims_sheet(suite: str, tested: Sequence[Tested]) -> Sheet:
    rows, data = [], []
    for one in tested:
        claim = one.claim
        over = f"{one.seeds} seeds" if one.seeds > 1 else ""
        said = "; ".join(part for part in (claim.says, one.machine, over, one.reason) if part)
        found = number(one.found) if one.spread is None else f"{number(one.found)} ± {number(one.spread)}"
        rows.append([claim.id, number(claim.published), found, str(one.verdict), said])
        data.append(
            {
                "id": claim.id,
                "system": claim.system,
                "says": claim.says,
                "metric": claim.metric,
                "published": claim.published,
                "found": one.found,
                "seeds": one.seeds,
                "spread": one.spread,
                "verdict": str(one.verdict),
                "reason": one.reason,
                "machine": one.machine,
                "commit": one.commit,
                "tested_by": claim.fate,
            }
        )
    verdicts = Counter(str(one.verdict) for one in tested)
    return Sheet(
        title=f"claims of {suite}",
        columns=("claim", "published", "found", "verdict", "what is said; where, and why"),
        rows=rows,
        right=frozenset({"published", "found"}),
        under="what is said; where, and why",
        below=[
            ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "No claims.",
            "Reproduced: at least 90 % of the effect (logarithms of ratios), partly: 50 %; not, where seeds scatter by "
            "more (the mean's doubled standard error). ± is the standard deviation over seeds. Authors' figures are of "
            "their hardware and scenes.",
        ],
        data=data,
    )
