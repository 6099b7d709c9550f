"""How long a rank's region took: the seconds that Grendel's own balancing goes by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from strategies.distribution.communicator import Communicator


class SegmentTime:
    """Adds up weighted stages; on a GPU by events in its queue, so that nobody waits before the seconds are asked for.

    wanted: False measures nothing.
    """

    def __init__(self, comm: Communicator, wanted: bool = True) -> None:
        self._comm, self.wanted = comm, wanted
        self._on_gpu = comm.device.type == "cuda"
        self._seconds = 0.0
        self._spans: list[tuple[float, torch.cuda.Event, torch.cuda.Event]] = []

    def stage(self, weight: float = 1.0) -> AbstractContextManager[None]:
        """Inside, nothing waits for other ranks."""
        return self._measured(weight) if self.wanted else nullcontext()

    @contextmanager
    def _measured(self, weight: float) -> Iterator[None]:
        if not self._on_gpu:
            began = self._comm.now()
            yield
            self._seconds += weight * (self._comm.now() - began)
            return
        stream = torch.cuda.current_stream(self._comm.device)
        began_there, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began_there.record(stream)
        yield
        ended.record(stream)
        self._spans.append((weight, began_there, ended))

    def take(self) -> Callable[[], float]:
        """The seconds since the last call, and a new beginning; what is returned waits for the device, if it must."""
        seconds, spans = self._seconds, self._spans
        self._seconds, self._spans = 0.0, []

        def total() -> float:
            if spans:
                spans[-1][2].synchronize()
            return seconds + sum(weight * 1e-3 * a.elapsed_time(b) for weight, a, b in spans)

        return total
