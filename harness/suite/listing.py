"""What `plan` and `list` print."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from harness.errors import UserError
from harness.records.schema import METRICS
from harness.suite import validation
from harness.suite.cell import Cell
from harness.suite.plan import Plan, Planned
from harness.suite.settings import short_text
from strategies.registry import strategies

_HEADLINE = ("scenario", "strategy", "ranks", "scene", "size", "kernels")
"""Keys worth a word even where all cells agree."""
_COLUMNS = ("name", "strategy", "ranks")
"""Keys with a column of their own where cells differ; the rest share one, so that a plan fits 80 columns."""
_PLAIN = ("scenario", "scene", "size")
"""Keys of that one whose values say what they are values of; like the batch they are shown of every cell."""

SCENARIOS = {
    "train": "train on the scene's images; loss, held-out quality and images over time",
    "throughput": "repeat passes over a fixed list of views with ready Gaussians; views per second and stages",
    "render": "repeat passes over the training views, forward only: images per second and seconds an image",
    "kernels": "time every operator and a whole step on one place",
    "updates": "what a batch rule does to the updates, against batch 1 on the same images",
}


def plan_table(plan: Plan) -> Iterator[RenderableType]:
    """The plan for people: what all cells share, a table of what tells them apart with memory a rank,
    and a line of counts."""
    rows = [_shown(planned.cell) for planned in plan.cells]
    keys = dict.fromkeys(key for row in rows for key in row)
    varying = [key for key in keys if len({row.get(key, "") for row in rows}) > 1]
    shared = ", ".join(f"{key} {rows[0][key]}" for key in _HEADLINE if key not in varying)
    yield Text(f"{plan.suite} on {plan.device}: {shared}")
    columns = [key for key in _COLUMNS if key in varying]
    others = [key for key in (*_PLAIN, "batch") if key in varying]
    others += [key for key in varying if key not in (*columns, *others)]
    usual = {key: _value_of_most(row.get(key, "") for row in rows) for key in others if key not in (*_PLAIN, "batch")}
    reasons = list(dict.fromkeys(planned.skip for planned in plan.cells if planned.skip))
    table = _columns("cell", *columns, *(["settings"] if others else []), "memory", "here")
    for planned, row in zip(plan.cells, rows, strict=True):
        values = [Text(row.get(key, "")) for key in columns]
        own = [
            row[key] if key in _PLAIN else f"{key.rpartition('.')[2]}={row[key]}"
            for key in others
            if row.get(key, "") not in ("", usual.get(key))
        ]
        settings = [Text(" · ".join(own))] if others else []
        here = Text(here_text(planned, reasons), style="yellow" if planned.skip else "green")
        table.add_row(planned.cell_id, *values, *settings, Text(memory_text(planned.predicted_bytes)), here)
    yield table
    for number, reason in enumerate(reasons, start=1):
        yield Text(f"skipped {number}: {reason}")
    runnable = [planned for planned in plan.cells if planned.skip is None and not planned.preparation]
    preparations = sum(planned.preparation for planned in plan.cells)
    prepared = f", after {preparations} to prepare" if preparations else ""
    repeats = sum(planned.cell.repeats for planned in runnable)
    yield Text(
        f"{len(plan.cells) - preparations} cells, of which {len(runnable)} run here, {repeats} with repeats{prepared}"
    )
    if plan.claims:
        claims = _columns("system", "claim", "tested by")
        for claim in plan.claims:
            claims.add_row(claim.system, Text(claim.says), Text(claim.fate))
        yield claims


def _columns(first: str, *more: str) -> Table:
    """A table without lines, whose first column is never cut: it is what people copy."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, no_wrap=True, overflow="fold")
    for heading in more:
        table.add_column(heading, overflow="fold")
    return table


def _value_of_most(values: Iterable[str]) -> str | None:
    """The value that more than half of the rows have, if any: it goes without saying."""
    counts = Counter(values)
    value, count = counts.most_common(1)[0]
    return value if count > counts.total() / 2 else None


def _shown(cell: Cell) -> dict[str, str]:
    """A cell's keys as columns show them."""
    data = cell.model_dump(mode="json", by_alias=True, exclude={"suite", "scene", "stop", "timeout", "options"})
    training = data.pop("training")
    shown = {"name": cell.name or "", "scenario": cell.scenario, "strategy": cell.strategy}
    shown |= {f"options.{key}": short_text(value) for key, value in cell.options.items()}
    shown |= {key: "" if value is None else short_text(value) for key, value in data.items()}
    shown |= {"scene": scene_text(cell), "size": "as it is" if cell.size is None else short_text(cell.size)}
    shown |= {f"scene.{key}": short_text(value) for key, value in cell.scene.model_dump(mode="json").items()}
    for key in ("city", "path", "gaussians", "points", "tile"):
        del shown[f"scene.{key}"]
    return shown | {f"training.{key}": short_text(value) for key, value in training.items()}


def here_text(planned: Planned, reasons: Sequence[str]) -> str:
    """Whether the cell runs here, or by which of the reasons not."""
    if planned.skip:
        return f"skipped {reasons.index(planned.skip) + 1}"
    return "prepares" if planned.preparation else "runs"


def scene_text(cell: Cell) -> str:
    """City or folder, and how many Gaussians or points of it were asked for."""
    scene = cell.scene
    name = scene.city or os.path.basename(scene.path or "")
    count = scene.points if cell.scenario == "train" and scene.city else scene.gaussians
    return name + (f" {count:,}" if count else "") + (f" tile {short_text(scene.tile)}" if scene.tile != (1, 1) else "")


def memory_text(count: int | None) -> str:
    """Bytes for people, in powers of 1024."""
    if count is None:
        return "unknown"
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:,.0f} {units[0]}"


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "suite": plan.suite,
        "file": str(plan.file),
        "device": plan.device,
        "cells": [
            {
                "cell_id": planned.cell_id,
                "preparation": planned.preparation,
                "predicted_bytes": planned.predicted_bytes,
                "skip": planned.skip,
                "cell": planned.cell.model_dump(mode="json", by_alias=True),
            }
            for planned in plan.cells
        ],
        "claims": [claim.model_dump(mode="json") for claim in plan.claims],
    }


def known_things(kind: str) -> list[dict[str, Any]]:
    """Strategies, scenarios, presets or metrics, a mapping each, named first."""
    if kind == "strategies":
        return [
            {"strategy": info.name, "what": info.summary, "engines": list(info.engines), "exact": info.exact_when}
            for info in strategies().values()
        ]
    if kind == "scenarios":
        names = get_args(Cell.model_fields["scenario"].annotation)
        return [{"scenario": name, "what": SCENARIOS[name]} for name in names]
    if kind == "presets":
        from harness.scenes.presets import PRESETS

        return [
            {
                "preset": name,
                "cameras": preset.path,
                "Gaussians": preset.gaussians,
                "points": preset.points,
                "views": preset.views,
                "size": list(preset.size),
            }
            for name, preset in PRESETS.items()
        ]
    return [{"metric": name, "unit": unit, "meaning": meaning} for name, (unit, meaning) in METRICS.items()]


def strategy_options(name: str) -> list[dict[str, Any]]:
    """A strategy's options with types and defaults. Raises UserError for an unknown strategy."""
    known = strategies()
    if name not in known:
        raise UserError(f"list options: NAME has the value {name!r}{validation.nearest(name, known)}")
    found = []
    for field_name, field in known[name].options.model_fields.items():
        default = field.get_default(call_default_factory=True)
        kind = getattr(field.annotation, "__name__", None) or str(field.annotation).replace("typing.", "")
        if get_args(field.annotation) and str(field.annotation).startswith("typing.Literal"):
            kind = " | ".join(str(value) for value in get_args(field.annotation))
        found.append({"option": field.alias or field_name, "type": kind, "default": default})
    return found


def things_table(things: Sequence[dict[str, Any]]) -> Table:
    """The things as people read them, a row each; one at least."""
    table = _columns(*things[0])
    for thing in things:
        table.add_row(*(Text(_entry(key, value)) for key, value in thing.items()))
    return table


def _entry(key: str, value: Any) -> str:
    if key in ("Gaussians", "points"):
        return "none" if value is None else f"{value:,}"
    return ", ".join(value) if key == "engines" else short_text(value)
