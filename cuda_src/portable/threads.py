"""Work on ranges, spread over CPU threads from Python: compiled loops release the interpreter lock.

Numba's own parallel loops abort when several Python threads enter them, as the ranks of one process do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

Range = tuple[int, int]

_CHUNKS_A_THREAD = 4
"""Chunks of equal cost are only estimated to be so; a few for each thread even out the rest."""

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def even_ranges(count: int, threads: int, least: int = 256) -> list[Range]:
    """Cut [0, count) into ranges of nearly equal length, none much shorter than `least`; none if count is 0."""
    chunks = 1 if threads == 1 else min(threads * _CHUNKS_A_THREAD, max(1, count // least))
    edges = [count * k // chunks for k in range(chunks + 1)]
    return [(lo, hi) for lo, hi in pairwise(edges) if hi > lo]


def weighted_ranges(cumulative: np.ndarray, fixed: int, threads: int) -> list[Range]:
    """Cut [0, K) into ranges of nearly equal cost; item k costs cumulative[k + 1] - cumulative[k] + fixed."""
    count = len(cumulative) - 1
    if threads == 1 or count < 2:
        return [(0, count)] if count else []
    cost = cumulative + fixed * np.arange(count + 1)
    chunks = min(threads * _CHUNKS_A_THREAD, count)
    inner = np.searchsorted(cost, cost[-1] * np.arange(1, chunks) / chunks)
    edges = [0, *np.clip(inner, 0, count).tolist(), count]
    return [(lo, hi) for lo, hi in pairwise(edges) if hi > lo]


def run_ranges(threads: int, ranges: Sequence[Range], work: Callable[[int, int, int], None]) -> None:
    """Call work(chunk, lo, hi) for every range, the calling thread taking its part; the first error is raised."""
    if threads == 1 or len(ranges) < 2:
        for chunk, (lo, hi) in enumerate(ranges):
            work(chunk, lo, hi)
        return
    waiting = iter(list(enumerate(ranges)))
    others = [_pool(threads).submit(_drain, waiting, work) for _ in range(min(threads, len(ranges)) - 1)]
    try:
        _drain(waiting, work)
    finally:
        for other in others:
            # One that has not started finds nothing left to do.
            if not other.cancel():
                other.result()


def _drain(waiting: Iterator[tuple[int, Range]], work: Callable[[int, int, int], None]) -> None:
    # Taking from a list's iterator is atomic, so that each range goes to one thread.
    for chunk, (lo, hi) in waiting:
        work(chunk, lo, hi)


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix=f"splat-kernels-{threads}")
        return _pools[threads]
