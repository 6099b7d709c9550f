"""Scratch of CUB's prefix sums, from the caller's workspace."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from cuda_src.compiled.bindings import library
from cuda_src.workspace import Workspace

_STEPS = 8
"""Sizes asked for between one power of two and the next, so that views of a similar size ask for the same."""


class Scratch(ctypes.Structure):
    """Passed by value: address and bytes."""

    _fields_ = (("memory", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def scratch_for(items: int, workspace: Workspace) -> Scratch:
    """Scratch for adding up at most so many items, in a buffer of its own."""
    # All that is there, so that the same tensor does for every size.
    size = max(scratch_bytes(items, workspace.device), workspace.capacity("compiled.scratch", torch.uint8))
    memory = workspace.take("compiled.scratch", (size,), torch.uint8)
    return Scratch(memory.data_ptr(), size)


def scratch_bytes(items: int, device: torch.device) -> int:
    """Bytes of scratch for at most so many items."""
    step = max(1, (1 << max(0, items.bit_length() - 1)) // _STEPS)
    return _bytes_for(-(-items // step) * step, device)


@cache
def _bytes_for(items: int, device: torch.device) -> int:
    size = ctypes.c_size_t(0)
    index = device.index if device.index is not None else torch.cuda.current_device()
    code = library().scratch_bytes(index, ctypes.c_int64(items), ctypes.byref(size))
    if code:
        raise RuntimeError(f"no scratch for {items} items: CUDA error {code}")
    return size.value
