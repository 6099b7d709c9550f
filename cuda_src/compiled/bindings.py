"""The library's functions as Python calls: tensors become addresses, and the current stream goes along."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from cuda_src import launches
from cuda_src.compiled.build import BuildError, build
from cuda_src.tape import act

REPLAYED_FROM = 3
"""The call of a `ReplayedLaunch` that is worth 0.1 ms for its graph; by then every kernel is loaded, as it must be."""
MOST_RECORDED = 2048
"""Graphs at a time, some 10 KB each and six for each of a few hundred views; further launches stay as they are."""
_CALLER_RECORDS = 900
"""What `replay` returns where its stream is being recorded: cudaErrorStreamCaptureUnsupported."""
_INTS = 1 << 31
"""Numbers below it, and from its negative on, are ints of C."""


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
    return _queue(index, torch._C._cuda_getCurrentRawStream(index))


@cache
def _queue(index: int, stream: int) -> Queue:
    return Queue(index, stream)


class Launch:
    """One of the library's functions with its arguments: made once, and called as long as they stay what they are.

    Tensors are passed by address (contiguous, on the device) and not kept alive, None as no address, int as 32 bits
    (`count` makes 64), float as float32, and ctypes' own values as they are: structs by value unless given by
    `ctypes.byref`, where a field may be changed between two calls. The kinds of a function's arguments are those of its
    first call.
    """

    def __init__(self, function: str, device: torch.device, *arguments: Any) -> None:
        if device.type != "cuda":
            raise ValueError(f"compiled kernels work on CUDA tensors, not on {device}")
        self._function = function
        self._device = device
        for argument in arguments:
            if isinstance(argument, int) and not -_INTS <= argument < _INTS:
                raise ValueError(
                    f"{function}: expected 32 bits, got {argument}: sizes take `count`, addresses c_void_p"
                )
        self._own = _declared(function, arguments)
        self._arguments = tuple(address(a) if isinstance(a, torch.Tensor) else a for a in arguments)

    def __call__(self) -> None:
        """On the current stream, and again whenever a tape is played that records it; raises RuntimeError with CUDA's
        words if that fails."""
        act(self._start)

    def _start(self) -> None:
        launches.count()
        self._run(queue_of(self._device))

    def _run(self, queue: Queue) -> None:
        _check(self._function, self._own(queue, *self._arguments))


class ReplayedLaunch(Launch):
    """A launch that is called again and again with nothing about it changed, no field of a struct by address either.

    From call REPLAYED_FROM on its kernels and memsets are a CUDA graph, recorded once: the host submits one thing in
    place of up to 25, and the device begins each kernel sooner after the one before it. Where a graph cannot be had,
    and while the caller records a graph of its own, it is called as any launch.
    """

    def __init__(self, function: str, device: torch.device, *arguments: Any) -> None:
        super().__init__(function, device, *arguments)
        self._calls = 0
        self._recordable = True
        self._graph: ctypes.c_void_p | None = None

    def _run(self, queue: Queue) -> None:
        if self._graph is None and self._recordable:
            self._calls += 1
            if self._calls >= REPLAYED_FROM and len(_RECORDED) < MOST_RECORDED:
                self._graph = self._recorded(queue.device)
                self._recordable = self._graph is not None
        if self._graph is not None:
            code = _declared("replay", (self._graph,))(queue, self._graph)
            if code != _CALLER_RECORDS:
                return _check("replay", code)
        super()._run(queue)

    def _recorded(self, device: int) -> ctypes.c_void_p | None:
        """None if any part of it fails: an error that is not the recording's own comes back with the plain launch."""
        own, stream, graph = library(), ctypes.c_void_p(), ctypes.c_void_p()
        with _no_collector():
            if own.begin_recording(device, ctypes.byref(stream)):
                return None
            recording = Queue(device, stream)
            code = self._own(recording, *self._arguments)
            if own.end_recording(recording, code, ctypes.byref(graph)):
                return None
        _RECORDED.add(self)
        weakref.finalize(self, own.forget_recording, device, graph).atexit = False
        return graph


@contextmanager
def _no_collector() -> Iterator[None]:
    """Inside, no garbage is found, by no thread: memory that other GPUs map waits for the device when it is freed,
    which ends the process while anything is recorded."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


_RECORDED: weakref.WeakSet[ReplayedLaunch] = weakref.WeakSet()


def _check(function: str, code: int) -> None:
    if code:
        text = library().error_text
        text.restype = ctypes.c_char_p
        raise RuntimeError(f"{function}: {text(code).decode()}")


def call(function: str, device: torch.device, *arguments: Any) -> None:
    """A `Launch` that is made for one call."""
    Launch(function, device, *arguments)()


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


def _declared(function: str, arguments: tuple[Any, ...]) -> Callable[..., int]:
    """The function with the C types that its first arguments ask for, so that no call converts them in Python."""
    found = _FUNCTIONS.get(function)
    if found is None:
        found = getattr(library(), function)
        found.argtypes = [Queue, *(_c_type(argument) for argument in arguments)]
        _FUNCTIONS[function] = found
    return found


def _c_type(argument: Any) -> Any:
    if isinstance(argument, int):
        return ctypes.c_int
    if isinstance(argument, float):
        return ctypes.c_float
    if isinstance(argument, ctypes.Structure | ctypes._SimpleCData):
        return type(argument)
    return ctypes.c_void_p  # A tensor, none, or what `ctypes.byref` points to.
