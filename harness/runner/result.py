"""Files that the runner and a worker share: the cell, its result, and the marker that all of it is there."""

from __future__ import annotations

import re
from pathlib import Path

from harness.records.schema import WorkerResult
from harness.records.store import write_atomically

CELL = "cell.json"
RESULT = "result.json"
DONE = "done"
"""Empty file, the last that a worker writes."""
FAILING = "failing"
"""Empty file of the first rank that fails: its reason is the cell's."""

_OUT_OF_MEMORY = re.compile(
    r"out of memory|\bMemoryError\b|OUT_OF_MEMORY|can't allocate memory|Unable to allocate|std::bad_alloc",
    re.IGNORECASE,
)


def write_result(folder: Path, result: WorkerResult) -> None:
    """result.json whole or not at all, then `done`."""
    write_atomically(folder / RESULT, result.model_dump_json(indent=1))
    (folder / DONE).touch()


def is_out_of_memory(text: str) -> bool:
    """Whether an error's text, or a line of a log, says that memory ran out."""
    return _OUT_OF_MEMORY.search(text) is not None
