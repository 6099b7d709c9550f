"""The one place that imports `numba.cuda`: kernels made of Python functions, their launches, and views of tensors.

A kernel is a plain function under `@kernel`, written with the names `cuda`, `warp_sum`, `warp_any` and `leads_warp`
of this file. Scalar functions and pieces that it calls are those of the CPU's loops, compiled anew for the GPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, cached_property
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numba.core.dispatcher import Dispatcher

from cuda_src.portable.scalar import f32

SIMULATED = bool(numba.config.ENABLE_CUDASIM)  # type: ignore[attr-defined]
"""Numba's simulator runs the kernels, with CPU tensors (NUMBA_ENABLE_CUDASIM=1): for tests without a GPU."""

if not SIMULATED and importlib.util.find_spec("numba_cuda") is None:
    raise ModuleNotFoundError("portable kernels on a GPU need numba-cuda: pip install 'splat-harness[cuda]'")
if not hasattr(np, "row_stack"):
    # NumPy 2.5 dropped the name, which numba-cuda 0.30 asks for when it is imported.
    np.row_stack = np.vstack  # noqa: NPY201

from numba import cuda as numba_cuda  # noqa: E402

cuda: Any = numba_cuda
"""What kernels are written with; untyped, since its functions mean another thing inside them."""

if not SIMULATED:
    # numba-cuda has settings of its own: kernels go where the CPU's loops are kept (disk_cache.py).
    from numba.cuda.core import config

    config.CACHE_DIR = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # Small views are no mistake.

WARP = 32
_ALL_LANES = 0xFFFFFFFF
_VIEWS = 4096
"""Views of tensors kept at hand; a step of one view of the scene uses about a hundred."""


def kernel(function: Callable[..., None]) -> Kernel:
    """Decorator of a function that every thread of a launch runs."""
    return Kernel(function)


class Kernel:
    """A function for CUDA threads, compiled on its first launch for each set of argument types, and kept on disk."""

    def __init__(self, function: Callable[..., None]):
        self.name = function.__name__
        self._function = function

    @cached_property
    def source(self) -> Callable[..., None]:
        """What Numba compiles: the function, calling device functions in the place of the CPU's."""
        return _rebound(self._function)

    @cached_property
    def _compiled(self) -> Any:
        # Without link-time optimisation the PTX that can be looked at is what runs.
        return cuda.jit(self.source) if SIMULATED else cuda.jit(self.source, cache=True, lto=False)

    def launch(self, device: torch.device, blocks: int, threads: int, *arguments: Any) -> None:
        """Run `blocks` blocks of `threads` threads on torch's current stream; nothing if there are no blocks.

        arguments: tensors of that device, numpy and Python scalars (a Python int is 64 bits), and tuples of those.
        """
        if blocks == 0:
            return
        given = arguments_of(arguments)
        if SIMULATED:
            self._compiled[blocks, threads](*given)
            return
        # Numba launches in the thread's active context, which is that of torch's current device.
        with torch.cuda.device(device):
            stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
            self._compiled[blocks, threads, stream](*given)


def blocks_for(items: int, threads: int) -> int:
    """Blocks that give each item a thread."""
    return -(-items // threads)


def arguments_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a launch as Numba takes them."""
    return tuple(_argument(value) for value in arguments)


def _argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().numpy() if value.device.type == "cpu" else _view(value)
    return arguments_of(value) if isinstance(value, tuple) else value


_known_views: dict[tuple[Any, ...], Any] = {}


def _view(tensor: torch.Tensor) -> Any:
    """The tensor's memory as Numba's device array; making one costs more than a launch, so that they are kept.

    A view owns nothing: one whose memory was freed is either never asked for again or right for the tensor that is
    there now.
    """
    key = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device.index
    view = _known_views.get(key)
    if view is None:
        if len(_known_views) >= _VIEWS:
            _known_views.clear()
        with torch.cuda.device(tensor.device):
            view = cuda.from_cuda_array_interface(tensor.detach().__cuda_array_interface__, sync=False)
        _known_views[key] = view
    return view


@cache
def _stream(device: torch.device, pointer: int) -> Any:
    return cuda.external_stream(pointer)


@cache
def device_function(dispatcher: Dispatcher) -> Any:
    """A scalar function or piece for the GPU, from the source that the CPU's is compiled from.

    Called directly from a kernel, Numba would take the CPU's fast-math flags for CUDA's fast math, which approximates
    divisions, roots and logarithms and flushes small numbers.
    """
    source = _rebound(dispatcher.py_func)
    return source if SIMULATED else cuda.jit(source, device=True, forceinline=True)


def _rebound(function: Callable[..., Any]) -> FunctionType:
    """The function in a namespace of its own, where CPU functions that it calls are device functions."""
    assert isinstance(function, FunctionType)
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        if isinstance(names.get(name), Dispatcher):
            names[name] = device_function(names[name])
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def _sum_of_lanes(value):
    """The sum over a warp's lanes, in its first lane; all of them must call it."""
    for distance in (16, 8, 4, 2, 1):
        value = f32(value + cuda.shfl_down_sync(_ALL_LANES, value, distance))
    return value


def _any_of_lanes(condition):
    """True in all lanes of a warp if it is in one; all of them must call it."""
    return cuda.any_sync(_ALL_LANES, condition)


def _is_first_lane():
    return cuda.laneid == 0


if SIMULATED:
    # The simulator has no warps: there, a thread is a warp of its own.
    def warp_sum(value):
        return value

    def warp_any(condition):
        return condition

    def leads_warp():
        return True

else:
    warp_sum, warp_any, leads_warp = (
        cuda.jit(f, device=True, forceinline=True) for f in (_sum_of_lanes, _any_of_lanes, _is_first_lane)
    )
