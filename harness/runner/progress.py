"""What a running cell says of itself: progress.jsonl, read while it grows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRESS = "progress.jsonl"


@dataclass(frozen=True)
class Step:
    """How far a cell is. views_per_second and loss: null until known."""

    done: int
    total: int
    unit: str
    views_per_second: float | None = None
    loss: float | None = None


class ProgressFile:
    """Follows the events of one cell. phase: the last one named; step: the last one of that phase."""

    def __init__(self, folder: Path):
        self._path = folder / PROGRESS
        self._offset = 0
        self.phase = "starting"
        self.step: Step | None = None

    def update(self) -> bool:
        """Read the complete lines written since the last call; whether there were any."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return False
        complete, newline, _ = text.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        lines = complete.splitlines()
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # Progress is for the eye: a torn line costs nothing.
            if isinstance(event, dict):
                self._take(event)
        return bool(lines)

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("event") == "phase":
            self.phase, self.step = str(event.get("text", "")), None
        elif event.get("event") == "step":
            self.step = Step(
                int(event.get("done", 0)),
                int(event.get("total", 0)),
                str(event.get("unit", "steps")),
                event.get("views_per_second"),
                event.get("loss"),
            )

    def last_seen(self) -> str:
        """Where the cell was when it was last heard of, as in `training, 40/240 images`."""
        if self.step is None:
            return self.phase
        return f"{self.phase}, {self.step.done}/{self.step.total} {self.step.unit}"
