"""Reading a suite's YAML: numbers and booleans of YAML 1.2, every key with its line, nothing that can surprise.

PyYAML alone reads `1e-3` and `1e6` as strings, `on` as true, and lets the last of two equal keys win. Here numbers
and booleans are those of the YAML 1.2 core schema (section 10.3.2), equal keys, anchors, merge keys and tags are
refused, and the tree that comes back remembers where each key and value stands.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_KEY = 100
"""Suites are written by hand: larger or deeper files are mistakes, and a hostile one shall not cost memory."""


@dataclass(frozen=True)
class Place:
    """Where something was written: a file and its line, or the command-line argument in the place of the file."""

    file: str
    line: int | None = None

    def error(self, message: str) -> UserError:
        return UserError(message, self.file, self.line)


class LocatedMap(dict[str, Any]):
    """A mapping that knows its place, and those of its keys and of their values."""

    def __init__(self, place: Place):
        super().__init__()
        self.place = place
        self.key_places: dict[str, Place] = {}
        self.value_places: dict[str, Place] = {}

    def put(self, key: str, value: Any, key_place: Place, value_place: Place | None = None) -> None:
        """Set a key; a later value takes the place of an earlier one."""
        self[key] = value
        self.key_places[key] = key_place
        self.value_places[key] = value_place or key_place

    def put_from(self, other: LocatedMap, key: str) -> None:
        """Take a key with its places from another mapping."""
        self.put(key, other[key], other.key_places[key], other.value_places[key])

    def copy(self) -> LocatedMap:
        """A shallow copy with the same places."""
        twin = LocatedMap(self.place)
        for key in self:
            twin.put_from(self, key)
        return twin


class LocatedList(list[Any]):
    """A list that knows its place and those of its items."""

    def __init__(self, place: Place):
        super().__init__()
        self.place = place
        self.places: list[Place] = []

    def add(self, value: Any, place: Place) -> None:
        self.append(value)
        self.places.append(place)


_NULL, _BOOL, _INT, _FLOAT, _STR, _MERGE, _MAP, _SEQ = (
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "merge", "map", "seq")
)
_CORE_SCHEMA = (
    (_NULL, re.compile(r"(?:null|Null|NULL|~|)\Z")),
    (_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")),
    (_INT, re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")),
    (_FLOAT, re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)\Z")),
    (_FLOAT, re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")),
    (_MERGE, re.compile(r"<<\Z")),
)


class _Refused(yaml.MarkedYAMLError):
    """YAML that is well-formed, but refused here."""


class SuiteLoader(yaml.SafeLoader):
    """Composes nodes by the YAML 1.2 core schema; refuses anchors, aliases and deep nesting."""

    yaml_implicit_resolvers: dict[str | None, list[Any]] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise _Refused(problem="anchors and aliases are not supported", problem_mark=event.start_mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Refused(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _tag, _pattern in _CORE_SCHEMA:
    SuiteLoader.add_implicit_resolver(_tag, _pattern, None)


def parse(text: str, file: str, fixed_place: Place | None = None) -> Any:
    """The YAML text as plain scalars, LocatedMap and LocatedList.

    file: names the text in errors. fixed_place: used for everything, for text that is no file.
    Raises UserError with the line for text that is no YAML, and for what is refused.
    """

    def place(mark: Any) -> Place:
        return fixed_place or Place(file, mark.line + 1)

    try:
        loader = SuiteLoader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        where = place(error.problem_mark) if error.problem_mark else fixed_place or Place(file)
        raise where.error(_sentence(error)) from None
    except yaml.reader.ReaderError as error:
        where = fixed_place or Place(file, text.count("\n", 0, int(error.position)) + 1)
        raise where.error("holds a character that YAML does not allow") from None
    return None if node is None else _value(node, place)


def _sentence(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, _Refused):
        return str(error.problem)
    return "not valid YAML: " + ", ".join(str(part) for part in (error.context, error.problem) if part)


def _value(node: yaml.Node, place: Any) -> Any:
    here = place(node.start_mark)
    if not isinstance(node, yaml.ScalarNode) and node.tag not in (_MAP, _SEQ):
        raise here.error(f"tag {node.tag!r} is not supported")
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, here, place)
    if isinstance(node, yaml.SequenceNode):
        items = LocatedList(here)
        for item in node.value:
            items.add(_value(item, place), place(item.start_mark))
        return items
    return _scalar(node, here)


def _mapping(node: yaml.MappingNode, here: Place, place: Any) -> LocatedMap:
    mapping = LocatedMap(here)
    for key_node, value_node in node.value:
        key_place = place(key_node.start_mark)
        if key_node.tag == _MERGE:
            raise key_place.error("merge keys (<<) are not supported")
        key = str(key_node.value)
        if not isinstance(key_node, yaml.ScalarNode) or len(key) > MAX_KEY or not key.isprintable():
            raise key_place.error(f"a key must be a word of at most {MAX_KEY} characters")
        if key in mapping:
            first = mapping.key_places[key].line
            raise key_place.error(f"{key}: given twice, first on line {first}; expected once")
        mapping.put(key, _value(value_node, place), key_place, place(value_node.start_mark))
    return mapping


def _scalar(node: yaml.Node, here: Place) -> Any:
    text = node.value
    if node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return text.lower() == "true"
    if node.tag == _INT:
        if len(text) > 40:
            raise here.error(f"number of {len(text)} digits; expected at most 40")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if node.tag == _FLOAT:
        number = math.inf if text[-1].isalpha() else float(text)
        if not math.isfinite(number):
            raise here.error(f"value {text}; expected a finite number")
        return number
    if node.tag in (_STR, _MERGE):
        return text
    raise here.error(f"tag {node.tag!r} is not supported")


def read(file: Path) -> LocatedMap:
    """The mapping in a YAML file. Raises UserError for a missing, unreadable, too large or wrong file."""
    name = str(file)
    try:
        size = file.stat().st_size
        if file.is_file() and size > MAX_BYTES:
            raise UserError(f"{size} bytes; expected a suite of at most {MAX_BYTES}", name)
        data = file.read_bytes()
    except FileNotFoundError:
        raise UserError("no such file; expected a suite in YAML", name) from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", name) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8 text", name, data.count(b"\n", 0, error.start) + 1) from None
    tree = parse(text, name)
    if tree is None:
        raise UserError("is empty; expected a suite", name)
    if not isinstance(tree, LocatedMap):
        raise UserError(f"holds {describe(tree)}; expected a mapping of keys", name, 1)
    return tree


def describe(value: Any) -> str:
    """A value as an error shows it: short, as YAML writes it."""
    text = yaml_text(value)
    return text if len(text) <= 60 else text[:57] + "..."


def yaml_text(value: Any) -> str:
    """A value in YAML's flow style."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if "'" in value or "\\" in repr(value) else f"'{value}'"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {yaml_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_text(item) for item in value) + "]"
    return f"{value}"
