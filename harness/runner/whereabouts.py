"""Where every rank of a running cell is: what a timeout, a crash or a kill -9 leaves to read."""

from __future__ import annotations

import mmap
from itertools import groupby
from pathlib import Path

WHEREABOUTS = "whereabouts-*"
"""Files of the ranks, as a pattern."""
NOTE_BYTES = 64
_LAST = "last in"
_WAITS = "waits in"


class Whereabouts:
    """One rank's note, overwritten from stage to stage.

    Its file is mapped, so that a note costs no system call and outlives its writer, however that ends.
    """

    def __init__(self, folder: Path, rank: int):
        path = folder / WHEREABOUTS.replace("*", str(rank))
        # Written, not only made longer: a full disk is then an error here, and not a fault at the first note.
        path.write_bytes(bytes(NOTE_BYTES))
        with path.open("r+b") as file:
            self._note = mmap.mmap(file.fileno(), NOTE_BYTES)
        self.rank = rank
        self._stage = ""
        # Stages are few, and a step enters them twenty times.
        self._notes: dict[tuple[str, str], bytes] = {}

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
        note = self._notes.get((word, stage))
        if note is None:
            text = f"{word} {stage}" if stage else ""
            note = self._notes[word, stage] = text.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")
        self._note[:] = note


def whereabouts(folder: Path) -> str:
    """As in `rank 1 last in loss; ranks 0, 2 wait in exchange_loss`: those first whom the others wait for. Empty when
    no rank has come to a stage."""
    of_ranks = []
    for file in folder.glob(WHEREABOUTS):
        if note := file.read_bytes().rstrip(b"\0").decode(errors="replace"):
            of_ranks.append((note.startswith(_WAITS), note, int(file.name.rpartition("-")[2])))
    parts = []
    for note, same in groupby(sorted(of_ranks), key=lambda item: item[1]):
        ranks = [str(rank) for _, _, rank in same]
        words = note if len(ranks) == 1 else note.replace(_WAITS, "wait in", 1)
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {words}")
    return "; ".join(parts)
