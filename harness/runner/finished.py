"""Which repeats of cells a folder of results already holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.records.schema import Record
from harness.records.store import records

MEASURED = frozenset({"ok", "invalid"})
ENDED_BADLY = frozenset({"failed", "oom", "timeout"})


@dataclass(frozen=True)
class Key:
    """What a record must match to stand for a repeat of a cell: the same cell, code, environment and repeat.

    paths: of the scene and its model, since of them the cell_id holds only the last part.
    """

    cell_id: str
    code_id: str
    environment_id: str
    repeat: int
    paths: tuple[str | None, str | None] = (None, None)

    @property
    def folder(self) -> str:
        """Name of the record's folder."""
        return f"{self.cell_id}-{self.code_id}-{self.environment_id}-r{self.repeat}"

    @classmethod
    def of(cls, record: Record) -> Key:
        scene = record.cell.get("scene") or {}
        paths = scene.get("path"), scene.get("model")
        return cls(record.cell_id, record.code_id, record.environment_id, record.repeat, paths)


class Finished:
    """Records below a folder, by key.

    fresh: none counts as finished. retry_failed: those that failed, ran out of memory or time do not.
    """

    def __init__(self, folder: Path, *, fresh: bool = False, retry_failed: bool = False):
        self._usable = frozenset() if fresh else MEASURED if retry_failed else MEASURED | ENDED_BADLY
        self._records: dict[Key, list[tuple[Path, Record]]] = {}
        for path, record in records(folder) if folder.is_dir() else ():
            self._records.setdefault(Key.of(record), []).append((path, record))

    def find(self, key: Key) -> tuple[Path, Record] | None:
        """The newest record that makes running the repeat again needless, or None."""
        usable = [found for found in self._records.get(key, ()) if found[1].status in self._usable]
        return max(usable, key=lambda found: found[1].started) if usable else None

    def add(self, folder: Path, record: Record) -> None:
        """Take a new record in. Those it replaces leave the disk: skipped ones, and failed ones that were retried."""
        key = Key.of(record)
        kept = []
        for path, old in self._records.get(key, ()):
            if old.status in MEASURED:
                kept.append((path, old))
            else:
                shutil.rmtree(path)
        self._records[key] = [*kept, (folder, record)]

    def gaussians_hash(self, key: Key) -> str | None:
        """Of the first record of the same cell, code and environment that has one, whichever repeat it is of."""
        for other, found in self._records.items():
            if (other.cell_id, other.code_id, other.environment_id) == (key.cell_id, key.code_id, key.environment_id):
                for _, record in found:
                    if record.status == "ok" and record.result and record.result.gaussians_hash:
                        return record.result.gaussians_hash
        return None

    def forget_skips(self, cell_ids: Iterable[str]) -> None:
        """Remove the skipped records of those cells: a skip speaks of one run only."""
        wanted = frozenset(cell_ids)
        for key, found in self._records.items():
            skips = [path for path, record in found if key.cell_id in wanted and record.status == "skipped"]
            for path in skips:
                shutil.rmtree(path)
            self._records[key] = [(path, record) for path, record in found if path not in skips]

    def expected_seconds(self, cell_id: str, scenario: str, strategy: str) -> float | None:
        """Wall time of the longest measured record most like it; None while there is none of the scenario.

        Most like it are repeats of the cell, then cells of its scenario and strategy, then any of its scenario.
        """
        alike = [
            (record.cell_id == cell_id, record.cell.get("strategy") == strategy, record.seconds)
            for found in self._records.values()
            for _, record in found
            if record.status in MEASURED and record.cell.get("scenario") == scenario
        ]
        return max(alike)[-1] if alike else None
