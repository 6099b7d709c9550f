"""Tensors of a device on their way to the host, while the caller goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

T = TypeVar("T")

_MOST_SHAPES = 64
"""Of one piece of memory: some sizes are others at every step."""


class HostCopies:
    """Pinned memory that tensors of one device are copied into, and an event each, used again once `read` is over."""

    def __init__(self) -> None:
        # By elements, rounded up to a power of two: some sizes are others at every step.
        self._idle: defaultdict[tuple[int, torch.dtype], list[Pinned]] = defaultdict(list)

    def start(self, tensor: torch.Tensor) -> HostCopy:
        """Start to bring a tensor, as it is behind the work queued so far, to the host. One that is there is copied."""
        if tensor.device.type != "cuda":
            return HostCopy(tensor.clone())
        elements = 1 << max(0, tensor.numel() - 1).bit_length()
        idle = self._idle[elements, tensor.dtype]
        if idle:
            pinned = idle.pop()
        else:
            memory = torch.empty(elements, dtype=tensor.dtype, pin_memory=True)
            pinned = Pinned(memory, torch.cuda.Event(), torch.cuda.current_stream(tensor.device), idle)
        memory = pinned.part(tensor.shape)
        memory.copy_(tensor, non_blocking=True)
        pinned.copied.record(pinned.stream)
        return HostCopy(memory, pinned)


@dataclass(frozen=True)
class Pinned:
    """Memory of the host, the event behind which it holds what was copied last, the stream that computes, on which that
    is recorded, and where all of it goes afterwards."""

    memory: torch.Tensor
    copied: torch.cuda.Event
    stream: torch.cuda.Stream
    idle: list[Pinned]
    _parts: dict[torch.Size, torch.Tensor] = field(default_factory=dict)

    def part(self, shape: torch.Size) -> torch.Tensor:
        """The beginning of the memory in that shape; few shapes come again and again."""
        known = self._parts.get(shape)
        if known is None:
            if len(self._parts) >= _MOST_SHAPES:
                self._parts.clear()
            known = self._parts[shape] = self.memory[: shape.numel()].view(shape)
        return known


@dataclass(frozen=True)
class HostCopy:
    """A tensor on its way to the host, and the memory that it comes into; none for one that was there."""

    memory: torch.Tensor
    pinned: Pinned | None = None

    @property
    def there(self) -> bool:
        return self.pinned is None or self.pinned.copied.query()

    def read(self, use: Callable[[torch.Tensor], T]) -> T:
        """What `use` makes of the tensor once it is there, whose memory is another's afterwards. Called once."""
        if self.pinned is not None:
            self.pinned.copied.synchronize()
        made = use(self.memory)
        if self.pinned is not None:
            self.pinned.idle.append(self.pinned)
        return made
