"""What a regression gate found, as a table, as a summary in Markdown, and as JUnit XML for CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from harness.evidence.regression import DOUBTFUL, INCOMPLETE, REGRESSED, CellResult, State
from harness.evidence.sheet import Sheet
from harness.report.quantities import change, milliseconds


def regression_sheet(title: str, results: Sequence[CellResult]) -> Sheet:
    """A row a cell: medians of its times where they were judged, its state and the reasons."""
    rows = []
    for result in results:
        time = result.time
        figures = [milliseconds(time.base), milliseconds(time.new), change(time.change)] if time else ["–"] * 3
        rows.append([result.label, *figures, str(result.state), "; ".join(result.reasons)])
    states = Counter(str(result.state) for result in results)
    return Sheet(
        title=title,
        columns=("cell", "base ms", "now ms", "change", "state", "reason"),
        rows=rows,
        right=frozenset({"base ms", "now ms", "change"}),
        under="reason",
        below=[", ".join(f"{count} {state}" for state, count in states.items()) or "Nothing to compare."],
        data=[_data(result) for result in results],
        facts={"title": title},
    )


def _data(result: CellResult) -> dict[str, Any]:
    time = result.time
    return {
        "cell": result.label,
        "cell_id": result.cell_id,
        "state": str(result.state),
        "reasons": result.reasons,
        "verdict": str(time.verdict) if time else None,
        "seconds_base": time.base if time else None,
        "seconds_now": time.new if time else None,
        "change": time.change if time else None,
        "p": time.p if time else None,
    }


def junit(title: str, results: Sequence[CellResult], strict: bool = False) -> str:
    """A test case a cell: what regressed or is incomplete fails, what has no data is skipped; strict: as of the exit
    code."""
    failing = REGRESSED | INCOMPLETE | (DOUBTFUL if strict else frozenset())
    suite = ElementTree.Element(
        "testsuite",
        name=f"regress {title}",
        tests=str(len(results)),
        failures=str(sum(result.state in failing for result in results)),
        skipped=str(sum(result.state is State.no_data for result in results)),
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname="regress", name=result.label)
        text = "; ".join(result.reasons)
        if result.state in failing:
            ElementTree.SubElement(case, "failure", message=f"{result.state}: {text}")
        elif result.state is State.no_data:
            ElementTree.SubElement(case, "skipped", message=text)
        else:
            ElementTree.SubElement(case, "system-out").text = f"{result.state}: {text}"
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
