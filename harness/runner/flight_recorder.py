"""What a rank leaves whose exchange did not end: its last exchanges, as plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.records.store import write_atomically

RECORDING = "flight_recorder_rank_{}.json"


def keep_recording(folder: Path, rank: int, exchanges: Sequence[Mapping[str, str | int]]) -> None:
    """Write them to the cell's folder, oldest first, an object a line: of each its stage, its bytes, and whether it is
    `over`, the device has `begun` it, or it is `queued` behind others."""
    lines = ",\n".join(json.dumps(exchange) for exchange in exchanges)
    write_atomically(folder / RECORDING.format(rank), f"[\n{lines}\n]\n")
