"""The library's functions as Python calls: tensors become addresses, and the current stream goes along."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

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
    stream = torch.cuda.current_stream(device)
    return Queue(stream.device_index, stream.cuda_stream)


def call(function: str, device: torch.device, *arguments: Any) -> None:
    """Launch one of the library's functions; raises RuntimeError with CUDA's words if that fails.

    Tensors are passed by address (contiguous, on the device), None as no address, int as 32 bits (`count` makes 64),
    float as float32, and ctypes' own values as they are: structs by value unless given by `ctypes.byref`.
    """
    if device.type != "cuda":
        raise ValueError(f"compiled kernels work on CUDA tensors, not on {device}")
    own = library()
    code = getattr(own, function)(queue_of(device), *(_as_c(argument) for argument in arguments))
    if code:
        text = own.error_text
        text.restype = ctypes.c_char_p
        raise RuntimeError(f"{function}: {text(code).decode()}")


def address(tensor: torch.Tensor | None) -> int | None:
    """Where a contiguous CUDA tensor lies; None for none."""
    if tensor is None:
        return None
    if not tensor.is_cuda or not tensor.is_contiguous():
        raise ValueError(f"expected a contiguous CUDA tensor, got {tensor.device}, strides {tensor.stride()}")
    return tensor.data_ptr()


def _as_c(argument: Any) -> Any:
    if argument is None or isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(address(argument))
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return argument


def count(value: int) -> ctypes.c_int64:
    """A size: 64 bits, whatever it counts."""
    return ctypes.c_int64(value)
