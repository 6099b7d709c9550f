"""Memory that the caller owns and operators write into: nothing is allocated in steady state."""

from __future__ import annotations

import math

import torch


class Workspace:
    """Named buffers that grow by a half when too small and are otherwise reused.

    A tensor from `take` stays valid until the same name is taken again, so two views whose results are alive at
    once need two workspaces. `bytes` is what the buffers hold now, `peak_bytes` the most they ever held.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self.peak_bytes = 0
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        return sum(b.numel() * b.element_size() for b in self._buffers.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """An uninitialised tensor of that shape; its memory is kept for the next call with this name."""
        need = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < need:
            # The first request is exact (most sizes never change); growth leaves room for the next view.
            capacity = need if buffer is None else max(need, buffer.numel() * 3 // 2)
            self._buffers.pop((name, dtype), None)
            buffer = torch.empty(capacity, dtype=dtype, device=self.device)
            self._buffers[name, dtype] = buffer
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        return buffer[:need].view(shape)

    def capacity(self, name: str, dtype: torch.dtype = torch.float32) -> int:
        """Elements that the buffer of that name holds now; 0 before its first use."""
        buffer = self._buffers.get((name, dtype))
        return 0 if buffer is None else buffer.numel()

    def zeros(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.take(name, shape, dtype).zero_()
