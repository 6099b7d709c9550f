"""How often this process has called on kernels: what a step asks of the host, whatever the kernels take."""

from __future__ import annotations

from threading import Lock

_lock = Lock()
_counted = 0


def count() -> None:
    """One more: a function of the CUDA library, or an operator of a back end that has none."""
    global _counted
    with _lock:  # Places of one process run as threads.
        _counted += 1


def counted() -> int:
    """All since the process began."""
    return _counted
