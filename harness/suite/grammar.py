"""The sections of a suite's file, read and checked: unknown keys, wrong types and unknown names end here, with a line.

suite: 1
name, description                     texts
defaults: {...}                       settings of every cell
prepare: {name: {...}}                training runs whose Gaussians cells start from (`from: name`)
axes: {key: [values]}                 their product; or a list of such, their products one after another
cases: [{name: ..., ...}]             single points; with `seeds: 5` one for each of so many
ladder: {strategy, steps, ...}        an ablation, or a list of them
exclude: [{key: value or values}]     points left out
by_device: {cpu: {...}, cuda: {...}}  the same sections, merged over these once the device is known
stop: {...}                           when a series of passes ends
claims: [{id: ..., ...}]              published figures and the cases that test them
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.suite import validation
from harness.suite.cell import Cell
from harness.suite.claims import Claim, read_claims
from harness.suite.settings import leaves, merged, nested, plain, single
from harness.suite.yaml_source import LocatedList, LocatedMap, Place, describe, read

GRAMMAR = 1
DEVICES = ("cpu", "cuda")
SECTIONS = ("defaults", "prepare", "axes", "cases", "ladder", "exclude", "stop")
TOP = ("suite", "name", "description", *SECTIONS, "by_device", "claims")
LADDER = ("name", "strategy", "steps", "also", "axes")


@dataclass(frozen=True)
class Axis:
    """One key and the values it takes, each with its place."""

    key: str
    place: Place
    values: tuple[tuple[Any, Place], ...]


@dataclass(frozen=True)
class Case:
    name: str
    settings: LocatedMap


@dataclass(frozen=True)
class Ladder:
    """An ablation: the bare strategy, then one step after another on top; own axes multiply it.

    name: prefix of its points' names, where a suite has several ladders.
    """

    name: str | None
    base: LocatedMap
    steps: tuple[LocatedMap, ...]
    leave_one_out: bool
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Suite:
    """A suite's file, understood: settings are nested mappings with places, still without a device.

    products: the axes of each product.
    """

    file: Path
    name: str
    description: str
    defaults: LocatedMap
    prepare: dict[str, LocatedMap]
    products: tuple[tuple[Axis, ...], ...]
    cases: tuple[Case, ...]
    ladders: tuple[Ladder, ...]
    exclude: tuple[LocatedMap, ...]
    claims: tuple[Claim, ...]


def load(file: Path) -> LocatedMap:
    """The suite's file, every section of it checked, also those of the other device. Raises UserError."""
    document = read(file)
    _check_known(document, TOP, "")
    version = _need(document, "suite", "", "the version of the grammar, 1")
    if version != GRAMMAR or isinstance(version, bool):
        raise document.value_places["suite"].error(f"suite: value {describe(version)}; expected {GRAMMAR}")
    for key in ("name", "description"):
        if key in document:
            _text(document, key, "")
    if "name" in document and not _plain_name(document["name"]):
        raise document.value_places["name"].error(
            f"name: value {describe(document['name'])}; expected letters, digits, '.', '_' and '-' (it names a folder)"
        )
    if "name" not in document and not _plain_name(file.stem):
        raise document.place.error(f"name: missing, and {file.stem!r} of the file can name no folder; expected a name")
    understand(document, file)
    devices = _map(document, "by_device", "")
    _check_known(devices, DEVICES, "by_device.")
    for device in devices:
        section = _map(devices, device, "by_device.")
        _check_known(section, SECTIONS, f"by_device.{device}.")
        understand(for_device(document, device), file)
    return document


def for_device(document: LocatedMap, device: str) -> LocatedMap:
    """The document with its `by_device` section of that device merged over it."""
    sections = _map(document, "by_device", "").get(device)
    return document if sections is None else merged(_nested_sections(document), _nested_sections(sections))


def _nested_sections(sections: LocatedMap) -> LocatedMap:
    """Dotted keys of the defaults become nested ones, so that merging meets like with like."""
    result = sections.copy()
    if "defaults" in sections:
        result.put("defaults", nested(_map(sections, "defaults", "")), sections.key_places["defaults"])
    prepare = _map(sections, "prepare", "")
    if prepare:
        entries = LocatedMap(prepare.place)
        for name in prepare:
            entries.put(name, nested(_map(prepare, name, "prepare.")), prepare.key_places[name])
        result.put("prepare", entries, sections.key_places["prepare"])
    return result


def understand(document: LocatedMap, file: Path) -> Suite:
    """The sections of a document whose device is merged. Raises UserError for what is wrong."""
    defaults = _settings(_map(document, "defaults", ""), "defaults.", ("name",))
    if "stop" in document:
        stop = LocatedMap(document.place)
        stop.put("stop", _map(document, "stop", ""), document.key_places["stop"], document.value_places["stop"])
        validation.check_settings(stop, "")
        defaults = merged(defaults, stop)
    prepare = _map(document, "prepare", "")
    cases = _cases(document)
    return Suite(
        file=file,
        name=document.get("name") or file.stem,
        description=document.get("description") or "",
        defaults=defaults,
        prepare={
            name: _settings(_map(prepare, name, "prepare."), f"prepare.{name}.", ("name", "from")) for name in prepare
        },
        products=_products(document),
        cases=cases,
        ladders=_ladders(document),
        exclude=_excludes(document),
        claims=read_claims(_maps(document, "claims", ""), [case.name for case in cases]),
    )


def _settings(section: LocatedMap, prefix: str, refused: tuple[str, ...] = ()) -> LocatedMap:
    allowed = [key for key in validation.cell_keys() if key.split(".")[0] not in refused]
    settings = nested(section, prefix)
    validation.check_settings(settings, prefix, allowed)
    return settings


def _products(document: LocatedMap) -> tuple[tuple[Axis, ...], ...]:
    if isinstance(document.get("axes"), LocatedList):
        return tuple(_axes(item, f"axes[{i}].", ("repeats",)) for i, item in enumerate(_maps(document, "axes", "")))
    axes = _axes(_map(document, "axes", ""), "axes.")
    return (axes,) if axes else ()


def _axes(section: LocatedMap, prefix: str, constants: tuple[str, ...] = ()) -> tuple[Axis, ...]:
    """constants: keys that make no cells of their own, of which an axis has one value."""
    refused = {"name", "repeats", "stop"}.difference(constants)
    allowed = [key for key in validation.cell_keys() if key.split(".")[0] not in refused]
    axes = []
    for key, values in section.items():
        validation.check_key(key, section.key_places[key], prefix, allowed)
        place = section.value_places[key]
        if not isinstance(values, LocatedList):
            raise place.error(f"{prefix}{key}: value {describe(values)}; expected a list of values")
        if not values:
            raise place.error(f"{prefix}{key}: value []; expected at least one value")
        if key in constants and len(values) > 1:
            raise place.error(f"{prefix}{key}: value {describe(values)}; expected one value")
        for value, where in zip(values, values.places, strict=True):
            validation.check_settings(single(key, value, section.key_places[key], where), prefix)
        axes.append(Axis(key, section.key_places[key], tuple(zip(values, values.places, strict=True))))
    return tuple(axes)


def _cases(document: LocatedMap) -> tuple[Case, ...]:
    cases: list[Case] = []
    seen: dict[str, Place] = {}
    for i, case in enumerate(_maps(document, "cases", "")):
        where = f"cases[{i}]."
        name = _need(case, "name", where, "a name of its own")
        _text(case, "name", where)
        if name in seen:
            raise case.value_places["name"].error(
                f"{where}name: value {describe(name)} is taken on line {seen[name].line}; expected a name of its own"
            )
        seen[name] = case.value_places["name"]
        settings = case.copy()
        del settings["name"]
        settings.pop("seeds", None)
        settings = _settings(settings, where, ("name", "seeds"))
        for seed in _seeds(case, where):
            cases.append(Case(name, settings if seed is None else merged(settings, seed)))
    return tuple(cases)


def _seeds(case: LocatedMap, where: str) -> list[LocatedMap | None]:
    """Settings of each of the case's seeds, from 0 on; without `seeds` none, once."""
    if "seeds" not in case:
        return [None]
    key, value = case.key_places["seeds"], case.value_places["seeds"]
    count = plain(case["seeds"])
    if not isinstance(count, int) or isinstance(count, bool) or count < 2:
        raise value.error(f"{where}seeds: value {describe(case['seeds'])}; expected a number of seeds, two or more")
    if "seed" in case:
        raise key.error(f"{where}seeds: given beside seed; expected one of both")
    return [single("seed", seed, key, value) for seed in range(count)]


def _ladders(document: LocatedMap) -> tuple[Ladder, ...]:
    if isinstance(document.get("ladder"), LocatedMap):
        sections = [("ladder.", _map(document, "ladder", ""))]
    else:
        sections = [(f"ladder[{i}].", item) for i, item in enumerate(_maps(document, "ladder", ""))]
    return tuple(_ladder(section, where) for where, section in sections)


def _ladder(section: LocatedMap, where: str) -> Ladder:
    _check_known(section, LADDER, where)
    if "name" in section:
        _text(section, "name", where)
    _need(section, "strategy", where, "the strategy to ablate")
    base = LocatedMap(section.place)
    base.put_from(section, "strategy")
    validation.check_settings(base, where)
    names = validation.option_names(validation.strategy_info(base))
    steps = _maps(section, "steps", where)
    if not steps:
        place = section.value_places.get("steps", section.place)
        raise place.error(f"{where}steps: {'no items' if 'steps' in section else 'missing'}; expected a list of steps")
    also = section.get("also")
    if also not in (None, "leave_one_out"):
        raise section.value_places["also"].error(f"{where}also: value {describe(also)}; expected leave_one_out")
    return Ladder(
        name=section.get("name"),
        base=base,
        steps=tuple(_step(step, names, f"{where}steps[{i}].") for i, step in enumerate(steps)),
        leave_one_out=also is not None,
        axes=_axes(_map(section, "axes", where), f"{where}axes."),
    )


def _step(step: LocatedMap, option_names: list[str], where: str) -> LocatedMap:
    """A step's settings: its plain words are options of the ladder's strategy, else keys of the cell."""
    if not step:
        raise step.place.error(f"{where[:-1]}: value {{}}; expected at least one option")
    known = validation.cell_keys()
    full = LocatedMap(step.place)
    for key, value in step.items():
        is_option = key in option_names or ("." not in key and key not in known)
        full.put(f"options.{key}" if is_option else key, value, step.key_places[key], step.value_places[key])
    return _settings(full, where, ("name",))


def _excludes(document: LocatedMap) -> tuple[LocatedMap, ...]:
    entries = []
    for i, entry in enumerate(_maps(document, "exclude", "")):
        where = f"exclude[{i}]."
        if not entry:
            raise entry.place.error(f"{where[:-1]}: value {{}}; expected at least one key")
        settings = nested(entry, where)
        for key, _ in leaves(settings):
            validation.check_key(key, settings.key_places[key.split(".")[0]], where)
        entries.append(settings)
    return tuple(entries)


def _check_known(mapping: LocatedMap, known: tuple[str, ...], prefix: str) -> None:
    for key in mapping:
        if key not in known:
            hint = validation.nearest(key, known)
            if "did you mean" not in hint and key in Cell.model_fields:
                hint = f"; did you mean 'defaults.{key}'?"
            raise mapping.key_places[key].error(f"{prefix}{key}: unknown key{hint}")


def _need(mapping: LocatedMap, key: str, prefix: str, expected: str) -> Any:
    if key not in mapping:
        raise mapping.place.error(f"{prefix}{key}: missing; expected {expected}")
    return mapping[key]


def _text(mapping: LocatedMap, key: str, prefix: str) -> None:
    if not isinstance(mapping[key], str) or not mapping[key]:
        raise mapping.value_places[key].error(f"{prefix}{key}: value {describe(mapping[key])}; expected text")


def _plain_name(name: str) -> bool:
    return all(c.isalnum() or c in "._-" for c in name) and not name.startswith(".")


def _map(mapping: LocatedMap, key: str, prefix: str) -> LocatedMap:
    """The mapping under that key, empty where it is absent or null."""
    value = mapping.get(key)
    if value is None:
        return LocatedMap(mapping.place)
    if not isinstance(value, LocatedMap):
        raise mapping.value_places[key].error(f"{prefix}{key}: value {describe(value)}; expected a mapping")
    return value


def _maps(mapping: LocatedMap, key: str, prefix: str) -> list[LocatedMap]:
    """The list of mappings under that key, empty where it is absent or null."""
    value = mapping.get(key)
    if value is None:
        return []
    if not isinstance(value, LocatedList):
        raise mapping.value_places[key].error(f"{prefix}{key}: value {describe(value)}; expected a list of mappings")
    for i, (item, place) in enumerate(zip(value, value.places, strict=True)):
        if not isinstance(item, LocatedMap):
            raise place.error(f"{prefix}{key}[{i}]: value {describe(item)}; expected a mapping")
    return list(value)
