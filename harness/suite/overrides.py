"""`--set key=value` and `--only key=pattern`: what the command line changes and selects."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import UserError
from harness.suite import validation
from harness.suite.cell import Cell
from harness.suite.expansion import Point
from harness.suite.grammar import Axis, Suite
from harness.suite.settings import lookup, merged, short_text, single
from harness.suite.yaml_source import LocatedList, LocatedMap, Place, parse
from strategies.registry import strategies

NAME_SEPARATOR = " = "
"""Joins the names of points that turned out to be the same cell."""
_MOST_TOLD = 8
"""Values that an error lists."""


@dataclass(frozen=True)
class Override:
    """One `--set`: settings that go over those of every point."""

    key: str
    value: Any
    place: Place

    @property
    def settings(self) -> LocatedMap:
        return single(self.key, self.value, self.place, self.place)

    @property
    def option(self) -> str | None:
        """The strategy's option that it sets, if it sets one."""
        return self.key.removeprefix("options.") if self.key.startswith("options.") else None


def parse_overrides(texts: Iterable[str]) -> list[Override]:
    """The overrides of `key=value` texts, the values in YAML. Raises UserError."""
    overrides: list[Override] = []
    for text in texts:
        place = Place(f"--set {' '.join(text.split())}")
        key, equals, value_text = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise place.error("expected key=value, as in ranks=2 or training.footprint=square")
        if any(other.key == key for other in overrides):
            raise place.error(f"{key}: given twice; expected once")
        validation.check_key(key, place, allowed=[key for key in validation.cell_keys() if key != "name"])
        overrides.append(Override(key, parse(value_text, place.file, fixed_place=place), place))
    return overrides


def override_axes(suite: Suite, overrides: list[Override]) -> tuple[Suite, list[Override]]:
    """The suite with its axes replaced where a list overrides one, and the overrides that go over every point.

    A list is a list of values for the axis of that key; of a key whose value is itself a list (`size`), a list of
    lists is. Every value is checked here.
    """
    remaining = []
    for override in overrides:
        products = [*suite.products, *(ladder.axes for ladder in suite.ladders)]
        if any(axis.key == override.key for axes in products for axis in axes) and _is_list_of_values(override):
            if not override.value:
                raise override.place.error(f"{override.key}: value []; expected at least one value")
            for value in override.value:
                validation.check_settings(single(override.key, value, override.place, override.place), "")
            values = tuple((value, override.place) for value in override.value)
            suite = replace(
                suite,
                products=tuple(_replaced(axes, override.key, values) for axes in suite.products),
                ladders=tuple(
                    replace(ladder, axes=_replaced(ladder.axes, override.key, values)) for ladder in suite.ladders
                ),
            )
            # Cases and ladders without that axis have one value: a list says nothing to them.
        else:
            validation.check_settings(override.settings, "")
            remaining.append(override)
    return suite, remaining


def _is_list_of_values(override: Override) -> bool:
    if not isinstance(override.value, LocatedList):
        return False
    return not validation.cell_keys().get(override.key, False) or all(isinstance(item, list) for item in override.value)


def _replaced(axes: tuple[Axis, ...], key: str, values: tuple[tuple[Any, Place], ...]) -> tuple[Axis, ...]:
    return tuple(replace(axis, values=values) if axis.key == key else axis for axis in axes)


def override_points(points: list[Point], overrides: list[Override]) -> list[Point]:
    """The points with the overrides on top.

    An option goes to the points whose strategy has it; one that no strategy of the suite has is a UserError.
    """
    for override in overrides:
        chosen = [point for point in points if _takes(point, override)]
        if not chosen:
            validation.to_cell(merged(points[0].settings, override.settings), "a", None)
            raise override.place.error(f"{override.key}: matches no cell; expected a strategy that has this option")
        chosen_ids = {id(point) for point in chosen}
        points = [
            replace(point, settings=merged(point.settings, override.settings)) if id(point) in chosen_ids else point
            for point in points
        ]
    return points


def _takes(point: Point, override: Override) -> bool:
    if override.option is None:
        return True
    return override.option in validation.option_names(validation.strategy_info(point.settings))


@dataclass(frozen=True)
class Filter:
    """One `--only`: a key of the cell (or `name`, `cell`) and the patterns of which its value must match one."""

    text: str
    key: str
    patterns: tuple[str, ...]

    def matches(self, cell: Cell, cell_id: str) -> bool:
        if self.key == "cell":
            return any(cell_id.startswith(pattern) for pattern in self.patterns)
        if self.key == "name":
            names = [] if cell.name is None else [cell.name, *cell.name.split(NAME_SEPARATOR)]
            return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.patterns)
        found, value = self.value_of(cell)
        return found and any(_value_matches(value, pattern) for pattern in self.patterns)

    def value_of(self, cell: Cell) -> tuple[bool, Any]:
        """Whether the cell has the key, an option at its default too, and its value."""
        described = cell.model_dump(mode="json", by_alias=True)
        options = strategies()[cell.strategy].options.model_validate(cell.options)
        return lookup({**described, "options": options.model_dump(mode="json", by_alias=True)}, self.key)


def _value_matches(value: Any, pattern: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(pattern) == value
        except ValueError:
            pass
    return fnmatch.fnmatchcase(short_text(value), pattern)


def parse_filters(texts: Iterable[str]) -> list[Filter]:
    """The filters of `key=value[,value]` texts. Raises UserError for an unknown key."""
    filters = []
    for text in texts:
        place = Place(f"--only {' '.join(text.split())}")
        key, equals, values = text.partition("=")
        patterns = tuple(value.strip() for value in values.split(",") if value.strip())
        if not equals or not key.strip() or not patterns:
            raise place.error("expected key=value[,value], as in strategy=single or name=all-*")
        key = key.strip()
        validation.check_key(key, place, allowed=[*validation.cell_keys(), "cell"])
        filters.append(Filter(text, key, patterns))
    return filters


def check_selects(filters: list[Filter], cells: list[tuple[Cell, str]]) -> None:
    """UserError for a filter that no cell passes, or for filters that none passes together."""
    for one in filters:
        if not any(one.matches(cell, cell_id) for cell, cell_id in cells):
            values = (
                value for found, value in (one.value_of(cell) for cell, _ in cells) if found and value is not None
            )
            told = dict.fromkeys(map(short_text, values))
            have = f", which have {', '.join(told)}" if 0 < len(told) <= _MOST_TOLD else "; `plan` lists them"
            raise UserError(f"{one.key}: matches none of {len(cells)} cells{have}", f"--only {one.text}")
    if not any(all(one.matches(cell, cell_id) for one in filters) for cell, cell_id in cells):
        raise UserError(f"no cell passes all {len(filters)} filters; `plan` lists the cells", "--only")
