"""Rooms of the passages of a batch: what its records needed at the last visit, known to all ranks alike.

With them nobody waits for counts: so many rows cross as there is room for, and counts are looked at a step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from cuda_src.exchange import OWN_SPLATS, SENT_INSTANCES, SENT_RECORDS, RankRooms
from strategies.distribution.regions import Regions
from strategies.training.rooms import fits, with_margin

MOST_BATCHES = 4096
"""Whose rooms are kept: shuffled batches of several views seldom come again."""
_FLAG_ROW = 1
_ROWS_TOGETHER = 8
"""Rows of gradients, 36 B each, that end at a multiple of 16 B: four. Where a rank's rows begin elsewhere, NCCL copies
them in smaller words, at half the rate. And rows whose bits fill whole bytes: eight."""


@dataclass(frozen=True)
class PassageRoom:
    """Of one view. records: rows from each source to each destination, the flag's included. instances: of those records
    among the destination's tiles. splats: by rank, that its own Gaussians may have.

    Whether any is too small is known where the records come from, and so on every rank once they have crossed."""

    records: tuple[tuple[int, ...], ...]
    splats: tuple[int, ...]
    instances: tuple[tuple[int, ...], ...]

    def of(self, rank: int) -> RankRooms:
        """For what the rank sends."""
        return RankRooms(self.records[rank], self.instances[rank])

    def to(self, rank: int) -> list[int]:
        """Rows that the rank sends each other."""
        return list(self.records[rank])

    def into(self, rank: int) -> list[int]:
        """Rows that each other sends the rank."""
        return [row[rank] for row in self.records]

    def instances_at(self, rank: int) -> int:
        """Of all records among the rank's tiles."""
        return sum(row[rank] for row in self.instances)

    def holds(self, counts: torch.Tensor) -> bool:
        """Whether it was large enough on every rank; counts: all ranks' [source, destination, ROUTE_COUNTS]."""
        return bool((_needs(counts) <= self._sizes).all())

    def fits(self, counts: torch.Tensor) -> bool:
        """Whether it may stay, neither too small for the next visit nor too large."""
        return bool(fits(self._sizes, _needs(counts)).all())

    @cached_property
    def _sizes(self) -> np.ndarray:
        """All of them, as `_needs` has what they are needed for."""
        return np.array([*chain.from_iterable(self.records), *chain.from_iterable(self.instances), *self.splats])


@dataclass(frozen=True)
class _Known:
    """Of a batch at its last visit: where it was cut, all ranks' counts of each view, and a room for them."""

    cuts: tuple[int, ...]
    counts: list[torch.Tensor]
    rooms: list[PassageRoom]


class PassageRooms:
    """By batch of views and the regions it was cut into, one room a view."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], _Known] = {}

    def of(self, views: Sequence[int], regions: Regions) -> list[PassageRoom] | None:
        """None for a batch, or regions, without a visit to learn from."""
        known = self._known.get(tuple(views))
        return known.rooms if known is not None and known.cuts == regions.cuts else None

    def learn(self, views: Sequence[int], regions: Regions, counts: Sequence[torch.Tensor]) -> None:
        """All ranks' counts of each view. Rooms stay while they fit, as kernels keep what they prepared for them."""
        if tuple(views) not in self._known and len(self._known) >= MOST_BATCHES:
            self._known.clear()
        before: Sequence[PassageRoom | None] = self.of(views, regions) or [None] * len(views)
        rooms = [_room(table, room) for table, room in zip(counts, before, strict=True)]
        self._known[tuple(views)] = _Known(regions.cuts, list(counts), rooms)

    def grow(self, views: Sequence[int], regions: Regions, counts: Sequence[torch.Tensor]) -> None:
        """They need at least so much: with splats that are not drawn, which exact counts leave out."""
        known = self._known.get(tuple(views))
        if known is not None and known.cuts == regions.cuts:
            self.learn(views, regions, [torch.maximum(a, b) for a, b in zip(known.counts, counts, strict=True)])

    def clear(self) -> None:
        """The Gaussians are others now."""
        self._known.clear()


def _room(counts: torch.Tensor, known: PassageRoom | None) -> PassageRoom:
    """Room for those counts: the known one if it fits them."""
    if known is not None and known.fits(counts):
        return known
    ranks, needs = len(counts), _needs(counts)
    sizes = with_margin(needs)
    records, instances, splats = np.split(sizes, [ranks * ranks, 2 * ranks * ranks])
    rows = -(-records // _ROWS_TOGETHER) * _ROWS_TOGETHER
    return PassageRoom(_by_pair(rows, ranks), tuple(splats.tolist()), _by_pair(instances, ranks))


def _by_pair(sizes: np.ndarray, ranks: int) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, sizes.reshape(ranks, ranks).tolist()))


def _needs(counts: torch.Tensor) -> np.ndarray:
    """Rows by source and destination, instances likewise, and splats by source: [(2 ranks + 1) ranks] int64."""
    table = counts.numpy()  # For so few numbers each operator of PyTorch takes the host several times as long.
    records, instances = table[:, :, SENT_RECORDS] + _FLAG_ROW, table[:, :, SENT_INSTANCES]
    return np.concatenate((records.ravel(), instances.ravel(), table[:, 0, OWN_SPLATS]))
