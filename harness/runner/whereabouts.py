"""Where every rank of a running cell is: what a timeout, a crash or a kill -9 leaves to read."""

from __future__ import annotations

import mmap
from itertools import groupby
from pathlib import Path

WHEREABOUTS = "whereabouts"
SLOT = 64
"""Bytes a rank. The file is mapped, so that a note costs no system call and outlives its writer, however that ends."""
_LAST = "last in"
_WAITS = "waits in"


def prepare(folder: Path, ranks: int) -> None:
    """An empty note for every rank."""
    (folder / WHEREABOUTS).write_bytes(bytes(SLOT * ranks))


class Whereabouts:
    """One rank's note, overwritten from stage to stage."""

    def __init__(self, folder: Path, rank: int):
        with (folder / WHEREABOUTS).open("r+b") as file:
            self._notes = mmap.mmap(file.fileno(), 0)
        self._slot = slice(rank * SLOT, (rank + 1) * SLOT)
        self.rank = rank
        self._stage = ""

    def enter(self, stage: str) -> None:
        """The rank has come to a stage."""
        self._stage = stage
        self._write(_LAST, stage)

    def wait(self, stage: str | None) -> None:
        """The rank waits for others in a collective of that stage; None: it does so no longer."""
        if stage is None:
            self._write(_LAST, self._stage)
        else:
            self._write(_WAITS, stage)

    def __str__(self) -> str:
        return f"rank {self.rank} {_LAST} {self._stage}" if self._stage else f"rank {self.rank}"

    def _write(self, word: str, stage: str) -> None:
        note = f"{word} {stage}" if stage else ""
        self._notes[self._slot] = note.encode()[:SLOT].ljust(SLOT, b"\0")


def whereabouts(folder: Path) -> str:
    """As in `rank 1 last in loss; ranks 0, 2 wait in exchange_loss`: those first whom the others wait for. Empty when
    no rank has come to a stage."""
    try:
        notes = (folder / WHEREABOUTS).read_bytes()
    except FileNotFoundError:
        return ""
    slots = (notes[lo : lo + SLOT].rstrip(b"\0").decode(errors="replace") for lo in range(0, len(notes), SLOT))
    of_ranks = sorted(((note.startswith(_WAITS), note, rank) for rank, note in enumerate(slots) if note))
    parts = []
    for note, same in groupby(of_ranks, key=lambda item: item[1]):
        ranks = [str(rank) for _, _, rank in same]
        words = note if len(ranks) == 1 else note.replace(_WAITS, "wait in", 1)
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {words}")
    return "; ".join(parts)
