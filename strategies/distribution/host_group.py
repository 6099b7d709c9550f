"""Collectives between hosts, beside the devices' own: for counts, and for tensors that lie in host memory."""

from __future__ import annotations

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


class HostGroup:
    """A gloo group that one thread talks on, in the order of the calls, while the caller goes on.

    What lies on a device is copied into pinned memory first, and the thread, not the caller, waits for that copy and
    for the kernels that the tensor comes from.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, device: torch.device):
        self._group, self._rank = group, rank
        self._thread = ThreadPoolExecutor(1, "host group")
        if device.type == "cuda":  # A thread begins on the first GPU, which is another rank's.
            self._thread.submit(torch.cuda.set_device, device).result()

    def exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int]
    ) -> Future[Arrival]:
        """All to all of the tensor's rows, packed by destination; what arrives is on the host, packed by source."""
        on_host = to_host(send)

        def talk() -> Arrival:
            rows = on_host()
            received = rows.new_empty((sum(receive_counts), *rows.shape[1:]))
            dist.all_to_all_single(received, rows, receive_counts, send_counts, group=self._group)
            return Arrival(received, perf_counter())

        return self._queue(stage, talk)

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


def to_host(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start to bring a tensor to the host; the call waits until it is there. A host tensor is there already."""
    if tensor.device.type != "cuda":
        return lambda: tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> torch.Tensor:
        copied.synchronize()
        return copy

    return wait
