"""A suite becomes points: the products of its axes, its cases, its ladders, less what it excludes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.suite import validation
from harness.suite.cell import Cell
from harness.suite.grammar import Axis, Ladder, Suite
from harness.suite.settings import leaves, lookup, merged, plain, short_text, single
from harness.suite.yaml_source import LocatedList, LocatedMap, yaml_text
from strategies.registry import strategies

MAX_POINTS = 10_000
"""Combinations of axes; more are a mistake, and would take minutes to plan."""

BARE = "base"
"""Name of a ladder's first point, the strategy without any step."""


@dataclass(frozen=True)
class Point:
    """Settings of one cell-to-be. name: of its case or ladder step."""

    name: str | None
    settings: LocatedMap


def expand(suite: Suite) -> list[Point]:
    """The suite's points in the order of its file: products (the first axis varies slowest), cases, ladders.

    A suite with neither axes, cases nor ladders is the one point of its defaults.
    """
    points: list[Point] = []
    alone: tuple[tuple[Axis, ...], ...] = () if suite.cases or suite.ladders else ((),)
    for axes in suite.products or alone:
        points += [Point(None, merged_all(suite.defaults, combination)) for combination in product(axes)]
    points += [Point(case.name, merged(suite.defaults, case.settings)) for case in suite.cases]
    for ladder in suite.ladders:
        start = merged(suite.defaults, ladder.base)
        for combination in product(ladder.axes):
            bare = merged_all(start, combination)
            points += [Point(name, merged_all(bare, steps)) for name, steps in ladder_points(ladder)]
    return points


def product(axes: tuple[Axis, ...]) -> Iterator[list[LocatedMap]]:
    """Every combination of the axes' values; whole keys go before keys inside them (`scene`, `scene.gaussians`)."""
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_POINTS:
        raise axes[0].place.error(f"axes: {count} combinations; expected at most {MAX_POINTS}")
    choices = [[(axis, value, place) for value, place in axis.values] for axis in axes]
    for combination in itertools.product(*choices):
        ordered = sorted(combination, key=lambda choice: choice[0].key.count("."))
        yield [single(axis.key, value, axis.place, place) for axis, value, place in ordered]


def merged_all(base: LocatedMap, layers: Iterable[LocatedMap]) -> LocatedMap:
    """The layers on top of the base, one after another."""
    for layer in layers:
        base = merged(base, layer)
    return base


def ladder_points(ladder: Ladder) -> Iterator[tuple[str, list[LocatedMap]]]:
    """Name and steps of each of a ladder's points: bare, then cumulative, then all but one where asked for."""
    prefix = f"{ladder.name}: " if ladder.name else ""
    yield prefix + BARE, []
    for i, step in enumerate(ladder.steps):
        text = ",".join(f"{key.removeprefix('options.')}={short_text(value)}" for key, value in leaves(step))
        yield f"{prefix}+{text}", list(ladder.steps[: i + 1])
    if ladder.leave_one_out:
        keys = [",".join(key.removeprefix("options.") for key, _ in leaves(step)) for step in ladder.steps]
        for i, step in enumerate(ladder.steps):
            name = keys[i]
            if keys.count(name) > 1:
                name = ",".join(f"{key.removeprefix('options.')}={short_text(value)}" for key, value in leaves(step))
            yield f"{prefix}all-{name}", [*ladder.steps[:i], *ladder.steps[i + 1 :]]


def without_excluded(points: list[Point], exclude: Iterable[LocatedMap], strict: bool) -> list[Point]:
    """The points that no entry matches. strict: an entry that matches nothing is a UserError."""
    kept = points
    for entry in exclude:
        matching = [point for point in points if excludes(entry, point)]
        if strict and not matching:
            raise entry.place.error(f"exclude: value {{{_entry_text(entry)}}} matches no cell; expected at least one")
        dropped = {id(point) for point in matching}
        kept = [point for point in kept if id(point) not in dropped]
    return kept


def _entry_text(entry: LocatedMap) -> str:
    return ", ".join(f"{key}: {yaml_text(value)}" for key, value in leaves(entry))


def excludes(entry: LocatedMap, point: Point) -> bool:
    """Whether the point has, for every key of the entry, its value or one of its values."""
    return all(_matches(key, wanted, value_at(point, key)) for key, wanted in leaves(entry))


def _matches(key: str, wanted: Any, actual: Any) -> bool:
    if isinstance(wanted, LocatedList):
        is_one_value = validation.cell_keys().get(key, False) and not any(isinstance(item, list) for item in wanted)
        if not is_one_value:
            return any(_equal(item, actual) for item in wanted)
    return _equal(wanted, actual)


def _equal(wanted: Any, actual: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(_equal(value, actual.get(key)) for key, value in wanted.items())
    if isinstance(wanted, str) and isinstance(actual, dict):
        return actual.get("path") == wanted
    return type(plain(wanted)) is type(plain(actual)) and plain(wanted) == plain(actual)


def value_at(point: Point, dotted: str) -> Any:
    """The point's value of that key: as set, else the default of the cell, or of its strategy's option."""
    if dotted == "name":
        return point.name
    found, value = lookup(point.settings, dotted)
    if found:
        return value
    if dotted.startswith("options."):
        given, name = lookup(point.settings, "strategy")
        info = strategies().get(name if given else Cell.model_fields["strategy"].default)
        for field_name, field in info.options.model_fields.items() if info else ():
            if (field.alias or field_name) == dotted.removeprefix("options."):
                return field.get_default(call_default_factory=True)
        return None
    found, value = lookup(plain(Cell(suite="a").model_dump(mode="json", by_alias=True)), dotted)
    return value
