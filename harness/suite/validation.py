"""Settings become cells; what is wrong with them becomes one sentence with file, line, key, value and expectation."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.suite.cell import Cell
from harness.suite.identity import canonical_options
from harness.suite.settings import lookup, place_of, plain
from harness.suite.yaml_source import LocatedMap, Place, describe
from strategies.info import StrategyInfo
from strategies.registry import strategies

ENGINES = ("local", "gloo", "nccl", "virtual", "symmetric")
"""Engines of the built-in communicator; a strategy of another package may offer its own beside them."""


def city_presets() -> tuple[str, ...]:
    """Names of the procedural city's presets."""
    from harness.scenes.presets import PRESETS

    return tuple(PRESETS)


@cache
def cell_keys() -> dict[str, bool]:
    """Every dotted key of a cell, and whether its value is itself a list (`size`, `scene.tile`)."""
    return dict(_keys_of(Cell, ""))


def _keys_of(model: type[BaseModel], prefix: str) -> Iterable[tuple[str, bool]]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        if key == "suite":
            continue
        annotation = field.annotation
        yield key, "tuple[" in str(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _keys_of(annotation, f"{key}.")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'ranks'?`, or `; expected one of ...` where nothing is near."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; expected one of: {', '.join(known)}" if known else ""


def check_key(dotted: str, place: Place, prefix: str = "", allowed: Iterable[str] | None = None) -> None:
    """UserError for a dotted key that no cell has. Keys below `options` belong to the strategy."""
    known = set(cell_keys() if allowed is None else allowed)
    if dotted in known or (dotted.startswith("options.") and "options" in known):
        return
    parent, _, last = dotted.rpartition(".")
    siblings = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == parent]
    if not siblings:
        near = nearest(dotted, sorted(known))
        if "did you mean" not in near:
            near = nearest(dotted, sorted(key for key in known if "." not in key))
        raise place.error(f"{prefix}{dotted}: unknown key{near}")
    near = nearest(last, sorted(siblings))
    if "did you mean" not in near:  # a key of a section, written without its section's name
        inner = [key for key in sorted(known) if key.rpartition(".")[2] == last]
        near = f"; did you mean {inner[0]!r}?" if inner else near
    raise place.error(f"{prefix}{dotted}: unknown key{near}")


def check_settings(settings: LocatedMap, prefix: str, allowed: Iterable[str] | None = None) -> None:
    """UserError for an unknown key or a value of the wrong type in settings that need not be a whole cell."""
    allowed = None if allowed is None else list(allowed)
    _check_keys(settings, "", prefix, allowed)
    try:
        Cell.model_validate_json(json.dumps(plain(settings) | {"suite": "a"}), strict=True)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            if item["loc"] != ("scene",) or item["type"] != "value_error":  # a part of a scene may lack its city
                raise _translated(item, settings, prefix) from None
    if "strategy" in settings:
        strategy_info(settings, prefix)
    has_engine, engine = lookup(settings, "engine")
    if has_engine:
        _check_engine(engine, place_of(settings, ("engine",)), prefix)
    has_city, city = lookup(settings, "scene.city")
    if has_city and city is not None:
        _check_city(city, place_of(settings, ("scene", "city")), prefix)


def _check_keys(settings: LocatedMap, parent: str, prefix: str, allowed: list[str] | None) -> None:
    for key, value in settings.items():
        dotted = f"{parent}{key}"
        check_key(dotted, settings.key_places[key], prefix, allowed)
        inner = any(known.startswith(f"{dotted}.") for known in cell_keys())
        if isinstance(value, LocatedMap) and inner:
            _check_keys(value, f"{dotted}.", prefix, allowed)


def strategy_info(settings: LocatedMap, prefix: str = "") -> StrategyInfo:
    """The strategy that the settings name, `single` by default; UserError for an unknown one."""
    given, name = lookup(settings, "strategy")
    name = name if given else Cell.model_fields["strategy"].default
    known = strategies()
    if name not in known:
        place = place_of(settings, ("strategy",))
        raise place.error(f"{prefix}strategy: value {describe(name)}{_nearest_value(str(name), known)}")
    return known[name]


def _nearest_value(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"; expected one of: {', '.join(known)}{hint}"


def _check_engine(engine: Any, place: Place, prefix: str) -> None:
    known = {"auto": None} | dict.fromkeys(ENGINES)
    for info in strategies().values():
        known |= dict.fromkeys(info.engines)
    if engine not in known:
        raise place.error(f"{prefix}engine: value {describe(engine)}{_nearest_value(str(engine), known)}")


def _check_city(city: Any, place: Place, prefix: str) -> None:
    known = city_presets()
    if known and city not in known:
        raise place.error(f"{prefix}scene.city: value {describe(city)}{_nearest_value(str(city), known)}")


def to_cell(settings: LocatedMap, suite: str, name: str | None) -> Cell:
    """The cell of complete settings, its options canonical. UserError for what is wrong with them."""
    info = strategy_info(settings)
    data = plain(settings)
    data["options"] = options_of(settings, info)
    try:
        return Cell.model_validate_json(json.dumps(data | {"suite": suite, "name": name}), strict=True)
    except ValidationError as error:
        raise _translated(error.errors(include_url=False)[0], settings, "") from None


def options_of(settings: LocatedMap, info: StrategyInfo) -> dict[str, Any]:
    """The strategy's options in the settings, those that differ from its defaults."""
    given, options = lookup(settings, "options")
    if not given:
        return {}
    if not isinstance(options, LocatedMap):
        raise place_of(settings, ("options",)).error(f"options: value {describe(options)}; expected a mapping")
    for key in options:
        if key not in option_names(info):
            raise place_of(settings, ("options", key), of_key=True).error(f"options.{key}: {_foreign(key, info)}")
    try:
        return canonical_options(info.name, plain(options))
    except ValidationError as error:
        raise _translated(error.errors(include_url=False)[0], options, "options.") from None


def option_names(info: StrategyInfo) -> list[str]:
    """The strategy's options as suites write them."""
    return [field.alias or name for name, field in info.options.model_fields.items()]


def _foreign(key: str, info: StrategyInfo) -> str:
    sentence = f"strategy {info.name!r} has no such option"
    owners = [repr(other.name) for other in strategies().values() if key in option_names(other)]
    if owners:
        return f"{sentence}; {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
    own = option_names(info)
    return f"{sentence}{nearest(key, own)}" if own else f"{sentence}; expected none, since it has no options"


def _translated(item: Any, settings: LocatedMap, prefix: str) -> Exception:
    """pydantic's report of one mistake as a UserError."""
    path: tuple[str | int, ...] = tuple(item["loc"])
    kind, limits = item["type"], item.get("ctx", {})
    while path and kind == "missing" and isinstance(path[-1], int):  # a short list: speak of the list
        path = path[:-1]
    if kind == "extra_forbidden":
        place = place_of(settings, path, of_key=True)
        return place.error(f"{prefix}{_dotted(path)}: unknown key")
    found, value = True, plain(settings)
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            found = False
            break
    expectation = _expectation(kind, limits, item)
    shown = f"value {describe(value)}; " if found else ""
    return place_of(settings, path).error(f"{prefix}{_dotted(path)}: {shown}expected {expectation}")


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "cell"


def _expectation(kind: str, limits: dict[str, Any], item: Any) -> str:
    if item["loc"] and item["loc"][0] == "link" and kind == "string_pattern_mismatch":
        return "native, host or paced:<GB/s>"
    words = {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "text",
        "tuple_type": "a list",
        "list_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
        "missing": "one more item" if item["loc"] and isinstance(item["loc"][-1], int) else "a value",
    }
    if kind in words:
        return words[kind]
    comparisons = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than_equal": ("at most", "le"),
        "less_than": ("less than", "lt"),
    }
    if kind in comparisons:
        phrase, key = comparisons[kind]
        return f"{phrase} {limits[key]}"
    if kind == "literal_error":
        return str(limits["expected"])
    if kind == "too_long":
        return f"at most {limits['max_length']} items"
    if kind == "too_short":
        return f"at least {limits['min_length']} items"
    if kind == "value_error":
        return str(limits["error"]).removeprefix("expected ")
    message = str(item["msg"])
    return message.replace("Input should be ", "").replace("String should ", "text that should ")
