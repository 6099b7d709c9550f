"""One record for people: what ran, how to repeat it, where, what came out, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.errors import UserError
from harness.records.schema import Measurement, Record
from harness.records.store import LOG, read_record, records

TAIL_LINES = 40


def find(folder: Path, prefix: str) -> list[Path]:
    """Record folders of the one cell whose id, name or folder starts with the prefix, oldest first.

    UserError when there is none, or when several cells match.
    """
    matches = [
        (path, record)
        for path, record in records(folder)
        if record.cell_id.startswith(prefix) or path.name.startswith(prefix) or record.cell.get("name") == prefix
    ]
    cells = sorted({record.cell_id for _, record in matches})
    if not cells:
        raise UserError(f"no cell {prefix!r}; expected the beginning of a cell's id, or its name", folder)
    if len(cells) > 1:
        raise UserError(f"{prefix!r} is the beginning of {len(cells)} cells ({', '.join(cells)}); expected one", folder)
    return [path for path, _ in sorted(matches, key=lambda match: match[1].started)]


def describe(folder: Path) -> RenderableType:
    """Configuration, command, environment, job-level values and the log's last lines of the record in that folder."""
    record = read_record(folder)
    status = Text(record.status + (f": {record.reason}" if record.reason else ""))
    status.stylize("green" if record.status == "ok" else "red", 0, len(record.status))
    facts = {
        "status": status,
        "folder": str(folder),
        "started": record.started,
        "seconds": f"{record.seconds:.1f}",
        "repeat": str(record.repeat),
        "code": f"{record.code_id} (commit {record.commit})",
    }
    parts: list[RenderableType] = [_pairs(f"cell {record.cell_id}", facts.items())]
    parts.append(Text(f"\n{continued(record.command)}\n"))
    parts.append(_pairs("configuration", _flat(record.cell)))
    if record.result and record.result.environment:
        parts.append(_pairs(f"environment {record.environment_id}", _flat(record.result.environment)))
    if record.result and record.result.gaussians_hash:
        parts.append(Text(f"Gaussians: hash {record.result.gaussians_hash}\n"))
    if record.result and record.result.measurements:
        parts.append(_measurements(record.result.measurements))
    if tail := _tail(folder, record):
        parts += [Text("log", style="bold"), Text("\n".join(tail))]
    return Group(*parts)


def continued(command: str, width: int = 76) -> str:
    """The command on lines of at most so many columns (or one word) that a shell reads as one: it is to be copied."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def _pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for key, value in pairs:
        table.add_row(escape(key), value if isinstance(value, Text) else escape(str(value)))
    return table


def _flat(value: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys and their values, those that are null left out."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{key}.")
        elif inner is not None:
            yield f"{prefix}{key}", inner


def _measurements(measurements: list[Measurement]) -> Table:
    """Values of the whole job and of its stages; those of single places and pairs of places are in the tables."""
    table = Table(title="measurements", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for heading in ("metric", "images seen", "value", "unit", "statistic"):
        right = heading in ("images seen", "value")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for one in measurements:
        if one.place is None:
            name = f"{one.metric} · {one.stage}" if one.stage else one.metric
            seen = "" if one.images_seen is None else str(one.images_seen)
            how = one.statistic if one.source == "measured" else f"{one.statistic}, {one.source}"
            table.add_row(name, seen, f"{one.value:.6g}", one.unit, how)
    return table


def _tail(folder: Path, record: Record) -> list[str]:
    """The record's own log tail, or the last lines of the log beside it."""
    if record.log_tail:
        return record.log_tail
    log = folder / LOG
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
