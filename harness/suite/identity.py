"""What a cell is, in twelve hexadecimal digits.

The id hashes what decides the cell's result: its fields that differ from their defaults, so that a new field with a
default leaves every old id alone. A released default therefore never changes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Any

from harness.suite.cell import Cell
from strategies.registry import strategy

ID_LENGTH = 12
LEFT_OUT = frozenset({"suite", "name", "repeats", "stop", "timeout", "collective_timeout"})
"""Fields that say how a cell is filed and how long it is measured, never what is measured."""


def canonical_options(strategy_name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that differ from the strategy's defaults, as its model writes them.

    Raises pydantic's ValidationError for options that the model refuses, KeyError for an unknown strategy.
    """
    model = strategy(strategy_name).options
    typed = model.model_validate_json(json.dumps(options), strict=True)
    return typed.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def identity(cell: Cell) -> dict[str, Any]:
    """What the id hashes, as plain values.

    Of a folder or file of the scene only the last part of its path (of a transforms.json also its folder): the same
    photographs have the same id wherever they lie, and their content is in the record (SceneFacts.workload_hash).
    `from` is hashed as it stands; in a plan it is the id of the preparation, thus its content.
    """
    cell = cell.model_copy(update={"scene": cell.scene.model_copy(update={"stand_in": False, "optional": False})})
    data = cell.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(LEFT_OUT))
    if cell.options:
        data["options"] = canonical_options(cell.strategy, cell.options)
        if not data["options"]:
            del data["options"]
    scene = data.get("scene", {})
    for key in ("path", "model"):
        if scene.get(key):
            path = PurePath(scene[key])
            scene[key] = f"{path.parent.name}/{path.name}" if path.suffix == ".json" else path.name
    return data


def cell_id(cell: Cell) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the canonical JSON (sorted keys, no spaces) of `identity`."""
    text = json.dumps(identity(cell), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
