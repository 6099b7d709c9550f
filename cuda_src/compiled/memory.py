"""One range of addresses over the memory of several devices, and its tensors on each of them: see memory.cu.

A tensor of such memory is a view that PyTorch neither made nor frees: it comes through a DLPack capsule, which names
the device that is to compute on it, whichever device the bytes lie on (`__cuda_array_interface__` names none: PyTorch
then asks the driver, which tells where the first byte lies).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from cuda_src.compiled.bindings import call, library

MemoryKind = Literal["mapped", "managed"]
GRANULE = 2 << 20
"""Bytes that physical memory is mapped in multiples of."""
MANAGED_SHARE = 0.5
"""Managed memory takes at most this share of what the fullest device has free: beyond all of it a GPU may hang."""
_FUNCTIONS = {"mapped": ("map_memory", "unmap_memory"), "managed": ("take_managed_memory", "free_managed_memory")}


@dataclass(frozen=True)
class Part:
    """Bytes begin <= b < end of a range, which lie on a device (its number)."""

    begin: int
    end: int
    device: int


class _Part(ctypes.Structure):
    """The same struct as Part in memory.cu."""

    _fields_ = (("begin", ctypes.c_int64), ("end", ctypes.c_int64), ("device", ctypes.c_int))


class _Layout(ctypes.Structure):
    """The same struct as Layout in memory.cu."""

    _fields_ = (
        ("parts", ctypes.POINTER(_Part)),
        ("count", ctypes.c_int64),
        ("devices", ctypes.POINTER(ctypes.c_int)),
        ("device_count", ctypes.c_int),
    )


class SharedMemory:
    """Parts side by side in one range of addresses, which all given devices load and store until `close`.

    parts: in order, without gaps from 0 on, borders at multiples of GRANULE. devices: numbers, each once. ValueError
    where a device cannot reach another's memory, MemoryError beyond MANAGED_SHARE, RuntimeError with CUDA's words.
    Tensors made of it must not be used after `close`.
    """

    def __init__(self, parts: Sequence[Part], devices: Sequence[int], kind: MemoryKind = "mapped"):
        self.bytes = parts[-1].end
        self._kind: MemoryKind = kind
        self._queue = torch.device("cuda", devices[0])
        self._address: int | None = None
        check_reach(devices)
        if kind == "managed":
            check_managed(self.bytes, devices)
        self._parts = (_Part * len(parts))(*(_Part(part.begin, part.end, part.device) for part in parts))
        self._devices = (ctypes.c_int * len(devices))(*devices)
        self._layout = _Layout(self._parts, len(parts), self._devices, len(devices))
        library()  # Built before memory is asked for.
        address = ctypes.c_void_p()
        self._call(_FUNCTIONS[kind][0], ctypes.byref(address))
        self._address = address.value

    def seen_by(self, device: torch.device, shape: tuple[int, ...]) -> torch.Tensor:
        """The first bytes of the range as float32 of that shape, for computing on that device."""
        if self._address is None:
            raise ValueError("the memory was closed")
        return tensor_at(self._address, shape, device)

    def close(self) -> None:
        """Wait for all devices and give the memory back; a second call does nothing."""
        address, self._address = self._address, None
        if address is not None:
            self._call(_FUNCTIONS[self._kind][1], ctypes.c_void_p(address))

    def _call(self, function: str, address: Any) -> None:
        """Leaves this thread's device as PyTorch takes it to be: the functions visit all of them."""
        with torch.cuda.device(self._queue):
            call(function, self._queue, ctypes.byref(self._layout), address)


def check_reach(devices: Sequence[int]) -> None:
    """ValueError naming the first two devices of which one cannot load and store the other's memory."""
    for one in devices:
        for other in devices:
            if one != other and not torch.cuda.can_device_access_peer(one, other):
                raise ValueError(f"GPU {one} cannot reach the memory of GPU {other}: no peer access between them")


def check_managed(size: int, devices: Sequence[int]) -> None:
    """MemoryError if so many bytes are more than managed memory may take here."""
    free = min(torch.cuda.mem_get_info(device)[0] for device in devices)
    if size > MANAGED_SHARE * free:
        raise MemoryError(
            f"managed memory of {size:,} bytes: at most half of the {free:,} bytes that are free on the fullest GPU, "
            "since a GPU may hang beyond that"
        )


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    """DLPack's exchange struct, before version 1. Without a deleter, the consumer frees nothing."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_DLPACK_DEVICES = {"cpu": 1, "cuda": 2}
_DLPACK_FLOAT = 2
_CAPSULE_NAME = b"dltensor"
_handed_out: list[tuple[_DLManagedTensor, object]] = []
"""PyTorch looks at the struct when the tensor dies, whenever that is: 100 bytes each stay."""


def tensor_at(address: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Contiguous float32 of that shape at an address that the device can use; the memory is the caller's."""
    number = device.index if device.index is not None else torch.cuda.current_device() if device.type == "cuda" else 0
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    sizes = (ctypes.c_int64 * (2 * len(shape)))(*shape, *strides)
    begin = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    steps = ctypes.cast(ctypes.byref(sizes, 8 * len(shape)), ctypes.POINTER(ctypes.c_int64))
    tensor = _DLTensor(
        address, _DLDevice(_DLPACK_DEVICES[device.type], number), len(shape), _DLDataType(_DLPACK_FLOAT, 32, 1),
        begin, steps, 0,
    )  # fmt: skip
    managed = _DLManagedTensor(tensor, None, None)
    _handed_out.append((managed, sizes))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made = torch.from_dlpack(new(ctypes.addressof(managed), _CAPSULE_NAME, None))
    where = torch.device("cuda", number) if device.type == "cuda" else torch.device("cpu")
    if made.device != where or (made.numel() and made.data_ptr() != address):
        raise RuntimeError(f"a tensor at {address:#x} on {device} was made at {made.data_ptr():#x} on {made.device}")
    return made
