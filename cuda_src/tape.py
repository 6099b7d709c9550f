"""What a step asks of its devices, kept in order, so that it can be asked for again without being worked out anew.

Views that come again want the same kernels and exchanges on the same memory. To find out which takes the host longer
than to start them, and the more ranks share a view, the less each of their devices has to do meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Actions in the order in which they were done. Whatever they are given has to stay where it lies: `held`, or the
    business of who plays the tape."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], object]] = []
        self.held: list[object] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, what this thread does by `act` is kept."""
        before, _here.tape = _here.tape, self
        try:
            yield
        finally:
            _here.tape = before

    def keep(self, action: Callable[[], object]) -> None:
        self._actions.append(action)

    def play(self) -> None:
        """Do all of it once more."""
        for action in self._actions:
            action()


class _Here(threading.local):
    """Ranks of one process are threads of it."""

    tape: Tape | None = None


_here = _Here()


def act(action: Callable[[], T]) -> T:
    """Do it, now and whenever the tape that is being recorded is played. What it does by `act` itself is part of it."""
    tape = _here.tape
    if tape is None:
        return action()
    tape.keep(action)
    with off_tape():
        return action()


def hold(value: T) -> T:
    """Keep it alive as long as the tape that is being recorded, which may know of its memory by address alone."""
    if _here.tape is not None:
        _here.tape.held.append(value)
    return value


@contextmanager
def off_tape() -> Iterator[None]:
    """Inside, what this thread does is done this once."""
    before, _here.tape = _here.tape, None
    try:
        yield
    finally:
        _here.tape = before


def on_tape() -> bool:
    """Whether what this thread does is being recorded."""
    return _here.tape is not None
