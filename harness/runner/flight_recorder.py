"""What NCCL's flight recorder leaves of a rank whose exchange did not end: its last collectives, as plain text."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDING = "flight_recorder_rank_"
"""Beginning of the name of a rank's dump, which PyTorch ends with the rank."""
EVENTS = 2000
"""Collectives that a rank remembers."""
KEPT = 40
"""Of those, the last ones that a record keeps."""
_KEYS = ("state", "profiling_name", "input_sizes", "output_sizes", "timeout_ms", "collective_seq_id", "p2p_seq_id")


def recorder_environment(folder: Path) -> dict[str, str]:
    """Variables that make PyTorch leave a dump in the folder when a collective times out; by both of their names, which
    changed in version 2.9."""
    prefix = str(folder.resolve() / RECORDING)
    return {
        "TORCH_FR_BUFFER_SIZE": str(EVENTS),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(EVENTS),
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


def keep_recordings(folder: Path, portable: Callable[[str], str]) -> None:
    """Turn the dumps in a cell's folder into JSON: the last collectives of each rank, and where they were called.

    portable: text without this machine's paths. A dump that cannot be read is dropped.
    """
    for dump in sorted(folder.glob(f"{RECORDING}*")):
        if dump.suffix == ".json":
            continue
        try:
            events = [_plain(event) for event in _events(dump.read_bytes())[-KEPT:]]
        except Exception:  # Damaged in any way: its writer was being ended.
            events = []
        if events:
            lines = ",\n".join(portable(json.dumps(event)) for event in events)
            dump.with_suffix(".json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        dump.unlink()


class _PlainUnpickler(pickle.Unpickler):
    """Reads what consists of numbers, texts, lists and mappings, and nothing that names code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a file of plain values")


def _events(content: bytes) -> list[dict[str, Any]]:
    found = _PlainUnpickler(io.BytesIO(content)).load()
    return list(found["entries"])


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    """The parts of an event that tell what it was, how far it came, and who called it."""
    kept = {key: event[key] for key in _KEYS if key in event}
    calls = [f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in event.get("frames", ())]
    own = [call for call in calls if "strategies/" in call or "harness/" in call]
    return kept | {"called": own or calls[:3]}
