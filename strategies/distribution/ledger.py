"""The ledger: bytes a stage, source and destination, counted where an exchange is called. It is the truth."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Ledger:
    """Payload and metadata bytes by stage, [places, places] int64 each: row source, column destination.

    A rank enters what it sends, its own records (the diagonal) included; totals and wire comparisons leave the
    diagonal out. Padding, counts and ids are metadata. `calls` counts collectives by stage. `beside_link`: of those
    bytes, what an engine moved by another way than the devices' link, as counts that cross from host to host.
    """

    def __init__(self, places: int):
        self.places = places
        self.payload: dict[str, torch.Tensor] = {}
        self.metadata: dict[str, torch.Tensor] = {}
        self.beside_link: dict[str, torch.Tensor] = {}
        self.calls: dict[str, int] = {}

    def add(
        self, stage: str, source: int, bytes_to: Sequence[int], metadata: bool = False, over_link: bool = True
    ) -> None:
        """One collective of `source`: bytes_to[d] bytes for each destination d. over_link: between devices."""
        self._enter(self.metadata if metadata else self.payload, stage, source, bytes_to)
        if not over_link:
            self._enter(self.beside_link, stage, source, bytes_to)
        self.calls[stage] = self.calls.get(stage, 0) + 1

    def add_padding(self, stage: str, source: int, bytes_to: Sequence[int], over_link: bool = True) -> None:
        """Padding that travelled inside a collective already entered."""
        self._enter(self.metadata, stage, source, bytes_to)
        if not over_link:
            self._enter(self.beside_link, stage, source, bytes_to)

    def add_unused(self, stage: str, source: int, bytes_to: Sequence[int]) -> None:
        """Bytes of a collective already entered that turn out to have held nothing: they are padding, not payload."""
        self._enter(self.payload, stage, source, [-n for n in bytes_to])
        self._enter(self.metadata, stage, source, bytes_to)

    def over_link(self) -> torch.Tensor:
        """Payload and metadata that the engine moved between devices, [places, places] int64, diagonal included."""
        total = torch.zeros((self.places, self.places), dtype=torch.int64)
        for table, sign in ((self.payload, 1), (self.metadata, 1), (self.beside_link, -1)):
            for matrix in table.values():
                total += sign * matrix
        return total

    def wire_bytes(self, stage: str | None = None) -> int:
        """Payload and metadata of a stage (or all) that leave their place: the diagonal left out."""
        total = 0
        for table in (self.payload, self.metadata):
            for name, matrix in table.items():
                if stage in (None, name):
                    total += int(matrix.sum() - matrix.diagonal().sum())
        return total

    def _enter(self, table: dict[str, torch.Tensor], stage: str, source: int, bytes_to: Sequence[int]) -> None:
        if stage not in table:
            table[stage] = torch.zeros((self.places, self.places), dtype=torch.int64)
        table[stage][source] += torch.tensor(list(bytes_to), dtype=torch.int64)

    def clear(self) -> None:
        """Forget everything: a new window begins."""
        self.payload, self.metadata, self.beside_link, self.calls = {}, {}, {}, {}
