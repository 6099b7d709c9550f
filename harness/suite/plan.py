"""A suite's file, on this machine, as a list of cells: what runs, what it is called, what cannot run and why."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.suite import grammar, validation
from harness.suite.cell import Cell
from harness.suite.claims import Claim
from harness.suite.expansion import Point, expand, without_excluded
from harness.suite.feasibility import resolve, resolve_device, skip_reason
from harness.suite.identity import cell_id
from harness.suite.machine import Machine, this_machine
from harness.suite.memory import gaussian_count, predicted_bytes
from harness.suite.overrides import (
    NAME_SEPARATOR,
    Filter,
    Override,
    check_selects,
    override_axes,
    override_points,
    parse_filters,
    parse_overrides,
)
from harness.suite.settings import lookup, merged, place_of
from harness.suite.yaml_source import LocatedMap, describe


@dataclass(frozen=True)
class Planned:
    """One cell of a plan.

    predicted_bytes: memory a device, as of `memory`; None where it is unknown. skip: why it cannot run here; None when
    it can. preparation: it trains what others start from, outside every clock; its name is that of its `prepare` entry,
    and its cell_id stands in the `from` of the cells that use it.
    """

    cell: Cell
    cell_id: str
    predicted_bytes: int | None
    skip: str | None
    preparation: bool = False


@dataclass(frozen=True)
class Plan:
    """A suite on this machine. cells: preparations first, then the suite's own, in the order of its file.

    file: as it was given. device: what `device: auto` is here. overrides: the `--set` texts that repeat it. claims:
    published figures and what becomes of them. Paths in cells are relative to the current directory.
    """

    suite: str
    description: str
    file: Path
    device: str
    machine: Machine
    cells: tuple[Planned, ...]
    overrides: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


def plan(
    file: str | Path,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    device: str | None = None,
    machine: Machine | None = None,
) -> Plan:
    """The plan of a suite's file.

    overrides: `key=value` texts as of `--set`. only: `key=value[,value]` texts as of `--only`; all must hold. device:
    overrides the suite's. machine: in the place of this one. Raises UserError for every mistake in any of them.
    """
    file, texts, machine = Path(file), tuple(overrides), machine or this_machine()
    if device is not None:
        texts = (*(text for text in texts if not text.startswith("device=")), f"device={device}")
    parsed, filters = parse_overrides(texts), parse_filters(only)
    document = grammar.load(file)
    resolved_device = resolve_device(_asked_device(document, parsed), machine)
    suite = grammar.understand(grammar.for_device(document, resolved_device), file)
    suite, parsed = override_axes(suite, parsed)
    points = override_points(expand(suite), parsed)
    points = without_excluded(points, suite.exclude, strict=not texts)
    if not points:
        raise document.place.error("every cell is excluded; expected at least one cell")
    builder = _Builder(suite, parsed, machine)
    cells = _unique(builder.planned(point) for point in points)
    cells = _selected(cells, list(builder.preparations.values()), filters)
    return Plan(suite.name, suite.description, file, resolved_device, machine, tuple(cells), texts, suite.claims)


def _selected(cells: list[Planned], preparations: list[Planned], filters: list[Filter]) -> list[Planned]:
    """The preparations in use, then the cells that pass all filters. `cell=ID` alone can name a preparation."""
    by_id = any(one.key == "cell" for one in filters)
    candidates = [*preparations, *cells] if by_id else cells
    check_selects(filters, [(planned.cell, planned.cell_id) for planned in candidates])
    chosen = [p for p in candidates if all(one.matches(p.cell, p.cell_id) for one in filters)]
    used = {p.cell.from_ for p in chosen} | {p.cell_id for p in chosen if p.preparation}
    return [p for p in preparations if p.cell_id in used] + [p for p in chosen if not p.preparation]


def _asked_device(document: LocatedMap, overrides: list[Override]) -> str:
    for override in overrides:
        if override.key == "device":
            validation.check_settings(override.settings, "")
            return str(override.value)
    found, device = lookup(document, "defaults.device")
    return str(device) if found else "auto"


class _Builder:
    """Makes planned cells of points, and the preparations that they ask for."""

    def __init__(self, suite: grammar.Suite, overrides: list[Override], machine: Machine):
        self._suite = suite
        self._overrides = overrides
        self._machine = machine
        self.preparations: dict[str, Planned] = {}
        """By cell_id, in the order of their first use."""

    def planned(self, point: Point) -> Planned:
        cell, info = self._resolved(point)
        preparation = None
        if cell.from_ is not None:
            preparation = self._prepared(cell, point)
            cell = cell.model_copy(update={"from_": preparation.cell_id})
        gaussians = None
        if preparation is not None:
            gaussians = gaussian_count(preparation.cell.scene, preparation.cell.scenario)
        skip = skip_reason(cell, info, self._machine)
        if skip is None and preparation is not None and preparation.skip is not None:
            skip = f"its preparation {preparation.cell.name!r} cannot run: {preparation.skip}"
        return Planned(cell, cell_id(cell), predicted_bytes(cell, gaussians), skip)

    def _prepared(self, user: Cell, point: Point) -> Planned:
        """The preparation that a cell starts from.

        It has the suite's defaults with the overrides, on them what the entry says, and, where the entry is silent,
        the scene, size and device of the cell that uses it.
        """
        entries = self._suite.prepare
        if user.from_ not in entries:
            hint = validation.nearest(str(user.from_), entries) or "; the suite has no prepare section"
            raise place_of(point.settings, ("from",)).error(f"from: value {describe(user.from_)}{hint}")
        entry = entries[user.from_]
        settings = self._suite.defaults
        for override in self._overrides:
            if override.option is None:
                settings = merged(settings, override.settings)
        for key in ("scene", "size", "device"):
            if key in point.settings:
                settings = settings.copy()
                settings.put_from(point.settings, key)
        settings = merged(settings, entry)
        settings.pop("from", None)
        if "scenario" not in entry:
            settings.put("scenario", "train", entry.place)
        if settings["scenario"] != "train":
            raise place_of(settings, ("scenario",)).error(
                f"prepare.{user.from_}.scenario: value {describe(settings['scenario'])}; expected 'train'"
            )
        cell, info = self._resolved(Point(user.from_, settings))
        cell = cell.model_copy(update={"repeats": 1})
        identity = cell_id(cell)
        if identity not in self.preparations:
            skip = skip_reason(cell, info, self._machine)
            self.preparations[identity] = Planned(cell, identity, predicted_bytes(cell), skip, preparation=True)
        return self.preparations[identity]

    def _resolved(self, point: Point) -> tuple[Cell, Any]:
        info = validation.strategy_info(point.settings)
        cell = validation.to_cell(point.settings, self._suite.name, point.name)
        _check_city(cell, point.settings)
        cell = self._with_found_paths(cell, point.settings)
        return resolve(cell, info, self._machine), info

    def _with_found_paths(self, cell: Cell, settings: LocatedMap) -> Cell:
        """The cell with its scene's paths relative to the current directory, where its processes run.

        A path is looked for there first, then beside the suite's file.
        """
        found = {}
        for key, kind in (("path", "folder or transforms.json"), ("model", "PLY file")):
            given = getattr(cell.scene, key)
            if given is None:
                continue
            candidates = [Path(given).expanduser(), self._suite.file.parent / given]
            match = next((path for path in candidates if path.is_file() or (key == "path" and path.is_dir())), None)
            if match is None and key == "path" and cell.scene.optional:
                continue
            if match is None:
                raise place_of(settings, ("scene", key)).error(
                    f"scene.{key}: value {describe(given)}; expected a {kind} that exists"
                )
            found[key] = os.path.relpath(match)
        return cell.model_copy(update={"scene": cell.scene.model_copy(update=found)}) if found else cell


def _unique(cells: Iterable[Planned]) -> list[Planned]:
    """Each cell once, in the order of first occurrence, with all the names it goes by."""
    unique: dict[str, Planned] = {}
    for planned in cells:
        first = unique.get(planned.cell_id)
        if first is None:
            unique[planned.cell_id] = planned
            continue
        if _scene_files(first.cell) != _scene_files(planned.cell):
            raise UserError(
                f"scene: {_scene_files(first.cell)} and {_scene_files(planned.cell)} end in the same name, by which "
                "cells are told apart; expected different names"
            )
        names = [name for name in (first.cell.name, planned.cell.name) if name]
        name = NAME_SEPARATOR.join(dict.fromkeys(names)) or None
        unique[planned.cell_id] = replace(first, cell=first.cell.model_copy(update={"name": name}))
    return list(unique.values())


def _check_city(cell: Cell, settings: LocatedMap) -> None:
    """UserError for what a city cannot do: have images of no size, or be trained on without points."""
    if cell.scene.city is None:
        return
    if cell.size is None:
        raise place_of(settings, ("size",)).error(
            "size: value null; expected [width, height], since a city's images have no size of their own"
        )
    trains_from_points = cell.scenario == "train" and cell.from_ is None and cell.scene.model is None
    if trains_from_points and gaussian_count(cell.scene, cell.scenario) is None:
        raise place_of(settings, ("scene", "city")).error(
            f"scene.city: value {describe(cell.scene.city)} has no points to train from; expected another or `from`"
        )


def _scene_files(cell: Cell) -> str:
    return " with ".join(repr(file) for file in (cell.scene.path, cell.scene.model) if file)
