"""`claims`: each published figure beside what records say of it, and a verdict, or why there is none."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import mean, stdev

from harness.evidence.measured import MeasuredCell, read, value_of
from harness.measure.statistics import median
from harness.records.schema import METRICS, Record
from harness.suite.claims import Claim
from harness.suite.grammar import DEVICES
from harness.suite.overrides import NAME_SEPARATOR
from harness.suite.plan import plan

REPRODUCED, PARTLY = 0.9, 0.5
"""Shares of the published effect, in logarithms."""
_CROSSING = frozenset({"payload_bytes", "metadata_bytes"})


class ClaimVerdict(StrEnum):
    reproduced = "reproduced"
    partly = "partly"
    not_reproduced = "not"
    needs_gpus = "needs GPUs"
    """Its cells ran on a CPU only, and it speaks of time."""
    no_record = "no record"
    planned = "planned"
    not_testable = "not testable"


@dataclass(frozen=True)
class Tested:
    """A claim and what came of it on one machine. found: as `published`, mean over seeds; None where nothing was
    measured. seeds: how many were measured. spread: standard deviation over them, None of one.
    """

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    found: float | None = None
    machine: str | None = None
    commit: str | None = None
    seeds: int = 0
    spread: float | None = None


Side = list[MeasuredCell]
"""The cells of one case: one a seed, in their order."""


def judge_claims(suite: Path, folders: Sequence[Path]) -> list[Tested]:
    """Every claim of a suite, by the records at or below the folders: one entry a machine that has its cells.

    Cells are found by what they are, whichever suite ran them. Published figures are never taken from records: only
    ratios and differences of measured values, or measured values themselves, stand beside them.
    """
    by_environment: dict[str, dict[str, MeasuredCell]] = defaultdict(dict)
    for cell in read(folders):
        by_environment[cell.key[1]][cell.key[0]] = cell
    cases: list[dict[str, list[str]]] = []
    for device in DEVICES:
        planned = plan(suite, device=device)
        ids: dict[str, list[str]] = defaultdict(list)
        for one in planned.cells:
            for name in (one.cell.name or "").split(NAME_SEPARATOR):
                ids[name].append(one.cell_id)
        cases.append(ids)
    return [tested for claim in planned.claims for tested in _tested(claim, by_environment.values(), cases)]


def _tested(
    claim: Claim, machines: Iterable[dict[str, MeasuredCell]], cases: Sequence[dict[str, list[str]]]
) -> list[Tested]:
    if claim.planned is not None:
        return [Tested(claim, ClaimVerdict.planned, claim.planned)]
    if claim.not_testable is not None:
        return [Tested(claim, ClaimVerdict.not_testable, claim.not_testable)]
    assert claim.test is not None
    found = []
    for cells in machines:
        for ids in cases:
            ours = _side(cells, ids[claim.test])
            theirs = None if claim.against is None else _side(cells, ids[claim.against])
            if ours and (claim.against is None or theirs):
                found.append(_judged(claim, ours, theirs))
                break
    return found or [Tested(claim, ClaimVerdict.no_record, f"no record of {claim.fate}")]


def _side(cells: dict[str, MeasuredCell], ids: Sequence[str]) -> Side:
    """The case's cells, if all of its seeds are there."""
    return [cells[identity] for identity in ids] if all(identity in cells for identity in ids) else []


def _judged(claim: Claim, ours: Side, theirs: Side | None) -> Tested:
    first = ours[0]

    def tested(verdict: ClaimVerdict, reason: str, *found: float) -> Tested:
        value = mean(found) if found else None
        spread = stdev(found) if len(found) > 1 else None
        return Tested(claim, verdict, reason, value, first.first.machine, first.first.commit, len(found), spread)

    for cell in (*ours, *(theirs or ())):
        if not cell.ok:
            return tested(ClaimVerdict.no_record, f"{cell.label} {cell.trouble}")
    if theirs is not None and len(ours) != len(theirs):
        return tested(ClaimVerdict.no_record, f"{len(ours)} seeds against {len(theirs)}")
    values = [[_values(cell, claim) for cell in side] for side in (ours, theirs) if side is not None]
    if not all(all(side) for side in values) or not all(median(seed) > 0 for side in values for seed in side):
        return tested(ClaimVerdict.no_record, f"{claim.metric} was not measured")
    effects = [_effect(claim, *map(median, pair)) for pair in zip(*values, strict=True)]
    stand_in = bool(first.ok[0].result and first.ok[0].result.scene and first.ok[0].result.scene.synthetic_stand_in)
    if METRICS[claim.metric][0] in ("s", "1/s") and first.settings["device"] == "cpu":
        said = "modelled" if first.source(claim.metric) == "modelled" else "measured"
        return tested(ClaimVerdict.needs_gpus, f"{said} on a CPU", *effects)
    reasons = ["CPU-size scene"] if stand_in else []
    published, value = (mean(effects), claim.published) if claim.at_most else (claim.published, mean(effects))
    share = effect_share(published, value, relative=theirs is not None and not _in_decibels(claim))
    if share >= REPRODUCED:
        verdict = ClaimVerdict.reproduced
    else:
        verdict = ClaimVerdict.partly if share >= PARTLY else ClaimVerdict.not_reproduced
    if theirs is not None and len(effects) > 1 and not _beyond_chance(effects, 0.0 if _in_decibels(claim) else 1.0):
        verdict = ClaimVerdict.not_reproduced
        reasons.append("seeds scatter by more than the effect")
    return tested(verdict, "; ".join(reasons), *effects)


def _effect(claim: Claim, ours: float, theirs: float | None = None) -> float:
    if theirs is None:
        return ours
    return ours - theirs if _in_decibels(claim) else ours / theirs


def _in_decibels(claim: Claim) -> bool:
    """A metric that is a logarithm already, of which a ratio would say nothing."""
    return METRICS[claim.metric][0] == "dB"


def _beyond_chance(effects: Sequence[float], none: float) -> bool:
    """Whether the mean over seeds is further from no effect than twice its standard error."""
    return abs(mean(effects) - none) > 2 * stdev(effects) / math.sqrt(len(effects))


def effect_share(published: float, found: float, relative: bool) -> float:
    """How much of the published effect was found: of ratios by their logarithms, of values and differences by their
    ratio."""
    return math.log(found) / math.log(published) if relative else found / published


def _values(cell: MeasuredCell, claim: Claim) -> list[float]:
    if claim.over is not None:
        return [share for record in cell.ok if (share := _share(record, claim.metric, claim.over, claim.stage))]
    if claim.metric in _CROSSING:
        return [_crossing(record, claim) for record in cell.ok]
    return cell.values(claim.metric, claim.stage)


def _share(record: Record, metric: str, over: str, stage: str | None) -> float | None:
    """One metric of the whole job, its stages together or one of them, over another; None without both."""
    measured = record.result.measurements if record.result else ()
    parts = [m.value for m in measured if m.metric == metric and m.place is None and stage in (None, m.stage)]
    whole = value_of(record, over)
    return sum(parts) / whole if parts and whole else None


def _crossing(record: Record, claim: Claim) -> float:
    """Bytes from one place to another: what a place sends itself crosses nothing."""
    measured = record.result.measurements if record.result else ()
    return sum(
        m.value
        for m in measured
        if m.metric == claim.metric and m.place != m.peer and (claim.stage is None or m.stage == claim.stage)
    )
