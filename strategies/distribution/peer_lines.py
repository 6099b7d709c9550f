"""Lines between the ranks of one machine, for rows of some bytes that a rank tells all others."""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import tempfile
from collections.abc import Mapping
from time import monotonic

import torch
import torch.distributed as dist

from strategies.distribution.communicator import PeerFailedError, PeerSilentError

MOST_BYTES = 4096
"""Of a row: what fits a socket many times over, so that a rank may be some steps ahead."""
_HEAD = struct.Struct("<I")
_READ_BYTES = 1 << 16
_PATH_BYTES = 256


class PeerLines:
    """A socket to every other rank, of this machine's own.

    To tell a row is a call of the system a rank, less than the caller of a collective does. Rows are numbered as they
    are told, by all ranks alike; who asks for those of a number waits for them.
    """

    def __init__(self, rank: int, lines: Mapping[int, socket.socket], timeout: float) -> None:
        """lines: by other rank, connected. timeout: seconds that one is waited for."""
        self._lines = {other: _Line(rank, line, timeout) for other, line in lines.items()}
        self._told = 0

    @classmethod
    def between(cls, group: dist.ProcessGroup, timeout: float) -> PeerLines:
        """Connect the ranks of a group of gloo, all on this machine. Collective."""
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        meeting = torch.zeros(_PATH_BYTES, dtype=torch.uint8)
        folder = tempfile.mkdtemp(prefix="lines-") if rank == 0 else ""
        if rank == 0:
            name = os.fsencode(folder)
            meeting[: len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        dist.broadcast(meeting, 0, group=group)
        folder = os.fsdecode(bytes(meeting.tolist()).rstrip(b"\0"))
        lines: dict[int, socket.socket] = {}
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{folder}/{rank}")
            door.listen(ranks)
            door.settimeout(timeout)
            dist.barrier(group=group)
            for peer in range(rank):
                lines[peer] = socket.socket(socket.AF_UNIX)
                lines[peer].connect(f"{folder}/{peer}")
                lines[peer].sendall(_HEAD.pack(rank))
            for _ in range(rank + 1, ranks):
                line, _ = door.accept()
                (peer,) = _HEAD.unpack(line.recv(_HEAD.size, socket.MSG_WAITALL))
                lines[peer] = line
            dist.barrier(group=group)
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        return cls(rank, lines, timeout)

    def tell(self, stage: str, row: bytes) -> int:
        """Send a row of at most MOST_BYTES to all others; its number. Waits only where one of them is far behind."""
        framed = memoryview(_HEAD.pack(len(row)) + row)
        for line in self._lines.values():
            line.send(stage, framed)
        self._told += 1
        return self._told - 1

    def told(self, stage: str, number: int) -> dict[int, bytes]:
        """The others' rows of that number, by rank; each number is asked for once."""
        return {other: line.row(stage, number) for other, line in self._lines.items()}

    def close(self) -> None:
        for line in self._lines.values():
            line.socket.close()


class _Line:
    """One socket, and what has come over it that nobody has asked for."""

    def __init__(self, rank: int, connected: socket.socket, timeout: float) -> None:
        self.socket, self._rank, self._timeout = connected, rank, timeout
        connected.setblocking(False)
        self._bytes = bytearray()
        self._rows: dict[int, bytes] = {}
        self._came = 0
        self._open = True

    def send(self, stage: str, framed: memoryview) -> None:
        due = monotonic() + self._timeout
        while framed:
            try:
                framed = framed[self.socket.send(framed) :]
            except BlockingIOError:
                self._wait(stage, due, to_send=True)
            except ConnectionError as error:
                raise self._lost(stage) from error

    def row(self, stage: str, number: int) -> bytes:
        due = monotonic() + self._timeout
        while number not in self._rows:
            if not self._open:
                raise self._lost(stage)
            self._wait(stage, due)
            self._read()
        return self._rows.pop(number)

    def _wait(self, stage: str, due: float, to_send: bool = False) -> None:
        """Until the socket takes or has more; PeerSilentError where it is not before that moment."""
        own = [self.socket]
        ready = select.select([] if to_send else own, own if to_send else [], [], max(0.0, due - monotonic()))
        if not any(ready):
            raise PeerSilentError(f"{stage}: rank {self._rank} waited in vain for the other ranks")

    def _lost(self, stage: str) -> PeerFailedError:
        return PeerFailedError(f"{stage}: rank {self._rank} lost another rank")

    def _read(self) -> None:
        try:
            came = self.socket.recv(_READ_BYTES)
        except ConnectionError:
            came = b""
        self._open = bool(came)
        self._bytes += came
        while len(self._bytes) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._bytes)
            end = _HEAD.size + size
            if len(self._bytes) < end:
                return
            self._rows[self._came] = bytes(self._bytes[_HEAD.size : end])
            self._came += 1
            del self._bytes[:end]
