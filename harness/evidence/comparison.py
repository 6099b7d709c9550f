"""`compare`: cells of two folders side by side, a verdict on each pair that may be compared, a reason on the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.evidence.gates import Change, OtherBits, changes
from harness.evidence.measured import DEFAULTS, MeasuredCell, fields, read
from harness.evidence.verdicts import Judgement, Verdict, judge, minimum_effect
from harness.suite import validation
from harness.suite.identity import LEFT_OUT

TIMES = {"throughput": "step_seconds", "train": "train_seconds", "render": "render_seconds"}
"""What a scenario is judged by; on a CPU by CPU seconds, where records have them."""
GROUPS = ("scene", "options", "training")
"""Fields of a cell that hold fields of their own, named as in `scene.gaussians`."""
_FOLLOWS = {"strategy": ("options", "engine"), "ranks": ("engine",), "device": ("kernels", "engine")}
"""Fields that an axis decides: a strategy's options are its own, and `auto` engines follow the ranks."""
_LABELS = ("scene.stand_in", "scene.optional")
"""Fields of a scene that its cell's id leaves out."""
_FEW = 3
"""Fields in which two cells may differ to be called near each other."""
_OTHER_WORKLOAD = ("scene", "size", "from", "scenario")
"""Axes along which cameras, images or Gaussians are others."""


@dataclass(frozen=True)
class Pair:
    """Two cells, or one that the other side lacks, and what is to be said of them by one metric.

    axis: values of the field `by` in A and B. counts: what else differs between them.
    """

    a: MeasuredCell | None
    b: MeasuredCell | None
    judgement: Judgement
    metric: str = ""
    stage: str | None = None
    axis: tuple[str, str] | None = None
    by: str | None = None
    counts: list[Change | OtherBits] = field(default_factory=list)

    @property
    def label(self) -> str:
        cell = self.a or self.b
        assert cell is not None
        label = cell.label if self.axis is None else f"{cell.described(self.by)} · {self.axis[0]} → {self.axis[1]}"
        return label + (f" · {self.stage}" if self.stage else "")


@dataclass(frozen=True)
class Comparison:
    """a, b: how the sides are called. by: the axis, if one is compared. across: shown without verdicts."""

    a: str
    b: str
    pairs: list[Pair]
    by: str | None = None
    across: bool = False

    @property
    def compared(self) -> bool:
        """Whether any pair has values on both sides."""
        return any(pair.judgement.new is not None and pair.judgement.base is not None for pair in self.pairs)


def compare(a: Path, b: Path, by: str | None = None, across: bool = False) -> Comparison:
    """Compare the records at or below two folders.

    Cells are compared that are equal in every field, or in every field but the axis `by`, and were measured in equal
    environments. across: unlike environments side by side, without a verdict. UserError for a folder that is not
    there or an axis that no cell has.
    """
    sides = read([a]), read([b])
    if by is not None:
        _check_axis(by, [*sides[0], *sides[1]])
        pairs = _by_axis(*sides, by, a.resolve() == b.resolve(), across)
    else:
        pairs = _by_cell(*sides, across)
    return Comparison(str(a), str(b), pairs, by, across)


def judge_pair(
    a: MeasuredCell, b: MeasuredCell, axis: tuple[str, str] | None = None, by: str | None = None
) -> list[Pair]:
    """What two cells that may be compared say, by each metric that their scenario is judged by."""
    if trouble := "; ".join(f"{side} {cell.trouble}" for side, cell in (("A", a), ("B", b)) if not cell.ok):
        return [Pair(a, b, Judgement(Verdict.no_data, trouble), axis=axis, by=by)]
    if a.workload != b.workload and (by or "").split(".")[0] not in _OTHER_WORKLOAD:
        reason = "the workloads (cameras, images, Gaussians) differ"
        return [Pair(a, b, Judgement(Verdict.no_data, reason), axis=axis, by=by)]
    # Along an axis counts are meant to differ.
    counts = changes(a.ok[0], b.ok[0], same_environment=True, repeats=a.ok[1:]) if axis is None else []
    found: list[Pair] = []
    for metric, stage in time_metrics(a, b):
        judgement = _judged(a, b, metric, stage)
        found.append(Pair(a, b, judgement, metric, stage, axis, by, [] if found else counts))
    untimed = Judgement(Verdict.no_data, "no time that both measured")
    return found or [Pair(a, b, untimed, axis=axis, by=by, counts=counts)]


def _judged(a: MeasuredCell, b: MeasuredCell, metric: str, stage: str | None) -> Judgement:
    if (sources := (a.source(metric), b.source(metric)))[0] != sources[1]:
        return Judgement(Verdict.no_data, f"A is {sources[0]}, B is {sources[1]}")
    judgement = judge(a.values(metric, stage), b.values(metric, stage), minimum_effect(a.settings["device"]))
    said = judgement.verdict in (Verdict.faster, Verdict.slower, Verdict.same)
    if said and metric in ("step_seconds", "render_seconds"):
        bound = max(cell.settings["stop"]["noise"] for cell in (a, b))
        noise = max(cell.noise or 0.0 for cell in (a, b))
        if noise > bound:  # The series ended at its cap.
            return judgement.but(Verdict.ambiguous, f"passes scatter by {noise:.1%}, the suite's bound is {bound:.1%}")
    return judgement


def time_metrics(*cells: MeasuredCell) -> list[tuple[str, str | None]]:
    """What the time of cells of one scenario is judged by: metric and stage. Some scenarios have none."""
    scenario = cells[0].settings["scenario"]
    if scenario == "kernels":
        return [("operator_seconds", stage) for stage in cells[0].stages("operator_seconds")]
    if scenario not in TIMES:
        return []
    on_cpu = cells[0].settings["device"] == "cpu" and all(cell.values("cpu_seconds") for cell in cells)
    return [("cpu_seconds" if on_cpu else TIMES[scenario], None)]


def _by_cell(a: list[MeasuredCell], b: list[MeasuredCell], across: bool) -> list[Pair]:
    """Each cell of A with that of B of the same id, then what B alone has."""
    of_b: dict[str, dict[str, MeasuredCell]] = defaultdict(dict)
    for cell in b:
        of_b[cell.key[0]][cell.key[1]] = cell
    pairs: list[Pair] = []
    met: set[tuple[str, str]] = set()
    for cell in a:
        others = of_b.get(cell.key[0], {})
        same = others.get(cell.key[1])
        if same is not None:
            met.add(same.key)
            pairs += judge_pair(cell, same)
        elif others:
            met |= {other.key for other in others.values()}
            pairs += _unlike(cell, list(others.values()), across)
        else:
            pairs.append(Pair(cell, None, Judgement(Verdict.no_data, "B has no such cell" + _nearest(cell, b))))
    alone = [cell for cell in b if cell.key not in met]
    return pairs + [
        Pair(None, cell, Judgement(Verdict.no_data, "A has no such cell" + _nearest(cell, a))) for cell in alone
    ]


def _nearest(cell: MeasuredCell, others: Sequence[MeasuredCell]) -> str:
    """What the cell of the same name or strategy that is most like this one has otherwise; empty if that is much."""
    named = "name" if cell.settings["name"] else "strategy"
    alike = [other for other in others if other.settings[named] == cell.settings[named]]
    found = min((_differences(cell, other) for other in alike), key=len, default=[])
    return f"; nearest differs in {', '.join(found)}" if 0 < len(found) <= _FEW else ""


def _differences(cell: MeasuredCell, other: MeasuredCell) -> list[str]:
    """Fields, dotted, that decide a result and differ, each with both values."""
    mine, theirs = (dict(_flat(one.settings)) for one in (cell, other))
    keys = [key for key in {**mine, **theirs} if key.split(".")[0] not in LEFT_OUT and key not in _LABELS]
    return [f"{k} ({mine.get(k)}, {theirs.get(k)})" for k in keys if mine.get(k) != theirs.get(k)]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of fields that hold fields, with their values."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _unlike(
    cell: MeasuredCell,
    others: list[MeasuredCell],
    across: bool,
    axis: tuple[str, str] | None = None,
    by: str | None = None,
) -> list[Pair]:
    """A cell and cells of other environments: values without a verdict, or the refusal."""
    if not across:
        reason = f"environments differ ({cell.first.machine}; {others[0].first.machine}): --across shows both"
        return [Pair(cell, others[0], Judgement(Verdict.no_data, reason), axis=axis, by=by)]
    found = []
    for other in others:
        reason = f"not judged: {cell.first.machine}; {other.first.machine}"
        for metric, stage in time_metrics(cell, other):
            values = judge(cell.values(metric, stage), other.values(metric, stage), 0.0)
            judgement = Judgement(Verdict.no_data, reason, values.base, values.new)
            found.append(Pair(cell, other, judgement, metric, stage, axis, by))
    return found


def _by_axis(a: list[MeasuredCell], b: list[MeasuredCell], by: str, one_folder: bool, across: bool) -> list[Pair]:
    """Pairs of cells that are equal but for the axis; of one folder, each against the first of its group."""
    without = (by, *_FOLLOWS.get(by, ()))
    groups: dict[str, tuple[list[MeasuredCell], list[MeasuredCell]]] = defaultdict(lambda: ([], []))
    for side, cells in enumerate((a, b)):
        for cell in cells:
            groups[fields(cell.settings, without)][side].append(cell)
    pairs: list[Pair] = []
    for mine, theirs in groups.values():
        # What is held against the others of its folder is the first that there is a value of.
        bases = [cell for cell in mine if cell.ok][:1] if one_folder else mine
        for cell in bases:
            for other in theirs:
                axis = _axis(cell.settings, by), _axis(other.settings, by)
                if axis[0] == axis[1]:
                    continue
                if cell.key[1] == other.key[1]:
                    pairs += judge_pair(cell, other, axis, by)
                else:
                    pairs += _unlike(cell, [other], across, axis, by)
    return pairs


def _axis(settings: dict[str, Any], by: str) -> str:
    group, _, key = by.partition(".")
    value = settings.get(group)
    value = value.get(key) if key and isinstance(value, dict) else value
    return "default" if value is None else str(value)


def _check_axis(by: str, cells: Sequence[MeasuredCell]) -> None:
    group, _, key = by.partition(".")
    known: Iterable[str] = DEFAULTS
    if key and group in GROUPS:
        known = {f"{group}.{name}" for cell in cells for name in cell.settings[group]}
    if by not in known:
        raise UserError(f"--by: value {by!r} is no field of a cell{validation.nearest(by, list(known))}")
