"""`history`: a cell's time from commit to commit, and where it made a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness.evidence.comparison import time_metrics
from harness.evidence.measured import MeasuredCell, read
from harness.evidence.verdicts import MIN_REPEATS, mann_whitney, minimum_effect
from harness.measure.statistics import median

STEP_P = 0.01
"""Chance of a step where there is none, of one series."""


@dataclass(frozen=True)
class Point:
    """One code's repeats of a cell, seconds. step: relative change of the level that begins here, or None."""

    commit: str
    started: str
    seconds: list[float]
    step: float | None = None


@dataclass(frozen=True)
class Series:
    """A cell's points in the order in which they ran, all in one environment."""

    label: str
    metric: str
    stage: str | None
    machine: str
    points: list[Point]


def history(folders: Sequence[Path]) -> list[Series]:
    """The series of every cell and environment of the records at or below the folders that has a time.

    A point is what one code measured, under the commit of its newest record. UserError for a folder that is not there.
    """
    by_cell: dict[tuple[str, str], list[MeasuredCell]] = defaultdict(list)
    for cell in read(folders, every_code=True):
        by_cell[cell.key].append(cell)
    found = []
    for cells in by_cell.values():
        first = next((cell for cell in cells if cell.ok), None)
        if first is None:
            continue
        effect = minimum_effect(first.settings["device"])
        for metric, stage in time_metrics(first):
            points = [
                Point(record.commit, record.started, seconds)
                for cell in cells
                if (seconds := cell.values(metric, stage)) and (record := cell.repeats[-1][1])
            ]
            points.sort(key=lambda point: point.started)
            steps = dict(find_steps([point.seconds for point in points], effect))
            stepped = [Point(p.commit, p.started, p.seconds, steps.get(i)) for i, p in enumerate(points)]
            if stepped:
                found.append(Series(first.label, metric, stage, first.first.machine, stepped))
    return found


def find_steps(points: Sequence[Sequence[float]], effect: float) -> list[tuple[int, float]]:
    """Where the level changes: (index of the first point of the new level, relative change), in order.

    Binary segmentation (Scott & Knott 1974): the split of all repeats with the smallest Mann-Whitney p is a step if its
    medians differ by more than `effect`, each side has four repeats, and p is below 0.01 over the number of possible
    splits: a history has many series, and each may raise an alarm. Then both sides are searched alike. Changes are
    those between the levels that remain.
    """
    cuts = sorted(_cuts(points, 0, len(points), effect))
    edges = [0, *cuts, len(points)]
    levels = [median(_pooled(points, lo, hi)) for lo, hi in pairwise(edges)]
    return [(cut, after / before - 1) for cut, (before, after) in zip(cuts, pairwise(levels), strict=True)]


def _cuts(points: Sequence[Sequence[float]], lo: int, hi: int, effect: float) -> list[int]:
    best: tuple[float, float, int] | None = None
    for cut in range(lo + 1, hi):
        before, after = _pooled(points, lo, cut), _pooled(points, cut, hi)
        if min(len(before), len(after)) < MIN_REPEATS:
            continue
        change = abs(median(after) / median(before) - 1)
        candidate = mann_whitney(before, after), -change, cut
        if change > effect and (best is None or candidate < best):
            best = candidate
    if best is None or best[0] >= STEP_P / (hi - lo - 1):
        return []
    cut = best[2]
    return [*_cuts(points, lo, cut, effect), cut, *_cuts(points, cut, hi, effect)]


def _pooled(points: Sequence[Sequence[float]], lo: int, hi: int) -> list[float]:
    return [value for point in points[lo:hi] for value in point]
