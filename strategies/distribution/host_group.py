"""Collectives between hosts, beside the devices' own: for counts, and for tensors that lie in host memory."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from time import perf_counter

import torch
import torch.distributed as dist

from strategies.distribution.gloo import peers_named
from strategies.distribution.host_copies import HostCopies, HostCopy
from strategies.distribution.peer_lines import MOST_BYTES, PeerLines

LOOK_SECONDS = 0.1
"""Between two looks at what waits to be started, where the caller does not come by."""


@dataclass(eq=False)
class HostExchange:
    """Rows that cross between hosts. Started when they lie on this one; `result` waits for what comes."""

    stage: str
    copy: HostCopy
    shape: torch.Size
    send_counts: list[int]
    receive_counts: list[int]
    group: HostGroup
    moment: float | None = None
    """When it came, on the clock of `perf_counter`, once it has: where the rows lay on the host from the beginning."""
    work: dist.Work | None = None
    number: int | None = None
    """Of a row that went over the lines."""
    row: bytes = b""
    """That row, once it has been read: a start that failed is tried again with the same."""
    rows: torch.Tensor | None = None
    """What else is sent, likewise."""
    received: torch.Tensor = field(init=False)

    @property
    def started(self) -> bool:
        return self.work is not None or self.number is not None

    @property
    def by_line(self) -> bool:
        """Whether it is one row that all are told, and small."""
        lines, row = self.group.lines, self.copy.memory
        alike = len(row) == 1 and len(self.send_counts) == self.shape[0] > 1
        return lines is not None and alike and row.numel() * row.element_size() <= MOST_BYTES

    def result(self) -> torch.Tensor:
        """The rows that came, by source."""
        self.group.start_until(self)
        self.wait()
        return self.received

    def wait(self) -> None:
        """Of one that has been started."""
        if self.work is not None:
            with peers_named(self.stage, self.group.rank):
                self.work.wait()
            return
        assert self.group.lines is not None
        assert self.number is not None
        told = self.group.lines.told(self.stage, self.number)
        told[self.group.rank] = self.row
        every = bytearray().join(told[rank] for rank in range(len(told)))
        self.received = torch.frombuffer(every, dtype=self.copy.memory.dtype).view(len(told), *self.shape[1:])

    def start(self) -> None:
        """Waits until the rows are there."""
        if self.by_line:
            assert self.group.lines is not None
            if not self.row:
                self.row = self.copy.read(lambda rows: rows.numpy().tobytes())
            self.number = self.group.lines.tell(self.stage, self.row)
            return
        if self.rows is None:
            self.rows = self.copy.read(
                lambda rows: rows.expand(self.shape).clone(memory_format=torch.contiguous_format)
            )
        rows = self.rows
        self.received = rows.new_empty((sum(self.receive_counts), *rows.shape[1:]))
        with peers_named(self.stage, self.group.rank):
            self.work = dist.all_to_all_single(
                self.received, rows, self.receive_counts, self.send_counts, group=self.group.group, async_op=True
            )
        if self.copy.pinned is None:
            # On a GPU nobody asks for the moment, and what is called back would interrupt who queues the next step.
            self.work.get_future().add_done_callback(self._came)

    def _came(self, _: object) -> None:
        self.moment = perf_counter()


class HostGroup:
    """A gloo group whose collectives begin in the order of the calls, while the caller goes on.

    What lies on a device is copied into pinned memory first, and nobody waits for that copy but who asks for the
    result: the caller starts what has come whenever it comes by, and gloo's own threads do the rest. A thread of Python
    that waited for each copy would take the interpreter from the one that queues the step, at every turn. Where the
    caller is long in coming, a thread that looks in from time to time starts it, so that other ranks need not wait.
    Rows that are all the same one (`expand`) are copied once, and a small one goes over lines of the machine's own
    where there are any: counts of every step do.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, device: torch.device, lines: PeerLines | None = None):
        self.group, self.rank, self.lines = group, rank, lines
        self._copies = HostCopies()
        self._waiting: deque[HostExchange] = deque()
        self._begun: deque[HostExchange] = deque()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if device.type == "cuda":
            threading.Thread(target=self._look_in, args=(device,), name="host group", daemon=True).start()

    def exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int]
    ) -> HostExchange:
        """All to all of the tensor's rows, packed by destination; what arrives is on the host, packed by source."""
        copy = self._copies.start(send[:1] if send.stride(0) == 0 else send)
        one = HostExchange(stage, copy, send.shape, send_counts, receive_counts, self)
        with self._lock:
            self._waiting.append(one)
        self.start_ready()
        return one

    def start_ready(self) -> None:
        """Start what has come to the host, in the order of the calls."""
        if not self._waiting:
            return
        with self._lock:
            while self._waiting and self._waiting[0].copy.there:
                self._start_first()

    def start_until(self, one: HostExchange) -> None:
        """Start it, and all that comes before it; waits for their rows."""
        with self._lock:
            while not one.started:
                self._start_first()

    def barrier(self) -> None:
        """Return when all ranks have called it, and what they exchanged before it is over."""
        with self._lock:
            while self._waiting:
                self._start_first()
            while self._begun:
                self._begun.popleft().wait()
        with peers_named("barrier", self.rank):
            dist.barrier(group=self.group)

    def close(self) -> None:
        """End the thread and let go of the group, which gloo wants gone before the process."""
        self._closed.set()
        if self.lines is not None:
            self.lines.close()
        del self.group

    def _start_first(self) -> None:
        one = self._waiting[0]
        one.start()
        self._waiting.popleft()
        while self._begun and self._begun[0].work is not None and self._begun[0].work.is_completed():
            self._begun.popleft()
        if one.work is not None:
            self._begun.append(one)

    def _look_in(self, device: torch.device) -> None:
        torch.cuda.set_device(device)  # A thread begins on the first GPU, which is another rank's.
        while not self._closed.wait(LOOK_SECONDS):
            try:
                self.start_ready()
            except (RuntimeError, OSError):  # Who waits for what was not started will be told.
                return
