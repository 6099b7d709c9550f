"""What a passage counts, as all ranks are told of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cuda_src.exchange import OWN_SPLATS, OWN_UNDRAWN, ROUTE_COUNTS, SENT_INSTANCES
from strategies.distribution.communicator import Pending


@dataclass(frozen=True)
class Told:
    """What all ranks' counts, [source, destination, ROUTE_COUNTS] on the host, say of one rank."""

    counts: torch.Tensor
    rank: int

    @property
    def visible(self) -> int:
        """Its splats that are drawn."""
        own = self.counts[self.rank, 0]
        return int(own[OWN_SPLATS] - own[OWN_UNDRAWN])

    @property
    def instances(self) -> int:
        """Tile instances of what arrives, among its tiles."""
        return int(self.counts[:, self.rank, SENT_INSTANCES].sum())


class Counted:
    """All ranks' counts of a passage, on their way."""

    def __init__(self, coming: Pending, ranks: int) -> None:
        self._coming, self._ranks = coming, ranks
        self._table: torch.Tensor | None = None

    @property
    def table(self) -> torch.Tensor:
        """[source, destination, ROUTE_COUNTS] on the host, waited for when they are first asked for."""
        if self._table is None:
            self._table = self._coming.wait().cpu().view(self._ranks, self._ranks, ROUTE_COUNTS)
        return self._table
