"""A scene named on the command line."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import UserError
from harness.suite import validation
from harness.suite.cell import SceneSpec
from harness.suite.settings import single
from harness.suite.yaml_source import LocatedMap, Place, parse

_PLACE = Place("SPEC")


def scene_argument(spec: str) -> SceneSpec:
    """The scene of a preset's name, a folder's path, or a YAML mapping. Raises UserError for anything else."""
    value = parse(spec, _PLACE.file, fixed_place=_PLACE) if spec.lstrip().startswith("{") else spec
    if isinstance(value, str):
        presets = validation.city_presets()
        if value in presets:
            return SceneSpec(city=value)
        if not Path(value).expanduser().exists():
            hint = validation.nearest(value, presets)
            raise _PLACE.error(f"value {value!r} is no folder and no preset of the city{hint}")
        return SceneSpec(path=value)
    assert isinstance(value, LocatedMap)
    settings = single("scene", value, _PLACE, _PLACE)
    validation.check_settings(settings, "")
    return validation.to_cell(settings, "scene", None).scene


def size_argument(text: str | None, scene: SceneSpec) -> tuple[int, int] | None:
    """Pixels of a `640x480`; by default the preset's size, and photographs as they are."""
    if text is None:
        from harness.scenes.presets import PRESETS

        return None if scene.city is None else PRESETS[scene.city].size
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise UserError(f"--size: value {text!r}; expected width x height in pixels, such as 640x480")
    return int(match[1]), int(match[2])
