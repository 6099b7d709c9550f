"""The compact table of a run's figures, as Markdown files show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.evidence.measured import DEFAULTS, MeasuredCell
from harness.evidence.trees import Tree
from harness.measure.statistics import median
from harness.records.load import canonical
from harness.report.labels import scene_name, short_commit, size
from harness.report.quantities import NONE, count, milliseconds, number, ratio

ROWS = 6
"""Of a table, at most; those of its first scene stand in any case."""
PEER = "gsplat"
"""The strategy that stands in a column of the others' rows."""


@dataclass(frozen=True)
class _Row:
    """A cell with the cells that it is divided by: `single` on one place, and the fastest of the peer."""

    cell: MeasuredCell
    single: MeasuredCell | None
    peer: MeasuredCell | None


_Value = Callable[[_Row], float | None]


def _middle(metric: str, statistic: str | None = None) -> _Value:
    return lambda row: _value(row.cell, metric, statistic)


def _over(value: _Value, base: _Value) -> _Value:
    """The ratio of two values; None without either."""

    def found(row: _Row) -> float | None:
        above, below = value(row), base(row)
        return above / below if above is not None and below else None

    return found


def _rate(cell: MeasuredCell | None) -> float | None:
    return None if cell is None else _value(cell, "views_per_second")


_RATE, _STEP, _FLOOR = _middle("views_per_second"), _middle("step_seconds"), _middle("roofline_seconds")
_OVER_SINGLE = ("× single", _over(_RATE, lambda row: _rate(row.single)), ratio)
_OVER_PEER = (f"× {PEER}", _over(_RATE, lambda row: _rate(row.peer)), ratio)
_TAIL = _over(_middle("step_over_floor", "p99"), _middle("step_over_floor", "median"))

COLUMNS: dict[str, tuple[tuple[str, _Value, Callable[[float | None], str]], ...]] = {
    "throughput": (
        ("views/s", _RATE, number),
        ("ms a step", _STEP, milliseconds),
        ("host ms", _middle("host_seconds"), milliseconds),
        _OVER_SINGLE,
        _OVER_PEER,
    ),
    "render": (
        ("views/s", _RATE, number),
        ("ms a picture", _middle("render_seconds"), milliseconds),
        _OVER_SINGLE,
        _OVER_PEER,
    ),
    "kernels": (
        ("ms a step", _STEP, milliseconds),
        ("floor, ms", _FLOOR, milliseconds),
        ("× floor", _over(_STEP, _FLOOR), ratio),
        ("p99 / median", _TAIL, ratio),
        _OVER_PEER,
    ),
}
"""By scenario: heading, value and form; a column that no row has a value for is left out."""


def table(cells: Sequence[MeasuredCell], tree: Tree) -> str:
    """A row for each strategy's fastest cell on a scene, on one place at batch 1, and below it what they share.

    Of the scenario that ran first; scenes in the order in which they ran, as many as ROWS hold. The peer is a column,
    and so is `single` for others; named cases are variants, and stand only where there is nothing else. Below: equal
    values, how many cells have no figures and why, and which figures are of other code than the tree's. Empty where
    nothing of the kind was measured.
    """
    timed = [cell for cell in cells if cell.settings["scenario"] in COLUMNS]
    rated = [cell for cell in timed if _rate(cell)]
    if not rated:
        return ""
    columns = COLUMNS[rated[0].settings["scenario"]]
    rated = [cell for cell in rated if cell.settings["scenario"] == rated[0].settings["scenario"]]
    rows = [_beside(cell, rated) for cell in _chosen(rated)]
    shown = [_about(row.cell) for row in rows]
    common = {key: text for key, text in shown[0].items() if all(one[key] == text for one in shown)}
    keep = [key for key in shown[0] if key not in common or key == "scene"]
    figures = [(heading, [value(row) for row in rows], form) for heading, value, form in columns]
    figures = [one for one in figures if any(value is not None for value in one[1])]
    headings = [*keep, *(heading for heading, _, _ in figures)]
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join('---' for _ in headings)}|"]
    for i, one in enumerate(shown):
        texts = [one[key] for key in keep] + [form(values[i]) for _, values, form in figures]
        lines.append(f"| {' | '.join(texts)} |")
    used = [cell for row in rows for cell in (row.cell, row.single, row.peer) if cell is not None]
    below = [_equal(common), *_missing(timed), *_stale(used, tree)]
    return "\n".join([*lines, "", " ".join(below)])


def _chosen(rated: Sequence[MeasuredCell]) -> list[MeasuredCell]:
    """The cells that have a row, by scene."""
    own = [cell for cell in rated if cell.settings["strategy"] != PEER] or list(rated)
    own = [cell for cell in own if not cell.settings["name"]] or own
    own = [cell for cell in own if cell.settings["ranks"] > 1 or cell.settings["batch"] == 1] or own
    scenes: dict[str | None, dict[str, MeasuredCell]] = {}
    for cell in own:
        kinds = scenes.setdefault(cell.workload, {})
        settings = cell.settings
        kind = canonical([settings[key] for key in ("strategy", "options", "training", "name")])
        if kind not in kinds or (_rate(cell) or 0.0) > (_rate(kinds[kind]) or 0.0):
            kinds[kind] = cell
    found: list[MeasuredCell] = []
    for kinds in scenes.values():
        if found and len(found) + len(kinds) > ROWS:
            break
        found += kinds.values()
    return found


def _beside(cell: MeasuredCell, rated: Sequence[MeasuredCell]) -> _Row:
    """With the cells on the same scene, machine and batch; the peer's on as many places and the same link, in a run of
    the cell's own."""
    settings, runs = cell.settings, {record.run for record in cell.ok}
    alike = [
        other
        for other in rated
        if (other.workload, other.key[1], other.settings["batch"]) == (cell.workload, cell.key[1], settings["batch"])
    ]
    singles = [other for other in alike if other.settings["strategy"] == "single" and not other.settings["name"]]
    peers = [
        other
        for other in alike
        if other.settings["strategy"] == PEER
        and all(other.settings[key] == settings[key] for key in ("ranks", "link"))
        and any(record.run in runs for record in other.ok)
    ]
    return _Row(
        cell,
        max(singles, key=lambda one: _rate(one) or 0.0, default=None) if settings["strategy"] != "single" else None,
        max(peers, key=lambda one: _rate(one) or 0.0, default=None) if settings["strategy"] != PEER else None,
    )


def _about(cell: MeasuredCell) -> dict[str, str]:
    settings, result = cell.settings, cell.ok[0].result
    facts = result.scene if result else None
    pixels = (facts.width, facts.height) if facts else settings["size"]
    unusual = [(key, value) for key, value in settings["training"].items() if value != DEFAULTS["training"].get(key)]
    words = [f"{key}={value}" for key, value in (*settings["options"].items(), *unusual)]
    return {
        "strategy": str(settings["strategy"]),
        "settings": str(settings["name"] or " ".join(words)),
        "scene": scene_name(settings["scene"], facts.name if facts else None),
        "Gaussians": count(facts.gaussians) if facts else NONE,
        "size": size(*pixels) if pixels else "",
        "ranks": str(settings["ranks"]),
        "batch": str(settings["batch"]),
        "link": str(settings["link"]),
        "machine": cell.first.machine,
        "repeats": str(len(cell.ok)),
        "commit": short_commit(cell.first.commit),
    }


def _equal(common: dict[str, str]) -> str:
    """What all rows have, as a sentence; the usual link goes without saying."""
    unsaid = {"scene": common.get("scene"), "link": DEFAULTS["link"]}
    text = ", ".join(f"{key} {value}" for key, value in common.items() if value and value != unsaid.get(key))
    return f"{text[0].upper()}{text[1:]}."


def _missing(cells: Sequence[MeasuredCell]) -> list[str]:
    """How many cells have no figures, and why."""
    without = [cell for cell in cells if not cell.ok]
    reasons = dict.fromkeys(f"{cell.trouble}" for cell in without)
    return [f"{len(without)} of {len(cells)} cells have no figures ({'; '.join(reasons)})."] if without else []


def _stale(cells: Sequence[MeasuredCell], tree: Tree) -> list[str]:
    commits = {short_commit(cell.first.commit) for cell in cells if not tree.made(cell.first)}
    return [f"Stale: figures are of {', '.join(sorted(commits))}."] if commits else []


def _value(cell: MeasuredCell, metric: str, statistic: str | None = None) -> float | None:
    """The median over repeats."""
    values = cell.values(metric, statistic=statistic)
    return float(median(values)) if values else None
