"""The aggregate device: an arena of memory and a thread for each place, on a host or on GPUs.

Every operator has one shape: `launch` runs it for each place, on that place's stream and over its spans; `join` waits
for all places. What one place's stream writes, another may touch only after a join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace
from strategies.base import Shard
from strategies.gaussians import SHARD_ROWS, Gaussians

P = TypeVar("P")
T = TypeVar("T")


class Streams(Generic[P]):
    """One thread a place, which runs what is launched on it in order.

    devices: of the places. What is launched on a GPU place is queued on its device's current stream, which places that
    share the device share too; the caller queues it himself: threads would take the interpreter from one another.
    """

    def __init__(self, places: Sequence[P], devices: Sequence[torch.device] = ()):
        self._places = places
        self._numbers = [gpu_of(device) for device in devices if device.type == "cuda"]
        self._gpus = sorted(set(self._numbers))
        self._threads = [ThreadPoolExecutor(1, f"place-{p}") for p in range(0 if self._gpus else len(places))]

    def launch(self, work: Callable[[P], T]) -> list[Future[T]]:
        """For every place: queue work(place) on its stream and return at once."""
        if self._gpus:
            return [_queued(gpu, work, place) for gpu, place in zip(self._numbers, self._places, strict=True)]
        return [t.submit(work, place) for t, place in zip(self._threads, self._places, strict=True)]

    def join(self, launched: Sequence[Future[T]]) -> list[T]:
        """Wait for all places; results by place. The exception of the first place that had one is raised here.

        The host waits for its threads alone, GPUs for each other.
        """
        if self._threads:
            wait(launched)
        results = [future.result() for future in launched]
        self.meet()
        return results

    def meet(self) -> None:
        """Whatever any thread queues on a GPU from here on comes after all that is queued on any GPU now."""
        if len(self._gpus) > 1:
            streams = [torch.cuda.current_stream(gpu) for gpu in self._gpus]
            for done, own in [(stream.record_event(), stream) for stream in streams]:
                for stream in streams:
                    if stream is not own:
                        stream.wait_event(done)


def gpu_of(device: torch.device) -> int:
    """The number of a CUDA device, given or current."""
    return torch.cuda.current_device() if device.index is None else device.index


def _queued(gpu: int, work: Callable[[P], T], place: P) -> Future[T]:
    """Done with that GPU as the current one."""
    done: Future[T] = Future()
    try:
        with torch.cuda.device(gpu):
            done.set_result(work(place))
    except Exception as error:
        done.set_exception(error)
    return done


@dataclass
class Arena:
    """Memory of one place.

    rows: [n] int64 ascending, rows of the table that lie here. The table is sorted by id, so that a row number breaks
    ties of depth as its id would. gaussians: the tables that operators are given; at: [n] int64 ascending, where the
    arena's rows are in them. works: one workspace a view of a step.
    """

    device: torch.device
    rows: torch.Tensor
    gaussians: Gaussians
    at: torch.Tensor
    batch: int
    works: Sequence[Workspace] = field(init=False)
    shared: Workspace = field(init=False)

    def __post_init__(self) -> None:
        self.works = [Workspace(self.device) for _ in range(self.batch)]
        self.shared = Workspace(self.device)
        self._rows_elsewhere: dict[torch.device, torch.Tensor] = {}

    @classmethod
    def apart(cls, device: torch.device, rows: torch.Tensor, kernels: KernelSet, batch: int) -> Arena:
        """Room for those rows alone, one after another, uninitialised."""
        gaussians = Gaussians.empty(len(rows), device, kernels.dtype)
        gaussians.ids.copy_(rows)
        return cls(device, gaussians.ids, gaussians, torch.arange(len(rows), device=device), batch)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def owns_all_it_sees(self) -> bool:
        """Whether the tables that operators are given hold the arena's rows alone."""
        return self.gaussians.count == self.count

    def positions(self, splats: Splats) -> torch.Tensor:
        """Of each splat of this arena, the position of its row among the arena's rows, [V] int64."""
        return splats.rows if self.owns_all_it_sees else torch.searchsorted(self.at, splats.rows)

    def rows_on(self, device: torch.device) -> torch.Tensor:
        """The arena's rows in the memory of another device, which keeps them."""
        if device == self.rows.device:
            return self.rows
        if device not in self._rows_elsewhere:
            self._rows_elsewhere[device] = self.rows.to(device)
        return self._rows_elsewhere[device]

    def fill(self, read: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        """Write all rows in bounded pieces. read: of some rows (on the CPU), parameters and both moments."""
        rows = self.rows.cpu()
        for lo in range(0, self.count, SHARD_ROWS):
            piece = slice(lo, lo + SHARD_ROWS)
            for table, values in zip(self.gaussians.tables, read(rows[piece]), strict=True):
                table[self.at[piece]] = values.to(table.device, table.dtype)

    def shards(self) -> Iterator[Shard]:
        """Copies of the arena's rows, in bounded pieces."""
        for lo in range(0, self.count, SHARD_ROWS):
            at = self.at[lo : lo + SHARD_ROWS]
            yield Shard(self.rows[lo : lo + SHARD_ROWS], *(table[at] for table in self.gaussians.tables))

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once: table, moments, ids, rows and workspaces."""
        kept = {id(t): t for t in (self.rows, self.at, *self._rows_elsewhere.values())}
        kept.pop(id(self.gaussians.ids), None)
        rows = sum(t.numel() * t.element_size() for t in kept.values())
        return self.gaussians.bytes + rows + sum(work.peak_bytes for work in (*self.works, self.shared))
