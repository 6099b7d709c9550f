"""What a regression gate says of each cell, and the exit code of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.errors import EXIT_FAILED, EXIT_NOTHING, EXIT_OK, EXIT_REGRESSED
from harness.evidence.comparison import judge_pair
from harness.evidence.gates import changes
from harness.evidence.measured import MeasuredCell
from harness.evidence.verdicts import Judgement, Verdict, confirm
from harness.measure.statistics import median
from harness.report.quantities import change


class State(StrEnum):
    ok = "ok"
    changed = "changed"
    slower = "slower"
    missing = "missing"
    new = "new"
    not_ok = "not ok"
    ambiguous = "ambiguous"
    stale = "stale"
    no_data = "no data"


REGRESSED = frozenset({State.changed, State.slower})
INCOMPLETE = frozenset({State.missing, State.new, State.not_ok})
DOUBTFUL = frozenset({State.ambiguous, State.stale})


@dataclass(frozen=True)
class CellResult:
    """What is said of one cell, and why. time: the judgement of its time, where it was judged."""

    label: str
    cell_id: str
    state: State
    reasons: list[str] = field(default_factory=list)
    time: Judgement | None = None


def judge_cells(
    base: Sequence[MeasuredCell],
    new: Sequence[MeasuredCell],
    times: Mapping[str, Judgement],
    unable: Mapping[str, tuple[str, str]] = {},
    *,
    strict_base: bool = True,
) -> list[CellResult]:
    """A result for every cell that either side has: those of `base` first.

    times: judgements of time by cell_id, of suspects after their re-run. unable: label and reason of cells that could
    not be measured now, by cell_id. strict_base: every cell must be in `base` and ok there, as in a baseline; otherwise
    a cell that `base` cannot run is no data.
    """
    of_base, of_new = by_id(base), by_id(new)
    found = []
    for identity in dict.fromkeys((*of_base, *of_new, *unable)):
        if identity in unable:
            label, why = unable[identity]
            found.append(CellResult(label, identity, State.not_ok if strict_base else State.no_data, [why]))
            continue
        before, after, time = of_base.get(identity), of_new.get(identity), times.get(identity)
        state, reasons = _state(before, after, time, strict_base)
        cell = after or before
        assert cell is not None
        found.append(CellResult(cell.label, identity, state, reasons, time))
    return found


def _state(
    before: MeasuredCell | None, after: MeasuredCell | None, time: Judgement | None, strict_base: bool
) -> tuple[State, list[str]]:
    if after is None:
        return State.missing, ["in the baseline, but not measured now"]
    if after.trouble:
        return State.not_ok, [after.trouble]
    if before is None or before.trouble:
        trouble = "not in the baseline" if before is None else f"its baseline is {before.trouble}"
        return (State.new, [f"{trouble}; --accept takes it in"]) if strict_base else (State.no_data, [trouble])
    if before.workload != after.workload:
        return State.changed, ["the workload (cameras, images, Gaussians) is another"]
    here = before.key[1] == after.key[1]
    first, *repeats = before.ok
    reasons = [str(change) for change in changes(first, after.ok[0], same_environment=here, repeats=repeats)]
    if reasons:
        slow = [time.reason] if time is not None and time.verdict is Verdict.slower else []
        return State.changed, reasons + slow
    if time is None:
        return State.ok, ["counts as before; time not judged"]
    if time.verdict in (Verdict.slower, Verdict.ambiguous):
        return State(time.verdict.value), [time.reason]
    if time.verdict is Verdict.no_data:
        return State.ok, [f"counts as before; time: {time.reason}"]
    return State.ok, [f"{time.verdict}: {time.reason}"]


def stale_cells(base: Iterable[MeasuredCell], code_now: Mapping[str, str]) -> list[CellResult]:
    """Whether the code that made each cell's record is the present one; code_now: by cell_id."""
    found = []
    for cell in base:
        record = cell.first
        if code_now.get(record.cell_id) == record.code_id:
            found.append(CellResult(cell.label, record.cell_id, State.ok, ["of the present code"]))
        else:
            found.append(CellResult(cell.label, record.cell_id, State.stale, [f"figures are of {record.commit}"]))
    return found


def judge_times(base: Sequence[MeasuredCell], new: Sequence[MeasuredCell]) -> dict[str, Judgement]:
    """By cell_id, the judgement of its time; of several metrics (operators) the worst. A suspect names a stage."""
    of_base, of_new = by_id(base), by_id(new)
    found = {}
    for identity in of_base.keys() & of_new.keys():
        before, after = of_base[identity], of_new[identity]
        if before.key[1] != after.key[1]:
            machines = f"{before.first.machine}; {after.first.machine}"
            found[identity] = Judgement(Verdict.no_data, f"environments differ ({machines})")
            continue
        pairs = judge_pair(before, after)
        worst = min((pair.judgement for pair in pairs), key=lambda one: _WORST.index(one.verdict))
        found[identity] = replace(worst, grew=_grew(before, after)) if worst.suspect else worst
    return found


def _grew(before: MeasuredCell, after: MeasuredCell) -> str:
    """The stage whose median grew by most seconds, and by how much; empty where no stage grew or none was timed."""
    medians: dict[str, tuple[float, float]] = {}
    for stage in after.stages("stage_seconds"):
        old, new = (cell.values("stage_seconds", stage) for cell in (before, after))
        medians[stage] = (median(old) if old else 0.0, median(new))
    stages = sorted(medians, key=lambda stage: medians[stage][1] - medians[stage][0])
    if not stages or medians[stages[-1]][1] <= medians[stages[-1]][0]:
        return ""
    old_median, new_median = medians[stages[-1]]
    return f"{stages[-1]}, {change(new_median / old_median - 1) if old_median else 'new'}"


_WORST = (Verdict.slower, Verdict.ambiguous, Verdict.no_data, Verdict.same, Verdict.faster)


def suspects(times: Mapping[str, Judgement]) -> list[str]:
    """Cells to be run again before anything is said of their time."""
    return [identity for identity, one in times.items() if one.suspect]


def confirmed(times: Mapping[str, Judgement], again: Mapping[str, Judgement]) -> dict[str, Judgement]:
    """The judgements after a fresh re-run of the suspects: only what is confirmed is slower."""
    return {**times, **{identity: confirm(times[identity], again.get(identity)) for identity in suspects(times)}}


def exit_code(results: Sequence[CellResult], strict: bool = False) -> int:
    """1 when a cell is slower or changed; else 3 when one is missing, new or not ok; else 4 when nothing could be
    compared; else 0. strict: 1 also for what is ambiguous or stale."""
    states = {result.state for result in results}
    if states & REGRESSED:
        return EXIT_REGRESSED
    if states & INCOMPLETE:
        return EXIT_FAILED
    if not states - {State.no_data}:
        return EXIT_NOTHING
    return EXIT_REGRESSED if strict and states & DOUBTFUL else EXIT_OK


def by_id(cells: Iterable[MeasuredCell]) -> dict[str, MeasuredCell]:
    """The last of each cell_id: what ran last."""
    return {cell.key[0]: cell for cell in cells}
