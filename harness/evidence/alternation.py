"""Cells of two trees run in turns on one machine: A B B A A B ..., so that what disturbs it disturbs both alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.evidence.measured import MeasuredCell, grouped
from harness.evidence.trees import Tree
from harness.records.schema import Record
from harness.records.store import LOG, free_folder, write_record
from harness.runner.execute import collect, describe, now, processes
from harness.runner.launch import Launched, worker_environment
from harness.runner.progress import ProgressFile
from harness.runner.recording import Recorder
from harness.runner.result import DONE
from harness.suite.plan import Plan, Planned

PAIRS = 5
ROUNDS = "rounds"


def why_not(planned: Planned) -> str | None:
    """Why a cell cannot run in turns; None when it can."""
    if planned.skip is not None:
        return planned.skip
    if planned.cell.from_ is not None or planned.preparation:
        return "it starts from another cell's training"
    if processes(planned.cell) > 1:
        return "it needs several processes"
    return None


@dataclass
class Alternation:
    """base, new: the trees. out: folder of the records, a folder a side below it. say: tells people of the progress."""

    plan: Plan
    base: Tree
    new: Tree
    out: Path
    say: Callable[[str], None] = lambda text: None
    _recorders: dict[str, Recorder] = field(default_factory=dict)

    def equal_code(self, planned: Planned) -> bool:
        """Whether both trees would run the cell by the same sources."""
        strategy = planned.cell.strategy
        return self.base.code_id(strategy) == self.new.code_id(strategy)

    def run(self, cells: Sequence[Planned], pairs: int = PAIRS) -> tuple[list[MeasuredCell], list[MeasuredCell]]:
        """So many repeats of the cells from each tree; what was measured of base and of new.

        A repeat is one process, which runs the cells one after another.
        """
        found: tuple[list[tuple[Path, Record]], list[tuple[Path, Record]]] = ([], [])
        for pair in range(pairs):
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                tree = self.new if side else self.base
                self.say(f"pair {pair + 1} of {pairs}: {tree.name}")
                found[side].extend(self._round(tree, "new" if side else "base", cells, pair))
        return grouped(found[0]), grouped(found[1])

    def once(self, cells: Sequence[Planned]) -> list[MeasuredCell]:
        """One repeat of the cells from the new tree alone."""
        return grouped(self._round(self.new, "new", cells, 0)) if cells else []

    def _round(self, tree: Tree, side: str, cells: Sequence[Planned], repeat: int) -> list[tuple[Path, Record]]:
        recorder = self._recorders.setdefault(side, Recorder(self.plan, commit=tree.commit))
        keys = [
            replace(recorder.key(planned, repeat), code_id=tree.code_id(planned.cell.strategy)) for planned in cells
        ]
        folders = []
        for planned, key in zip(cells, keys, strict=True):
            folders.append(free_folder(self.out / side / "cells", key.folder))
            folders[-1].mkdir(parents=True)
            describe(folders[-1], planned.cell, planned.cell_id, repeat)
        place = free_folder(self.out / ROUNDS, f"{side}-{repeat}")
        place.mkdir(parents=True)
        started = now()
        environment = worker_environment(max(planned.cell.threads for planned in cells))
        timeout = sum(planned.cell.timeout for planned in cells)
        try:
            with Launched(tree.command(folders), place / LOG, environment) as launched:
                ended = launched.wait(timeout, folders[-1] / DONE, lambda: None)
            found = []
            for planned, key, folder in zip(cells, keys, folders, strict=True):
                if not (folder / DONE).exists():
                    shutil.copy(place / LOG, folder / LOG)
                attempt = collect(folder, planned.cell, started, ended, ProgressFile(folder), None)
                record = recorder.record(planned.cell, key, attempt)
                write_record(folder, record)
                found.append((folder, record))
            return found
        except BaseException:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(place, ignore_errors=True)
