"""The library's functions as Python calls: tensors become addresses, and the current stream goes along."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from cuda_src import launches
from cuda_src.compiled.build import BuildError, build


class Queue(ctypes.Structure):
    """Where a call runs: the number of the device, and the stream."""

    _fields_ = (("device", ctypes.c_int), ("stream", ctypes.c_void_p))


@cache
def library() -> ctypes.CDLL:
    """The kernels, built on first use."""
    if not torch.cuda.is_available():
        raise BuildError("compiled kernels need a GPU; torch finds none that works")
    return ctypes.CDLL(str(build().library))


def queue_of(device: torch.device) -> Queue:
    """The current stream of that device."""
    index = torch.cuda.current_device() if device.index is None else device.index
    # The public current_stream builds a Stream object, which takes longer than the launch it is for.
    return Queue(index, torch._C._cuda_getCurrentRawStream(index))


def call(function: str, device: torch.device, *arguments: Any) -> None:
    """Launch one of the library's functions; raises RuntimeError with CUDA's words if that fails.

    Tensors are passed by address (contiguous, on the device), None as no address, int as 32 bits (`count` makes 64),
    float as float32, and ctypes' own values as they are: structs by value unless given by `ctypes.byref`. The kinds of
    a function's arguments are those of its first call.
    """
    if device.type != "cuda":
        raise ValueError(f"compiled kernels work on CUDA tensors, not on {device}")
    launches.count()
    own = _FUNCTIONS.get(function)
    if own is None:
        own = _FUNCTIONS[function] = _declared(library(), function, arguments)
    code = own(queue_of(device), *[address(a) if isinstance(a, torch.Tensor) else a for a in arguments])
    if code:
        text = library().error_text
        text.restype = ctypes.c_char_p
        raise RuntimeError(f"{function}: {text(code).decode()}")


def address(tensor: torch.Tensor | None) -> int | None:
    """Where a contiguous CUDA tensor lies; None for none."""
    if tensor is None:
        return None
    if not tensor.is_cuda or not tensor.is_contiguous():
        raise ValueError(f"expected a contiguous CUDA tensor, got {tensor.device}, strides {tensor.stride()}")
    return tensor.data_ptr()


def count(value: int) -> ctypes.c_int64:
    """A size: 64 bits, whatever it counts."""
    return ctypes.c_int64(value)


_FUNCTIONS: dict[str, Callable[..., int]] = {}


def _declared(own: ctypes.CDLL, function: str, arguments: tuple[Any, ...]) -> Callable[..., int]:
    """The function with the C types that these arguments ask for, so that no call converts them in Python."""
    found = getattr(own, function)
    found.argtypes = [Queue, *(_c_type(argument) for argument in arguments)]
    return found


def _c_type(argument: Any) -> Any:
    if isinstance(argument, int):
        return ctypes.c_int
    if isinstance(argument, float):
        return ctypes.c_float
    if isinstance(argument, ctypes.Structure | ctypes._SimpleCData):
        return type(argument)
    return ctypes.c_void_p  # A tensor, none, or what `ctypes.byref` points to.
