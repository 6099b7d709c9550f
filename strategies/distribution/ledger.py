"""The ledger: bytes a stage, source and destination, counted where an exchange is called. It is the truth."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_Bytes = dict[str, list[list[int]]]
"""By stage, source and destination."""


class Ledger:
    """Payload and metadata bytes by stage, [places, places] int64 each: row source, column destination.

    A rank enters what it sends, its own records (the diagonal) included; totals and wire comparisons leave the
    diagonal out. Padding, counts and ids are metadata. `calls` counts collectives by stage. `beside_link`: of those
    bytes, what an engine moved by another way than the devices' link, as counts that cross from host to host.
    """

    def __init__(self, places: int):
        self.places = places
        # Plain numbers: entries are made several times a step, and read once a pass.
        self._payload: _Bytes = {}
        self._metadata: _Bytes = {}
        self._beside_link: _Bytes = {}
        self.calls: dict[str, int] = {}

    @property
    def payload(self) -> dict[str, torch.Tensor]:
        return _matrices(self._payload)

    @property
    def metadata(self) -> dict[str, torch.Tensor]:
        return _matrices(self._metadata)

    @property
    def beside_link(self) -> dict[str, torch.Tensor]:
        return _matrices(self._beside_link)

    def add(
        self, stage: str, source: int, bytes_to: Sequence[int], metadata: bool = False, over_link: bool = True
    ) -> None:
        """One collective of `source`: bytes_to[d] bytes for each destination d. over_link: between devices."""
        self._enter(self._metadata if metadata else self._payload, stage, source, bytes_to)
        if not over_link:
            self._enter(self._beside_link, stage, source, bytes_to)
        self.calls[stage] = self.calls.get(stage, 0) + 1

    def add_padding(self, stage: str, source: int, bytes_to: Sequence[int], over_link: bool = True) -> None:
        """Padding that travelled inside a collective already entered."""
        self._enter(self._metadata, stage, source, bytes_to)
        if not over_link:
            self._enter(self._beside_link, stage, source, bytes_to)

    def add_unused(self, stage: str, source: int, bytes_to: Sequence[int]) -> None:
        """Bytes of a collective already entered that turn out to have held nothing: they are padding, not payload."""
        self._enter(self._payload, stage, source, [-n for n in bytes_to])
        self._enter(self._metadata, stage, source, bytes_to)

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

    def _enter(self, table: _Bytes, stage: str, source: int, bytes_to: Sequence[int]) -> None:
        if stage not in table:
            table[stage] = [[0] * self.places for _ in range(self.places)]
        row = table[stage][source]
        for place, n in enumerate(bytes_to):
            row[place] += int(n)

    def clear(self) -> None:
        """Forget everything: a new window begins."""
        self._payload, self._metadata, self._beside_link, self.calls = {}, {}, {}, {}


def _matrices(table: _Bytes) -> dict[str, torch.Tensor]:
    return {stage: torch.tensor(rows, dtype=torch.int64) for stage, rows in table.items()}
