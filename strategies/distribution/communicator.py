"""How ranks talk: a few collectives on rows of tensors, every one of them in the ledger."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from cuda_src.tape import act, on_tape
from strategies.distribution.host_copies import HostCopies
from strategies.distribution.ledger import Ledger


class PeerFailedError(RuntimeError):
    """Another rank has ended, so this one cannot go on: never the cause, which the other rank has said itself."""


class PeerSilentError(TimeoutError):
    """Another rank did not come to a collective in time."""


@dataclass(frozen=True)
class Terms:
    """How an exchange may be made.

    own: False where what a rank sends itself need not be moved: its place in what is received holds anything, in `into`
    what it held. after: from `Communicator.mark`, work that the exchange waits for, and for none that was queued later;
    an engine may wait for all. into: memory that rows are received into, of their shape and type; in one place or, by
    source, in several, of which `wait` returns the first. there: by destination, the same memory of theirs, in windows
    (`Communicator.windows`), which an engine that has such may write.
    """

    own: bool = True
    after: object | None = None
    into: torch.Tensor | Sequence[torch.Tensor] | None = None
    there: Sequence[torch.Tensor] | None = None

    def places(self, counts: Sequence[int]) -> Sequence[torch.Tensor]:
        """`into`, which there is, by source. counts: rows from each."""
        assert self.into is not None
        return self.into.split(list(counts)) if isinstance(self.into, torch.Tensor) else self.into

    @property
    def received(self) -> torch.Tensor:
        """What `wait` returns where there is `into`."""
        assert self.into is not None
        return self.into if isinstance(self.into, torch.Tensor) else self.into[0]

    def place(self, parts: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
        """Put what came, by source, into its place: for engines that receive elsewhere. Returns `received`."""
        for source, (rows, part) in enumerate(zip(self.places([len(p) for p in parts]), parts, strict=True)):
            if self.own or source != rank:
                rows.copy_(part)
        return self.received


NO_TERMS = Terms()


@dataclass
class Transfer:
    """What an engine hands back for a started exchange.

    finish: waits and returns the received rows. finished_at: the time it arrived, where the engine knows. timed: the
    engine itself accounts for exposed and hidden seconds, on its devices, paces the exchange there, and says when the
    host waits. due: when it may end at the earliest, where it is held to a rate here.
    """

    finish: Callable[[], torch.Tensor]
    finished_at: Callable[[], float | None] = lambda: None
    timed: bool = False
    due: float = 0.0


class Pending:
    """An exchange under way; `wait` returns what was received, once."""

    def __init__(self, comm: Communicator, stage: str, start: Callable[[], Transfer]):
        """start: the exchange, done by `act`: on a tape it is started again, and waited for again."""
        self._comm, self._stage, self._start = comm, stage, start
        act(self._begin)

    def wait(self) -> torch.Tensor:
        """The received rows, packed by source. Time spent here is exposed; what passed before it was hidden."""
        return act(self._end)

    def _begin(self) -> None:
        self._started = self._comm.now()
        self._transfer = self._start()

    def _end(self) -> torch.Tensor:
        if self._transfer.timed:
            return self._transfer.finish()
        asked = self._comm.now()
        self._comm.on_wait(self._stage)
        received = self._transfer.finish()
        self._comm.on_wait(None)
        due = self._transfer.due
        self._comm.rest_until(due)
        done = self._comm.now()
        arrived = max(self._transfer.finished_at() or done, due)
        self._comm.spent(self._stage, exposed=done - asked, hidden=max(0.0, min(arrived, asked) - self._started))
        return received


class Communicator(ABC):
    """One rank's end. All methods are collective and called in the same order on all ranks.

    Engines implement the three underscored methods. No objects are sent (that would unpickle), only tensors.
    """

    engine: str

    def __init__(self, rank: int, ranks: int, device: torch.device):
        self.rank, self.ranks, self.device = rank, ranks, device
        self.ledger = Ledger(ranks)
        self.exposed_seconds: dict[str, float] = {}
        self.hidden_seconds: dict[str, float] = {}
        self.on_wait: Callable[[str | None], None] = lambda stage: None
        """Told the stage in which this rank starts to wait for others, and None when it need not any more."""
        self.on_silence: Callable[[PeerSilentError], None] = lambda error: None
        """Told, from a thread of its own, that an exchange on the device has outlasted its time: the rank may be stuck
        in a call that does not return."""
        self.pace: float | None = None
        """Bytes a second, each way, that exchanges are held to; None for as fast as they go."""
        self.checks = False
        """Whether all ranks' row counts are compared before each exchange. Costs a collective each time."""
        self._link_free = 0.0

    def exchange(
        self,
        stage: str,
        send: torch.Tensor,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        metadata: bool = False,
        padding: int = 0,
        terms: Terms = NO_TERMS,
    ) -> Pending:
        """Send rows [sum(send_counts), ...], packed by destination; receive rows packed by source.

        metadata: all of it counts as such. padding: so many trailing values of each row do. terms: what an engine may
        make use of. ValueError when the counts do not describe the rows.
        """
        if send.shape[0] != sum(send_counts) or len(send_counts) != self.ranks or len(receive_counts) != self.ranks:
            raise ValueError(
                f"{stage}: rank {self.rank} has {send.shape[0]} rows for {self.ranks} ranks, "
                f"send counts {list(send_counts)}, receive counts {list(receive_counts)}"
            )
        to, back = list(send_counts), list(receive_counts)
        row, padded = math.prod(send.shape[1:]) * send.element_size(), padding * send.element_size()
        payload, trailing = [n * (row - padded) for n in to], [n * padded for n in to]
        over_link = self._over_link(send)
        if terms.into is None and on_tape():  # Where it comes this time, it has to come every time.
            terms = replace(terms, into=send.new_empty((sum(back), *send.shape[1:])))

        def start() -> Transfer:
            if self.checks:
                self._check_counts(stage, to, back)
            self.ledger.add(stage, self.rank, payload, metadata, over_link)
            if padding:
                self.ledger.add_padding(stage, self.rank, trailing, over_link)
            due = self._paced(row, to, back)
            transfer = self._exchange(stage, send.contiguous(), to, back, terms)
            transfer.due = due
            return transfer

        return Pending(self, stage, start)

    def counts(self, stage: str, send: torch.Tensor) -> Pending:
        """Each rank learns what the others will send it: send [ranks, k] int64; received [ranks, k], by source."""
        ones = [1] * self.ranks
        return self.exchange(stage, send.to(torch.int64), ones, ones, metadata=True)

    def neighbours(
        self, stage: str, send: Mapping[int, torch.Tensor], receive: Mapping[int, int], like: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """Rows to and from some ranks only: send by destination, row counts expected by source.

        like: a tensor whose trailing shape, dtype and device the rows have.
        """
        send_counts = [len(send[d]) if d in send else 0 for d in range(self.ranks)]
        parts = [send[d] for d, n in enumerate(send_counts) if n] or [like[:0]]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        receive_counts = [receive.get(s, 0) for s in range(self.ranks)]
        received = self.exchange(stage, rows, send_counts, receive_counts).wait()
        return {s: part for s, part in enumerate(received.split(receive_counts)) if s in receive}

    @contextmanager
    def accompany(
        self, stage: str, bytes_to: Sequence[int], bytes_from: Sequence[int], metadata: bool = False
    ) -> Iterator[None]:
        """Inside, another library exchanges rows on the computation's own stream: so many bytes to each rank and from
        each, by rank. They are in the ledger, held to the link's rate, and all of their time is exposed."""
        self.ledger.add(stage, self.rank, bytes_to, metadata)
        with self._accompanied(stage, bytes_to, bytes_from):
            yield

    @contextmanager
    def _accompanied(self, stage: str, bytes_to: Sequence[int], bytes_from: Sequence[int]) -> Iterator[None]:
        asked = self.now()
        due = self._paced(1, bytes_to, bytes_from)
        self.on_wait(stage)
        yield
        self.on_wait(None)
        self.rest_until(due)
        self.spent(stage, exposed=self.now() - asked, hidden=0.0)

    def mark(self) -> object | None:
        """The work queued so far, for `Terms.after` of one exchange; None where none is queued behind work."""
        return None

    def gather(
        self, stage: str, rows: torch.Tensor, metadata: bool = True, lengths: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """Every rank's rows [n, ...] on all ranks; n may differ between them. lengths: by rank, where all know them."""
        if lengths is None:
            many = torch.tensor([[len(rows)]], dtype=torch.int64).expand(self.ranks, 1)
            lengths = [int(n) for n in self.counts(stage, many).wait()[:, 0]]
        copies = rows.expand(self.ranks, *rows.shape).reshape(-1, *rows.shape[1:])
        received = self.exchange(stage, copies, [len(rows)] * self.ranks, lengths, metadata).wait()
        return list(received.split(list(lengths)))

    def reduce(self, stage: str, values: torch.Tensor, metadata: bool = True) -> torch.Tensor:
        """The sum over ranks, added in rank order so that it has the same bits on every rank and engine."""
        parts = self.gather(stage, values[None], metadata)
        total = parts[0][0].clone()
        for part in parts[1:]:
            total += part[0]
        return total

    def windows(self, name: str, size: int) -> list[torch.Tensor] | None:
        """By rank, memory into which it receives, [>= size] uint8, that all ranks can write; kept between calls.

        All ranks ask for the same. None from an engine whose ranks do not map each other's memory.
        """
        return None

    def fork(self) -> AbstractContextManager[None]:
        """What is queued inside waits for the exchanges it needs and for what is queued so far; what is queued from now
        until then runs beside it, where the engine can, and what is queued after it waits for both."""
        return nullcontext()

    def barrier(self) -> None:
        """Return when all ranks have called it; not in the ledger."""
        self.on_wait("barrier")
        self._barrier()
        self.on_wait(None)

    def now(self) -> float:
        """Seconds on this rank's clock; an engine that models time has its own."""
        return perf_counter()

    def rest_until(self, moment: float) -> None:
        """Let this rank's clock come to that moment: the end of an exchange that is held to a rate."""
        if (left := moment - self.now()) > 0:
            time.sleep(left)

    def settle(self) -> None:
        """Bring exposed and hidden seconds up to date. An engine that keeps them on its device waits for it here."""
        return

    def spent(self, stage: str, exposed: float, hidden: float) -> None:
        self.exposed_seconds[stage] = self.exposed_seconds.get(stage, 0.0) + exposed
        self.hidden_seconds[stage] = self.hidden_seconds.get(stage, 0.0) + hidden

    def clear(self) -> None:
        """Start a new window of the ledger and of exposed and hidden seconds."""
        self.ledger.clear()
        self.exposed_seconds, self.hidden_seconds = {}, {}

    @contextmanager
    def off_the_record(self) -> Iterator[None]:
        """Inside, collectives leave no trace in the ledger or the seconds: for the harness's own questions."""
        kept = self.ledger, self.exposed_seconds, self.hidden_seconds
        self.ledger, self.exposed_seconds, self.hidden_seconds = Ledger(kept[0].places), {}, {}
        try:
            yield
        finally:
            self.ledger, self.exposed_seconds, self.hidden_seconds = kept

    def _over_link(self, send: torch.Tensor) -> bool:
        """Whether the engine moves this tensor between devices, and not from host to host."""
        return True

    def _paced(self, row: int, send_counts: Sequence[int], receive_counts: Sequence[int]) -> float:
        """When an exchange that starts now may end, on a full-duplex link that carries one exchange after another.

        row: bytes of one.
        """
        if self.pace is None:
            return 0.0
        out, back = (sum(counts) - counts[self.rank] for counts in (send_counts, receive_counts))
        self._link_free = max(self._link_free, self.now()) + row * max(out, back) / self.pace
        return self._link_free

    def _check_counts(self, stage: str, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        """ValueError, on every rank, where one does not expect what another sends: many engines would hang."""
        self.checks = False
        with self.off_the_record():
            mine = torch.tensor([list(send_counts), list(receive_counts)], dtype=torch.int64)
            every = torch.cat(self.gather(stage, mine[None]))
        self.checks = True
        sent, expected = every[:, 0], every[:, 1].T
        for source, destination in (sent != expected).nonzero().tolist():
            raise ValueError(
                f"{stage}: rank {source} sends {int(sent[source, destination])} rows to rank {destination}, "
                f"which expects {int(expected[source, destination])}"
            )

    @abstractmethod
    def _exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int], terms: Terms
    ) -> Transfer: ...

    @abstractmethod
    def _barrier(self) -> None: ...


class LocalCommunicator(Communicator):
    """One rank alone: what it sends it receives.

    places: of the job; a strategy whose one process drives many devices enters their traffic in the ledger itself.
    """

    engine = "local"

    def __init__(self, device: torch.device | str = "cpu", places: int = 1):
        super().__init__(0, 1, torch.device(device))
        self.ledger = Ledger(places)
        self._copies = HostCopies()

    def counts(self, stage: str, send: torch.Tensor) -> Pending:
        """As they are now: the sender may write others there before it asks for these."""
        super().counts(stage, send)
        copy = self._copies.start(send.to(torch.int64))
        return Pending(self, stage, lambda: Transfer(lambda: copy.read(torch.clone)))

    def _exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int], terms: Terms
    ) -> Transfer:
        return Transfer(lambda: send if terms.into is None else terms.place([send], self.rank))

    def _barrier(self) -> None:
        return
