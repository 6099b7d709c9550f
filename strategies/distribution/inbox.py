"""Where rows of a view are received."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator


class Inbox:
    """Memory of a workspace for rows from all ranks, by source; a window that the others write where engines have such.

    memory: [rows, width]. there: by destination, where rows of this rank lie in the inbox of the same name; None where
    that cannot be written.
    """

    def __init__(
        self,
        comm: Communicator,
        work: Workspace,
        name: str,
        come: Sequence[int],
        width: int,
        dtype: torch.dtype,
        table: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """come: rows from each rank. table: rows from each rank to each, where all ranks know them; then collective."""
        self.there: list[torch.Tensor] | None = None
        windows = None
        if table is not None:
            most = max(map(sum, zip(*table, strict=True)))
            windows = comm.windows(f"{work.name} {name}", most * width * dtype.itemsize)
        if windows is not None and table is not None:
            mapped = [window.view(dtype) for window in windows]
            work.adopt(name, mapped[comm.rank])
            begins = [sum(of_destination[: comm.rank]) for of_destination in zip(*table, strict=True)]
            self.there = [
                window[begin * width : (begin + rows) * width].view(rows, width)
                for window, begin, rows in zip(mapped, begins, table[comm.rank], strict=True)
            ]
        self.memory = work.take(name, (sum(come), width), dtype)
        self._parts = self.memory.split(list(come))

    def of(self, source: int) -> torch.Tensor:
        """What comes from that rank."""
        return self._parts[source]
