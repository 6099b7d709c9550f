"""Cell settings before they are a cell: nested mappings with places, dotted keys, merging and looking up.

Settings are what suites write about a cell: any of its keys, nested (`training: {footprint: square}`) or dotted
(`training.footprint: square`). They stay untyped here; `validation` makes a Cell of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.suite.yaml_source import LocatedList, LocatedMap, Place, yaml_text

_SCENE = "scene"
_SCENE_IDENTITY = ("city", "path")


def nested(settings: LocatedMap, prefix: str = "") -> LocatedMap:
    """Dotted keys become nested mappings, a scene given as text becomes `{path: text}`.

    prefix: names the section in errors. Raises UserError for a key that is given twice in the two forms.
    """
    result = LocatedMap(settings.place)
    for dotted, value in settings.items():
        *parents, key = dotted.split(".")
        target = result
        for i, parent in enumerate(parents):
            if parent not in target:
                target.put(parent, LocatedMap(settings.key_places[dotted]), settings.key_places[dotted])
            inner = target[parent]
            if not isinstance(inner, LocatedMap):
                raise settings.key_places[dotted].error(
                    f"{prefix}{dotted}: {'.'.join(parents[: i + 1])!r} has a value of its own; expected one of both"
                )
            target = inner
        if isinstance(value, LocatedMap):
            value = nested(value, f"{prefix}{dotted}.")
        if dotted == _SCENE and isinstance(value, str):
            value = scene_of_path(value, settings.value_places[dotted])
        _put_once(target, key, value, settings, dotted, prefix)
    return result


def _put_once(target: LocatedMap, key: str, value: Any, source: LocatedMap, dotted: str, prefix: str) -> None:
    places = source.key_places[dotted], source.value_places[dotted]
    if key not in target:
        target.put(key, value, *places)
    elif (
        isinstance(value, LocatedMap) and isinstance(target[key], LocatedMap) and not value.keys() & target[key].keys()
    ):
        for inner in value:
            target[key].put_from(value, inner)
    else:
        raise places[0].error(f"{prefix}{dotted}: given twice, once nested and once dotted; expected once")


def scene_of_path(path: str, place: Place) -> LocatedMap:
    """The scene that a plain text stands for."""
    scene = LocatedMap(place)
    scene.put("path", path, place)
    return scene


def merged(base: LocatedMap, over: LocatedMap) -> LocatedMap:
    """`over` on top of `base`, mappings merged key by key, lists and scalars replaced.

    A scene that names another city or folder replaces the whole scene: the size of one is nothing to the other.
    """
    result = base.copy()
    for key, value in over.items():
        old = result.get(key)
        if (
            isinstance(value, LocatedMap)
            and isinstance(old, LocatedMap)
            and not (key == _SCENE and _differs(old, value))
        ):
            result.put(key, merged(old, value), over.key_places[key], over.value_places[key])
        else:
            result.put_from(over, key)
    return result


def _differs(old: LocatedMap, new: LocatedMap) -> bool:
    return any(key in new and new[key] != old.get(key) for key in _SCENE_IDENTITY)


def single(dotted: str, value: Any, key_place: Place, value_place: Place) -> LocatedMap:
    """Settings that hold this one key."""
    settings = LocatedMap(key_place)
    settings.put(dotted, value, key_place, value_place)
    return nested(settings)


def leaves(settings: LocatedMap, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key that holds no mapping, with its value."""
    for key, value in settings.items():
        if isinstance(value, LocatedMap):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def lookup(tree: Any, dotted: str) -> tuple[bool, Any]:
    """Whether a nested mapping has the dotted key, and its value."""
    for part in dotted.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False, None
        tree = tree[part]
    return True, tree


def place_of(settings: LocatedMap, path: tuple[str | int, ...], of_key: bool = False) -> Place:
    """The place of what the path leads to, or of the innermost thing on the way that is there."""
    here, tree = settings.place, settings
    for i, part in enumerate(path):
        last = i == len(path) - 1
        if isinstance(tree, LocatedMap) and part in tree:
            here = (tree.key_places if of_key and last else tree.value_places)[str(part)]
            tree = tree[str(part)]
        elif isinstance(tree, LocatedList) and isinstance(part, int) and part < len(tree):
            here, tree = tree.places[part], tree[part]
        else:
            break
    return here


def plain(value: Any) -> Any:
    """The value in plain dicts and lists; whole floats become integers, so that `gaussians: 5e6` is a count."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def short_text(value: Any) -> str:
    """A value as names and filters show it: words without quotes, sizes as 320x180."""
    value = plain(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return f"{value[0]}x{value[1]}"
    if isinstance(value, dict):
        named = [value[key] for key in _SCENE_IDENTITY if value.get(key)]
        return str(named[0]) if named else yaml_text(value)
    return yaml_text(value)
