"""JSON Schema of what this package reads and writes: suites for editors, records for other programs."""

from __future__ import annotations

from typing import Any

from harness.records.schema import METRICS, Record
from harness.suite.cell import Cell
from harness.suite.claims import Claim
from harness.suite.grammar import DEVICES, GRAMMAR
from strategies.registry import strategies

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def suite_schema() -> Schema:
    """Of a suite's file. It knows every key and type; what only a plan can know (names of cases, a strategy's options,
    what excludes what) `plan` still checks."""
    cell = Cell.model_json_schema(by_alias=True)
    definitions: Schema = cell["$defs"]
    keys: Schema = {key: value for key, value in cell["properties"].items() if key != "suite"}
    # A scene may be given as the path alone.
    keys["scene"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/SceneSpec"}]}
    keys["strategy"] = {"type": "string", "examples": list(strategies())}
    definitions["settings"] = _object(keys, dotted=True)
    seeds = {"type": "integer", "minimum": 2, "description": "The case once for each of so many seeds, from 0 on."}
    definitions["case"] = _object(keys | {"seeds": seeds}, dotted=True, required=["name"])
    definitions["axes"] = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    step = {"type": "object", "minProperties": 1}
    ladder = {
        "name": {"type": "string"},
        "strategy": {"type": "string"},
        "steps": {"type": "array", "minItems": 1, "items": step},
        "also": {"const": "leave_one_out"},
        "axes": {"$ref": "#/$defs/axes"},
    }
    definitions["ladder"] = _object(ladder, required=["strategy", "steps"])
    definitions["claim"] = Claim.model_json_schema()
    sections: Schema = {
        "defaults": {"$ref": "#/$defs/settings"},
        "prepare": {"type": "object", "additionalProperties": {"$ref": "#/$defs/settings"}},
        "axes": {"anyOf": [{"$ref": "#/$defs/axes"}, {"type": "array", "items": {"$ref": "#/$defs/axes"}}]},
        "cases": {"type": "array", "items": {"$ref": "#/$defs/case"}},
        "ladder": {
            "anyOf": [{"$ref": "#/$defs/ladder"}, {"type": "array", "items": {"$ref": "#/$defs/ladder"}}],
        },
        "exclude": {"type": "array", "items": {"type": "object", "minProperties": 1}},
        "stop": {"$ref": "#/$defs/Stop"},
    }
    top = {
        "suite": {"const": GRAMMAR},
        "name": {"type": "string"},
        "description": {"type": "string"},
        **sections,
        "by_device": _object({device: _object(sections) for device in DEVICES}),
        "claims": {"type": "array", "items": {"$ref": "#/$defs/claim"}},
    }
    return {
        "$schema": DIALECT,
        "title": "suite of cells",
        **_object(top, required=["suite"]),
        "$defs": definitions,
    }


def record_schema() -> Schema:
    """Of record.json. Readers accept every record of their major version: keys may be added, never renamed."""
    schema = Record.model_json_schema(by_alias=True)
    metric = schema["$defs"]["Measurement"]["properties"]["metric"]
    metric["examples"] = list(METRICS)
    return {"$schema": DIALECT, **schema}


def _object(properties: Schema, dotted: bool = False, required: list[str] | None = None) -> Schema:
    """An object of these keys and no others. dotted: keys such as `scene.gaussians` too."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if dotted:
        groups = "|".join(key for key in properties if key in ("scene", "training", "options", "stop"))
        schema["patternProperties"] = {rf"^({groups})\.\w+$": True}
    if required:
        schema["required"] = required
    return schema
