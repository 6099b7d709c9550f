"""Engine `virtual`: ranks as threads of one process that run one at a time.

Exact bytes and per-rank compute times for any number of ranks on one device. A rank runs while it holds the baton
and yields only inside the communicator. Each rank has a clock that advances while it holds the baton and jumps, at
a wait, to the latest sender's: so times are those of ranks side by side on a link of infinite speed, or of the rate
that they are held to; copies that stand in for the link take none. On a GPU a rank's queued work is done before the
baton passes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import torch

from strategies.distribution.communicator import Communicator, PeerFailedError, Terms, Transfer

T = TypeVar("T")


@dataclass
class _Meeting:
    """One collective: what each rank brought, and when."""

    brought: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    taken: int = 0


class VirtualWorld:
    """The shared state of the ranks: who holds the baton, who waits for which meeting, and the clocks."""

    def __init__(self, ranks: int):
        self.ranks = ranks
        self.clocks = [0.0] * ranks
        self._baton = threading.Lock()
        # Each rank waits for its own: were all woken, they would ask for the interpreter while the next one computes.
        self._turns = [threading.Condition(self._baton) for _ in range(ranks)]
        self._holder = 0
        self._resumed = perf_counter()
        self._waiting: dict[int, tuple[int, str]] = {}
        self._ended: set[int] = set()
        self._meetings: dict[int, _Meeting] = {}
        self._failure: BaseException | None = None
        self._finish_work: Callable[[], None] = lambda: None

    def run(self, rank_main: Callable[[VirtualCommunicator], T], device: torch.device | str = "cpu") -> list[T]:
        """Call rank_main on every rank and return its results by rank; the first failure is raised here."""
        results: dict[int, T] = {}
        place = torch.device(device)
        if place.type == "cuda":
            self._finish_work = lambda: torch.cuda.synchronize(place)

        def main(rank: int) -> None:
            try:
                self._acquire(rank)
                results[rank] = rank_main(VirtualCommunicator(self, rank, place))
            except PeerFailedError:
                pass  # The peer's own exception is the one to report.
            except BaseException as error:
                self._fail(error)
            try:
                self._end(rank)
            except BaseException as error:  # What the rank had queued on its device failed.
                self._fail(error)

        threads = [threading.Thread(target=main, args=(r,), name=f"rank {r}") for r in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return [results[r] for r in range(self.ranks)]

    def now(self, rank: int) -> float:
        return self.clocks[rank] + perf_counter() - self._resumed

    def bring(self, rank: int, number: int, parts: list[torch.Tensor], due: float = 0.0) -> None:
        """Leave this rank's part of meeting `number`; does not yield. due: others have it then at the earliest."""
        self._finish_work()
        meeting = self._meetings.setdefault(number, _Meeting())
        meeting.brought[rank] = parts
        meeting.times[rank] = max(self.now(rank), due)

    @contextmanager
    def stopped(self, rank: int) -> Iterator[None]:
        """What is done inside takes no time on the rank's clock."""
        self._tick(rank)
        yield
        self._finish_work()
        self._resumed = perf_counter()

    def rest_until(self, rank: int, moment: float) -> None:
        """Advance the rank's clock to that moment."""
        self._tick(rank)
        self.clocks[rank] = max(self.clocks[rank], moment)

    def take(self, rank: int, number: int, stage: str) -> list[torch.Tensor]:
        """What every rank brought for this one, by source; yields until all have come."""
        meeting = self._meetings[number]
        if len(meeting.brought) < self.ranks:
            self._waiting[rank] = (number, stage)
            self._pass_on(rank)
            self._acquire(rank)
            del self._waiting[rank]
        self._tick(rank)
        self.clocks[rank] = max(self.clocks[rank], *meeting.times.values())
        received = [meeting.brought[source][rank] for source in range(self.ranks)]
        meeting.taken += 1
        if meeting.taken == self.ranks:
            del self._meetings[number]
        return received

    def _tick(self, rank: int) -> None:
        self._finish_work()
        moment = perf_counter()
        self.clocks[rank] += moment - self._resumed
        self._resumed = moment

    def _acquire(self, rank: int) -> None:
        with self._baton:
            self._turns[rank].wait_for(lambda: self._holder == rank or self._failure is not None)
            if self._failure is not None:
                raise PeerFailedError(f"rank {rank}: another rank failed")
            self._resumed = perf_counter()

    def _pass_on(self, rank: int) -> None:
        """Give the baton to the next rank that can run; nobody left who can is a deadlock."""
        self._tick(rank)
        with self._baton:
            for step in range(1, self.ranks + 1):
                candidate = (rank + step) % self.ranks
                if candidate not in self._ended and self._can_run(candidate):
                    self._holder = candidate
                    self._turns[candidate].notify()
                    return
        if len(self._ended) < self.ranks:
            stuck = ", ".join(f"rank {r} in {stage}" for r, (_, stage) in sorted(self._waiting.items()))
            self._fail(RuntimeError(f"ranks wait for a rank that has ended: {stuck}"))

    def _can_run(self, rank: int) -> bool:
        waits = self._waiting.get(rank)
        return waits is None or len(self._meetings[waits[0]].brought) == self.ranks

    def _fail(self, error: BaseException) -> None:
        with self._baton:
            if self._failure is None:
                self._failure = error
            for turn in self._turns:
                turn.notify()

    def _end(self, rank: int) -> None:
        self._ended.add(rank)
        if self._failure is None:
            self._pass_on(rank)


class VirtualCommunicator(Communicator):
    """A rank of a VirtualWorld."""

    engine = "virtual"

    def __init__(self, world: VirtualWorld, rank: int, device: torch.device):
        super().__init__(rank, world.ranks, device)
        self._world = world
        self._meetings = 0

    def now(self) -> float:
        return self._world.now(self.rank)

    def rest_until(self, moment: float) -> None:
        self._world.rest_until(self.rank, moment)

    def _exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int], terms: Terms
    ) -> Transfer:
        number = self._next()
        # The sender may overwrite its buffer before the others read: what is brought is a copy.
        with self._world.stopped(self.rank):
            parts = list(send.clone().split(send_counts))
        self._world.bring(self.rank, number, parts, self._link_free)

        def finish() -> torch.Tensor:
            parts = self._world.take(self.rank, number, stage)
            came = [len(p) for p in parts]
            if came != receive_counts:
                raise ValueError(f"{stage}: rank {self.rank} expected {receive_counts} rows by source, got {came}")
            with self._world.stopped(self.rank):
                return torch.cat(parts) if terms.into is None else terms.place(parts, self.rank)

        return Transfer(finish)

    def _barrier(self) -> None:
        number = self._next()
        nothing = torch.empty(0)
        self._world.bring(self.rank, number, [nothing] * self.ranks)
        self._world.take(self.rank, number, "barrier")

    def _next(self) -> int:
        self._meetings += 1
        return self._meetings
