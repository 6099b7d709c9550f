"""Batches of views from projection to the move of the Gaussians, played from a tape when they come again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cuda_src.tape import Tape
from cuda_src.workspace import Workspace
from strategies.distribution.share import Share

MOST_TAPED = 4096
"""Batches whose tapes are kept, some 50 KB each."""


@dataclass(frozen=True)
class _Taped:
    """same: objects, and numbers: addresses and sizes, that the tape goes by."""

    tape: Tape
    shares: list[Share]
    same: tuple[object, ...]
    numbers: tuple[int, ...]

    def goes_by(self, same: tuple[object, ...], numbers: tuple[int, ...]) -> bool:
        alike = len(same) == len(self.same) and all(a is b for a, b in zip(same, self.same, strict=True))
        return alike and numbers == self.numbers


class TapedBatches:
    """Tapes by views, for as long as the workspaces' buffers, into which they point, stay where they are."""

    def __init__(self, workspaces: Sequence[Workspace]) -> None:
        self._workspaces = workspaces
        self._taped: dict[tuple[int, ...], _Taped] = {}
        self._moves = self._moved()
        self.played = 0
        """Batches so far."""

    def do(
        self,
        views: tuple[int, ...],
        same: tuple[object, ...],
        degree: int,
        truths: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
        do: Callable[[], list[Share]],
    ) -> list[Share]:
        """What `do` returns for the batch, or did at its last visit, with all that it did done again.

        same: objects by whose identity it is told whether that would be the same. degree: of the harmonics. truths:
        images and masks as `do` has them now, which a tape finds by address.
        """
        numbers = degree, *(0 if image is None else image.data_ptr() for truth in truths for image in truth)
        if self._moved() != self._moves:  # Tapes of other batches would keep outgrown memory.
            self.clear()
        known = self._taped.get(views)
        if known is not None and known.goes_by(same, numbers):
            known.tape.play()
            self.played += 1
            return known.shares
        tape = Tape()
        with tape.recording():
            shares = do()
        if self._moved() == self._moves:
            if len(self._taped) >= MOST_TAPED:
                self._taped.clear()
            self._taped[views] = _Taped(tape, shares, same, numbers)
        return shares

    def clear(self) -> None:
        self._taped.clear()
        self._moves = self._moved()

    def _moved(self) -> int:
        return sum(workspace.moves for workspace in self._workspaces)
