"""The aggregate device on a host: an arena of memory and a thread for each place.

Every operator has one shape: `launch` runs it for each place, on that place's stream and over its spans; `join` waits
for all places. What one place's stream writes, another may touch only after a join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from cuda_src.workspace import Workspace
from strategies.gaussians import Gaussians

P = TypeVar("P")
T = TypeVar("T")


class Streams(Generic[P]):
    """One thread a place, which runs what is launched on it in order."""

    def __init__(self, places: Sequence[P]):
        self._places = places
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"place-{p}") for p in range(len(places))]

    def launch(self, work: Callable[[P], T]) -> list[Future[T]]:
        """For every place: queue work(place) on its stream and return at once."""
        return [t.submit(work, place) for t, place in zip(self._threads, self._places, strict=True)]


def join(launched: Sequence[Future[T]]) -> list[T]:
    """Wait for all places; results by place. The exception of the first place that had one is raised here."""
    wait(launched)
    return [future.result() for future in launched]


@dataclass
class Arena:
    """Memory of one place.

    rows: [n] int64 ascending, rows of the table that lie here; gaussians: those rows, in that order. The table is
    sorted by id, so that a row number breaks ties of depth as its id would. works: one workspace a view of a step.
    """

    device: torch.device
    rows: torch.Tensor
    gaussians: Gaussians
    works: Sequence[Workspace]
    shared: Workspace

    @classmethod
    def of(cls, device: torch.device, rows: torch.Tensor, gaussians: Gaussians, batch: int) -> Arena:
        """Those rows and Gaussians, with empty workspaces."""
        return cls(device, rows.to(device), gaussians, [Workspace(device) for _ in range(batch)], Workspace(device))

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once: table, moments, ids, rows and workspaces."""
        rows = self.rows.numel() * self.rows.element_size()
        return self.gaussians.bytes + rows + sum(work.peak_bytes for work in (*self.works, self.shared))
