"""The order in which views are trained on, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.randomness import permutation

_STREAM_ORDER = 1


class ViewQueue:
    """An endless queue of view numbers, one shuffled pass after another (or the given order, repeated).

    `peek(n)` shows what comes next without taking it; `take(ids)` removes those views, in front or not, so that a
    strategy may run disjoint views together. Order depends on the seed and the pass alone, never on ranks.
    keep_passes: nothing of the next pass shows before this one is taken, so that a pass can be measured.
    """

    def __init__(self, views: Sequence[int], seed: int = 0, shuffle: bool = True, keep_passes: bool = False):
        if not views:
            raise ValueError("a view queue needs at least one view")
        self._views = list(views)
        self._seed = seed
        self._shuffle = shuffle
        self._keep_passes = keep_passes
        self._passes = 0
        self._waiting: list[int] = []

    @property
    def views(self) -> list[int]:
        """The views of a pass, ascending."""
        return sorted(set(self._views))

    def peek(self, n: int) -> list[int]:
        """The next n view numbers; fewer at the end of a pass where passes are kept."""
        while len(self._waiting) < (min(n, 1) if self._keep_passes else n):
            self._waiting += self._next_pass()
        return self._waiting[:n]

    def take(self, ids: Sequence[int]) -> list[int]:
        """Remove the first occurrence of each of these views and return them; all must have been seen by `peek`."""
        for view in ids:
            self._waiting.remove(view)
        return list(ids)

    def _next_pass(self) -> list[int]:
        order: Sequence[int] = range(len(self._views))
        if self._shuffle:
            order = permutation(self._seed, _STREAM_ORDER + 16 * self._passes, len(self._views)).tolist()
        self._passes += 1
        return [self._views[i] for i in order]
