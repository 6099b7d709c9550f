"""`claims`: each published figure beside what records say of it, and a verdict, or why there is none."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.evidence.measured import MeasuredCell, read
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
    """A claim and what came of it on one machine. found: as `published`; None where nothing was measured."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    found: float | None = None
    machine: str | None = None
    commit: str | None = None


def judge_claims(suite: Path, folders: Sequence[Path]) -> list[Tested]:
    """Every claim of a suite, by the records at or below the folders: one entry a machine that has its cells.

    Cells are found by what they are, whichever suite ran them. Published figures are never taken from records: only
    ratios of measured values, or measured values themselves, stand beside them.
    """
    by_environment: dict[str, dict[str, MeasuredCell]] = defaultdict(dict)
    for cell in read(folders):
        by_environment[cell.key[1]][cell.key[0]] = cell
    ids: dict[str, set[str]] = defaultdict(set)
    for device in DEVICES:
        planned = plan(suite, device=device)
        for one in planned.cells:
            for name in (one.cell.name or "").split(NAME_SEPARATOR):
                ids[name].add(one.cell_id)
    return [tested for claim in planned.claims for tested in _tested(claim, by_environment.values(), ids)]


def _tested(claim: Claim, machines: Iterable[dict[str, MeasuredCell]], ids: dict[str, set[str]]) -> list[Tested]:
    if claim.planned is not None:
        return [Tested(claim, ClaimVerdict.planned, claim.planned)]
    if claim.not_testable is not None:
        return [Tested(claim, ClaimVerdict.not_testable, claim.not_testable)]
    assert claim.test is not None
    found = []
    for cells in machines:
        ours = _of(cells, ids[claim.test])
        theirs = None if claim.against is None else _of(cells, ids[claim.against])
        if ours is not None and (claim.against is None or theirs is not None):
            found.append(_judged(claim, ours, theirs))
    return found or [Tested(claim, ClaimVerdict.no_record, f"no record of {claim.fate}")]


def _of(cells: dict[str, MeasuredCell], ids: set[str]) -> MeasuredCell | None:
    return next((cells[identity] for identity in ids if identity in cells), None)


def _judged(claim: Claim, ours: MeasuredCell, theirs: MeasuredCell | None) -> Tested:
    def tested(verdict: ClaimVerdict, reason: str, found: float | None = None) -> Tested:
        return Tested(claim, verdict, reason, found, ours.first.machine, ours.first.commit)

    for cell in (ours, theirs):
        if cell is not None and not cell.ok:
            return tested(ClaimVerdict.no_record, f"{cell.label} {cell.trouble}")
    values = [_values(cell, claim) for cell in (ours, theirs) if cell is not None]
    if not all(values) or not all(median(side) > 0 for side in values):
        return tested(ClaimVerdict.no_record, f"{claim.metric} was not measured")
    measured = median(values[0]) / (median(values[1]) if theirs is not None else 1.0)
    stand_in = bool(ours.ok[0].result and ours.ok[0].result.scene and ours.ok[0].result.scene.synthetic_stand_in)
    reason = "CPU-size scene" if stand_in else ""
    if METRICS[claim.metric][0] in ("s", "1/s") and ours.settings["device"] == "cpu":
        said = "modelled" if ours.source(claim.metric) == "modelled" else "measured"
        return tested(ClaimVerdict.needs_gpus, f"{said} on a CPU", measured)
    share = effect_share(claim.published, measured, relative=theirs is not None)
    if share >= REPRODUCED:
        verdict = ClaimVerdict.reproduced
    else:
        verdict = ClaimVerdict.partly if share >= PARTLY else ClaimVerdict.not_reproduced
    return tested(verdict, reason, measured)


def effect_share(published: float, found: float, relative: bool) -> float:
    """How much of the published effect was found: of ratios by their logarithms, of plain values by their ratio."""
    return math.log(found) / math.log(published) if relative else found / published


def _values(cell: MeasuredCell, claim: Claim) -> list[float]:
    if claim.metric in _CROSSING:
        return [_crossing(record, claim) for record in cell.ok]
    return cell.values(claim.metric, claim.stage)


def _crossing(record: Record, claim: Claim) -> float:
    """Bytes from one place to another: what a place sends itself crosses nothing."""
    measured = record.result.measurements if record.result else ()
    return sum(
        m.value
        for m in measured
        if m.metric == claim.metric and m.place != m.peer and (claim.stage is None or m.stage == claim.stage)
    )
