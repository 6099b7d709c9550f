"""Collectives between hosts, beside the devices' own: for counts, and for tensors that lie in host memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import torch
import torch.distributed as dist

from strategies.distribution.gloo import peers_named

T = TypeVar("T")


@dataclass(frozen=True)
class Arrival:
    """What a host exchange brought, and when, on the clock of `perf_counter`."""

    received: torch.Tensor
    moment: float


class HostCopies:
    """Pinned memory that tensors of a device are copied into, and an event each, used again once `read` is over."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[torch.Size, torch.dtype], list[HostCopy]] = defaultdict(list)

    def start(self, tensor: torch.Tensor) -> HostCopy:
        """Start to bring a tensor, as it is behind the work queued so far, to the host. One that is there is copied."""
        if tensor.device.type != "cuda":
            return HostCopy(tensor.clone(), None, [])
        idle = self._idle[tensor.shape, tensor.dtype]
        if idle:
            copy = idle.pop()
        else:
            copy = HostCopy(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True), torch.cuda.Event(), idle)
        copy.memory.copy_(tensor, non_blocking=True)
        assert copy.copied is not None
        copy.copied.record(torch.cuda.current_stream(tensor.device))
        return copy


@dataclass(frozen=True)
class HostCopy:
    """A tensor on its way to the host: its memory there, and the event behind which it is there."""

    memory: torch.Tensor
    copied: torch.cuda.Event | None
    idle: list[HostCopy]

    def read(self, use: Callable[[torch.Tensor], T]) -> T:
        """What `use` makes of the tensor once it is there, whose memory is another's afterwards. Called once."""
        if self.copied is not None:
            self.copied.synchronize()
        made = use(self.memory)
        self.idle.append(self)
        return made


class HostGroup:
    """A gloo group that one thread talks on, in the order of the calls, while the caller goes on.

    What lies on a device is copied into pinned memory first, and the thread, not the caller, waits for that copy and
    for the kernels that the tensor comes from. Rows that are all the same one (`expand`) are copied once.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, device: torch.device):
        self._group, self._rank = group, rank
        self._thread = ThreadPoolExecutor(1, "host group")
        self._copies = HostCopies()
        if device.type == "cuda":  # A thread begins on the first GPU, which is another rank's.
            self._thread.submit(torch.cuda.set_device, device).result()

    def exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int]
    ) -> Future[Arrival]:
        """All to all of the tensor's rows, packed by destination; what arrives is on the host, packed by source."""
        copy = self._copies.start(send[:1] if send.stride(0) == 0 else send)

        def talk(rows: torch.Tensor) -> Arrival:
            rows = rows.expand(send.shape).contiguous()
            received = rows.new_empty((sum(receive_counts), *rows.shape[1:]))
            dist.all_to_all_single(received, rows, receive_counts, send_counts, group=self._group)
            return Arrival(received, perf_counter())

        return self._queue(stage, lambda: copy.read(talk))

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._queue("barrier", lambda: dist.barrier(group=self._group)).result()

    def close(self) -> None:
        """End the thread and let go of the group, which gloo wants gone before the process."""
        self._thread.shutdown()
        del self._group

    def _queue(self, stage: str, call: Callable[[], T]) -> Future[T]:
        def named() -> T:
            with peers_named(stage, self._rank):
                return call()

        return self._thread.submit(named)
