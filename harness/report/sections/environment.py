"""Environment: what the machines, drivers and libraries were."""

from __future__ import annotations

from typing import Any

from harness.records.schema import REMARK
from harness.report.frames import Results
from harness.report.parts import Section, Table, text
from harness.report.quantities import NONE, memory


def section(results: Results) -> Section:
    """One column an environment, one row a fact; facts that every environment lacks are left out, and what is one of a
    single cell."""
    found = Section("environment", "Environment")
    by_id: dict[str, dict[str, str]] = {}
    for _, record in results.records.values():
        if record.result and record.result.environment:
            name = f"{record.machine} ({record.environment_id[:8]})"
            facts = {key: value for key, value in record.result.environment.items() if key != REMARK}
            by_id.setdefault(name, dict(_flat(facts)))
    if by_id:
        keys = dict.fromkeys(key for facts in by_id.values() for key in facts)
        rows = [[key, *(facts.get(key, NONE) for facts in by_id.values())] for key in keys]
        known = [[text(value) for value in row] for row in rows if any(value != NONE for value in row[1:])]
        found.parts.append(Table("", ["", *by_id], [("", known)]))
    return found


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as (dotted key, text)."""
    flat: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = prefix + key.replace("_", " ")
        if isinstance(value, dict):
            flat += _flat(value, f"{name} · ")
        elif isinstance(value, list | tuple):
            flat.append((name, ", ".join(_fact(key, v) for v in value) or NONE))
        else:
            flat.append((name, _fact(key, value)))
    return flat


def _fact(key: str, value: Any) -> str:
    if value is None or value == "":
        return NONE
    return memory(value) if key.endswith("bytes") and isinstance(value, int | float) else str(value)
