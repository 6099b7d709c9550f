"""Memory that the other ranks' GPUs write into: what is exchanged goes where it is received, by copies alone.

No kernel carries the rows, as NCCL's do, through buffers of its own and on multiprocessors that the computation shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

_READY, _DONE = 0, 1
"""Channels of signals: the receiver's rows may be written, and have been."""
_GROWTH = 32
_WHOLE = 4096
"""Windows hold so many bytes a whole number of times, whatever lies in them."""


class PeerWindows:
    """One rank's end, on the current GPU. Windows are of the same size on all ranks and known to them by name."""

    def __init__(self, device: torch.device, barrier: Callable[[], None]) -> None:
        """barrier: of all hosts, in order with whatever else crosses between them. Collective.

        RuntimeError where processes may not map each other's memory, as in some containers.
        """
        assert dist.group.WORLD is not None
        self._group, self._device, self._barrier = dist.group.WORLD, device, barrier
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._windows: dict[str, list[torch.Tensor]] = {}
        self._signal_pad = symmetric.empty(1, dtype=torch.uint8, device=device)
        try:
            self._signals = symmetric.rendezvous(self._signal_pad, self._group)
        except RuntimeError as error:
            hint = "engine: nccl does without"
            raise RuntimeError(f"engine symmetric: ranks cannot map each other's memory ({error}); {hint}") from error

    def take(self, name: str, size: int) -> list[torch.Tensor]:
        """By rank, the window of that name, mapped here, of at least so many bytes, [n] uint8.

        Collective where it has to grow: all ranks ask for the same size. What the old one held is lost.
        """
        known = self._windows.get(name)
        if known is not None and len(known[0]) >= size:
            return known
        if known is not None:
            size = max(size, len(known[0]) + len(known[0]) // _GROWTH)
            # Others may still write into it, or copy from it.
            torch.cuda.synchronize(self._device)
            self._barrier()
            del self._windows[name], known
        size = -(-size // _WHOLE) * _WHOLE
        own = symmetric.empty(size, dtype=torch.uint8, device=self._device)
        mapped = symmetric.rendezvous(own, self._group)
        self._windows[name] = [
            own if rank == self._rank else mapped.get_buffer(rank, (size,), torch.uint8) for rank in range(self._ranks)
        ]
        return self._windows[name]

    def exchange(self, gives: Sequence[torch.Tensor], there: Sequence[torch.Tensor], came: Sequence[int]) -> None:
        """Queue it on the current stream, on all ranks alike.

        gives: rows for each rank. there: where they are to lie, in the windows of their destinations. came: how many
        rows each rank has for this one; none need no signal.
        """
        sources = [rank for rank, n in enumerate(came) if n and rank != self._rank]
        for source in sources:
            self._signals.put_signal(source, _READY)
        # Each begins behind itself: all would fill one rank's links at a time.
        for destination in [*range(self._rank + 1, self._ranks), *range(self._rank)]:
            if len(gives[destination]):
                self._signals.wait_signal(destination, _READY)
                there[destination].copy_(gives[destination])
                self._signals.put_signal(destination, _DONE)
        for source in sources:
            self._signals.wait_signal(source, _DONE)
