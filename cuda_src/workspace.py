"""Memory that the caller owns and operators write into: nothing is allocated in steady state."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from cuda_src.tape import hold

_NUMBERS = "workspace.numbers", torch.int32
_GROWTH = 32
_MOST_KEPT = 4096
"""What `kept` holds before it begins anew: a few entries for each of several hundred views."""

Made = TypeVar("Made")


class Workspace:
    """Named buffers that grow by a thirty-second at least when too small and are otherwise reused.

    A tensor from `take` stays valid until the same name is taken again, so two views whose results are alive at
    once need two workspaces. `bytes` is what the buffers hold now, `peak_bytes` the most they ever held.
    """

    def __init__(self, device: torch.device | str = "cpu", name: str = ""):
        """name: under which other ranks know the one that corresponds to it."""
        self.device, self.name = torch.device(device), name
        self.peak_bytes = 0
        self.moves = 0
        """How often a buffer was given up or replaced by a larger one, so that nothing may point into it any more."""
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        # What `take` returned last: most names are asked for in one shape, and finding is faster than making.
        self._taken: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._kept: dict[tuple[Hashable, ...], Any] = {}

    @property
    def bytes(self) -> int:
        return sum(b.numel() * b.element_size() for b in self._buffers.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """An uninitialised tensor of that shape; its memory is kept for the next call with this name."""
        taken = self._taken.get((name, dtype))
        if taken is not None and taken.shape == shape and not taken.requires_grad:
            return taken
        need = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < need:
            # The first request is exact (most sizes never change); growth leaves a little for the next view. Views of a
            # scene differ by a few times, which takes some forty steps at most, once; a half would stay idle for good.
            capacity = need if buffer is None else max(need, buffer.numel() + buffer.numel() // _GROWTH)
            taken = buffer = None
            self._forget(name, dtype)
            buffer = torch.empty(capacity, dtype=dtype, device=self.device)
            self._buffers[name, dtype] = buffer
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        taken = buffer[:need] if len(shape) == 1 else buffer[:need].view(shape)
        self._taken[name, dtype] = taken
        return taken

    def kept(self, key: tuple[Hashable, ...], make: Callable[[], Made]) -> Made:
        """What `make` returned for an equal key, unless a buffer has moved since.

        For addresses and tensors of this workspace, which take longer to put together than a kernel to launch. key: all
        that `make` goes by, tensors of others by their addresses; objects in it stay alive, what has only an address
        need not. What is kept is given to every caller, and so not to be changed or given a gradient.
        """
        made = self._kept.get(key)
        if made is None:
            made = make()  # Which may grow a buffer, and so forget the rest.
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = made
        return hold(made)

    def adopt(self, name: str, buffer: torch.Tensor) -> None:
        """Memory of somebody else, [n], for the name, until more is asked for than it holds."""
        known = self._buffers.get((name, buffer.dtype))
        if known is not None and known.data_ptr() == buffer.data_ptr() and len(known) == len(buffer):
            return
        known = None
        self._forget(name, buffer.dtype)
        self._buffers[name, buffer.dtype] = buffer
        self.moves += 1
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _forget(self, name: str, dtype: torch.dtype) -> None:
        """The buffer of that name, if there is one, moves: nothing may point into it, nor keep its memory."""
        if self._buffers.pop((name, dtype), None) is not None:
            self._taken.pop((name, dtype), None)
            self._kept.clear()
            self.moves += 1

    def release(self, name: str, dtype: torch.dtype) -> None:
        """Give that buffer up, if it is there: nothing that is kept may point into it."""
        if self._buffers.pop((name, dtype), None) is not None:
            self._taken.pop((name, dtype), None)
            self.moves += 1

    def holds(self, tensor: torch.Tensor) -> bool:
        """The tensor lies in one of these buffers, as they are now."""
        memory = tensor.untyped_storage().data_ptr()
        return any(buffer.untyped_storage().data_ptr() == memory for buffer in self._buffers.values())

    def capacity(self, name: str, dtype: torch.dtype = torch.float32) -> int:
        """Elements that the buffer of that name holds now; 0 before its first use."""
        buffer = self._buffers.get((name, dtype))
        return 0 if buffer is None else buffer.numel()

    def numbers(self, count: int) -> torch.Tensor:
        """0 ... count - 1, [count] int32, not to be written to: filled when it is first asked for, or grows."""
        buffer = self._buffers.get(_NUMBERS)
        if buffer is None or buffer.numel() < count:
            self._forget(*_NUMBERS)
            buffer = torch.arange(count, dtype=torch.int32, device=self.device)
            self._buffers[_NUMBERS] = buffer
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        return buffer[:count]

    def zeros(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.take(name, shape, dtype).zero_()
