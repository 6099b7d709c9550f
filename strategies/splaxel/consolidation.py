"""View consolidation: views that share no participant run at once (Splaxel)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from strategies.distribution.communicator import Communicator
from strategies.views import ViewQueue


def disjoint_views(
    queue: ViewQueue, window: int, most: int, participants: Callable[[int], frozenset[int]], ranks: int
) -> list[tuple[int, frozenset[int]]]:
    """Take from the queue the next view and those of the look-ahead that none of its ranks is busy with.

    Greedy first fit over the next `window` views of the queue, which is shuffled; at most `most` are taken. The queue
    and participation are the same on all ranks, and so is the choice.
    """
    chosen: list[tuple[int, frozenset[int]]] = []
    busy: set[int] = set()
    for view in queue.peek(window):
        taking_part = participants(view)
        if busy.isdisjoint(taking_part):
            chosen.append((view, taking_part))
            busy |= taking_part
        if len(chosen) == most or len(busy) == ranks:
            break
    queue.take([view for view, _ in chosen])
    return chosen


class Participation:
    """Which ranks had anything to do in a view's last visit: one bit a (view, rank), known to all."""

    def __init__(self, comm: Communicator):
        self._comm = comm
        self._last: dict[int, frozenset[int]] = {}

    def forget(self) -> None:
        """What the ranks hold has changed or may have moved: any of them may be seen again."""
        self._last = {}

    def of(self, view: int, seen: frozenset[int]) -> frozenset[int]:
        """Ranks that take part in the next visit. seen: those that the view can see; at a first visit, all of them.

        Never empty: some rank must enter the loss of an empty image.
        """
        return (seen & self._last.get(view, seen)) or frozenset({min(seen, default=0)})

    def learn(self, views: Sequence[int], took_part: Sequence[bool]) -> None:
        """Tell all ranks in which of these views this one had something to do. Collective."""
        bits = torch.tensor(list(took_part), dtype=torch.uint8)
        told = torch.stack(self._comm.gather("participation", bits))
        for number, view in enumerate(views):
            self._last[view] = frozenset(torch.nonzero(told[:, number]).flatten().tolist())
