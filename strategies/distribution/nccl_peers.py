"""NCCL's own sends and receives: what goes to the other GPUs and comes from them, started by one group of calls.

PyTorch's process group starts the same kernels, but keeps books that take the host several times as long as the calls,
and a rank with few Gaussians to render has no host time to spare.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache

import torch
import torch.distributed as dist

_ID_BYTES = 128
_UINT8 = 1
"""ncclUint8."""

Rows = tuple[int, int, int]
"""The other rank, an address on this rank's GPU, and how many bytes lie there or are to come."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


_COMMUNICATOR, _NUMBER, _ADDRESS = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
_TRANSFER = (_ADDRESS, ctypes.c_size_t, _NUMBER, _NUMBER, _COMMUNICATOR, ctypes.c_void_p)
_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "ncclGetUniqueId": (ctypes.POINTER(_UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_COMMUNICATOR), _NUMBER, _UniqueId, _NUMBER),
    "ncclCommDestroy": (_COMMUNICATOR,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": _TRANSFER,
    "ncclRecv": _TRANSFER,
}


@cache
def _library() -> ctypes.CDLL:
    """The library that PyTorch has loaded."""
    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise RuntimeError("expected a PyTorch that loads NCCL as a library of its own, libnccl.so.2") from error
    for name, arguments in _ARGUMENTS.items():
        getattr(library, name).argtypes = arguments
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library


class NcclPeers:
    """One rank's end of a communicator of NCCL, on the current GPU."""

    def __init__(self, rank: int, ranks: int, identity: torch.Tensor) -> None:
        """identity: from NCCL on one rank, [128] uint8 on the host, the same on all. Collective."""
        self._nccl, self._communicator = _library(), _COMMUNICATOR()
        name = _UniqueId.from_buffer_copy(bytes(identity.tolist()))
        self._check(self._nccl.ncclCommInitRank(ctypes.byref(self._communicator), ranks, name, rank))

    @classmethod
    def between(cls, group: dist.ProcessGroup) -> NcclPeers:
        """Connect the ranks of a group of gloo, each on its current GPU. Collective."""
        name = _UniqueId()
        if dist.get_rank(group) == 0:
            _check(_library(), _library().ncclGetUniqueId(ctypes.byref(name)))
        identity = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        dist.broadcast(identity, 0, group=group)
        return cls(dist.get_rank(group), dist.get_world_size(group), identity)

    def exchange(self, stream: int, sends: Iterable[Rows], receives: Sequence[Rows]) -> None:
        """Queue all of them at once on that stream of the GPU; the others do the same, with the same bytes."""
        nccl, communicator = self._nccl, self._communicator
        codes = [nccl.ncclGroupStart()]
        codes += [nccl.ncclSend(address, n, _UINT8, peer, communicator, stream) for peer, address, n in sends]
        codes += [nccl.ncclRecv(address, n, _UINT8, peer, communicator, stream) for peer, address, n in receives]
        codes.append(nccl.ncclGroupEnd())
        self._check(max(codes))

    def close(self) -> None:
        """Give the communicator up; what was queued must be over."""
        self._check(self._nccl.ncclCommDestroy(self._communicator))

    def _check(self, code: int) -> None:
        _check(self._nccl, code)


def _check(nccl: ctypes.CDLL, code: int) -> None:
    if code:
        raise RuntimeError(f"NCCL: {nccl.ncclGetErrorString(code).decode()}")
