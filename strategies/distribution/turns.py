"""In which order each rank deals with the views of a batch, and the exchanges that follow it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

from strategies.distribution.regions import Regions

Came = TypeVar("Came")


@dataclass(frozen=True)
class Turns:
    """orders: by rank, the views of a batch, by number, in the order in which the rank sends its rows of them.
    alike_back: what is made of them goes back in the same order for all.

    At every turn each rank sends the rows of one view to all others, and receives, from each, rows of the view whose
    turn it is there.
    """

    orders: tuple[tuple[int, ...], ...]
    alike_back: bool = False

    @classmethod
    def alike(cls, ranks: int, views: int = 1) -> Turns:
        """All ranks send one view at a time."""
        return cls((tuple(range(views)),) * ranks)

    @classmethod
    def of(cls, regions: Regions) -> Turns:
        """Every rank begins behind the view that it renders itself, and comes to that last.

        Where each rank renders a view, each then sends to one other and hears from one, so that links are in use both
        ways, and what a rank needs is on its way while it still projects. Alike, all would send to one at a time.
        """
        views, orders = len(regions.cameras), []
        for begin, end in zip(regions.cuts, regions.cuts[1:], strict=False):
            own = min(bisect_right(regions.tiles, (begin + end) // 2), views) - 1
            orders.append(tuple((own + 1 + turn) % views for turn in range(views)))
        return cls(tuple(orders))

    @property
    def views(self) -> int:
        return len(self.orders[0])

    def at(self, turn: int) -> tuple[int, ...]:
        """By rank, the view whose turn it is."""
        return tuple(order[turn] for order in self.orders)

    def last(self, rank: int, view: int) -> int:
        """The turn that brings the rank what is still missing of the view's rows from others."""
        others = [order.index(view) for other, order in enumerate(self.orders) if other != rank]
        return max(others, default=self.orders[rank].index(view))

    @cached_property
    def returning_alike(self) -> Turns:
        return replace(self, alike_back=True)

    @cached_property
    def back(self) -> Turns:
        """For what is made of the rows: views in the order in which they are complete at each rank, or one for all."""
        if self.alike_back:
            return Turns.alike(len(self.orders), self.views)
        if len(set(self.orders)) == 1:
            return self
        ranks, views = range(len(self.orders)), range(self.views)
        return Turns(tuple(tuple(sorted(views, key=lambda view: self.last(rank, view))) for rank in ranks))


class InTurns(Generic[Came]):
    """What a rank waits for in one stage of a batch, an exchange a turn. After the last turn the first may follow."""

    def __init__(self, turns: Turns, rank: int) -> None:
        self.turns, self._rank = turns, rank
        self._begun = 0
        self._arrivals: deque[Callable[[], Came]] = deque()
        self._came: list[Came] = []

    @property
    def next(self) -> tuple[int, ...]:
        """By rank, the view whose turn it is to cross."""
        return self.turns.at(self._begun % self.turns.views)

    def begun(self, arrive: Callable[[], Came]) -> None:
        """The exchange of this turn is under way. arrive: waits for it, and is called once."""
        if self._begun == self.turns.views:
            self._begun, self._came = 0, []
        self._begun += 1
        self._arrivals.append(arrive)

    def wait(self, view: int) -> Came:
        """For all rows of the view that come from others; returns what came with the last of them."""
        last = self.turns.last(self._rank, view)
        while len(self._came) <= last:
            self._came.append(self._arrivals.popleft()())
        return self._came[last]
