"""The one table over the memory of all places: arenas of a host, or one range of addresses over GPUs.

On a host an arena holds its place's rows, one after another: its operators would otherwise look at all rows. On GPUs
parameters and both moments are a table each in virtual memory (cuda_src/compiled/memory.py) that every GPU loads and
stores. Operators are given the whole table and bounds that are empty but for the place's own groups of rows, so that
they never look at others'. At the end of a stripe up to 31 rows of a place lie on the next one: its remote bytes
there, at most 0.4 % of what the rows themselves are read and written for, are not in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch

from cuda_src.bounds import bound_groups, groups_of
from cuda_src.layout import BOUND_LOWER, BOUND_UPPER, GROUP, PARAMETERS
from cuda_src.operators import KernelSet
from strategies.gaussians import Gaussians
from strategies.unified.arenas import Arena, gpu_of
from strategies.unified.info import UnifiedOptions
from strategies.unified.placement import GPUS, HOST, Span, rows_of, spans_of, stripes_of

TABLES = 3
"""Parameters and two moments."""


@dataclass
class SharedRows(Gaussians):
    """The whole table as one place sees it. spans: of the place, beginning at groups of rows."""

    spans: Sequence[Span] = ()

    def _bound(self, kernels: KernelSet, table: torch.Tensor) -> None:
        """Empty boxes for the groups of others, which are then never seen from here."""
        table.zero_()
        table[:, BOUND_LOWER], table[:, BOUND_UPPER] = torch.inf, -torch.inf
        for span in self.spans:
            first = span.offset // GROUP
            rows = self.parameters[span.offset : span.offset + span.count]
            bound_groups(kernels, rows, table[first : first + groups_of(span.count)])

    @property
    def bytes(self) -> int:
        """Of the place's own rows in the tables, and what it keeps for all of them."""
        others = (self.ids,) if self._bounds is None else (self.ids, self._bounds.table)
        return self.mapped_bytes + sum(t.numel() * t.element_size() for t in others)

    @property
    def mapped_bytes(self) -> int:
        """Of the place's own rows in the tables."""
        return TABLES * sum(span.count for span in self.spans) * PARAMETERS * self.parameters.element_size()


def lay_out(
    options: UnifiedOptions, count: int, devices: Sequence[torch.device], kernels: KernelSet, batch: int
) -> tuple[list[Arena], Callable[[], None]]:
    """Arenas by place for a table of `count` rows, uninitialised, and what gives their memory back.

    devices: of the places; several may be the same. Nothing of the tables may be used once it is given back.
    """
    if devices[0].type == "cuda":
        return _on_gpus(options, count, devices, kernels, batch)
    spans = (spans_of(options, count, place, len(devices), HOST) for place in range(len(devices)))
    arenas = [Arena.apart(d, rows_of(own), kernels, batch) for d, own in zip(devices, spans, strict=True)]
    return arenas, lambda: None


def _on_gpus(
    options: UnifiedOptions, count: int, devices: Sequence[torch.device], kernels: KernelSet, batch: int
) -> tuple[list[Arena], Callable[[], None]]:
    if not kernels.reads_bounds:
        raise ValueError(f"unified on GPUs needs kernels compiled, not {kernels.backend}: only these skip others' rows")
    # Not before: a machine without CUDA has no use for it.
    from cuda_src.compiled.memory import Part, SharedMemory, check_managed, check_reach

    gpus = [torch.device("cuda", gpu_of(device)) for device in devices]
    parts = [Part(s.begin, s.end, gpus[s.place].index) for s in stripes_of(options, count, len(gpus), GPUS)]
    numbers = [gpu.index for gpu in dict.fromkeys(gpus)]
    check_reach(numbers)
    if options.placement == "managed" and parts:
        check_managed(TABLES * parts[-1].end, numbers)
    for one, other in permutations(numbers, 2):
        # A copy is how PyTorch brings its own memory within another GPU's reach.
        torch.zeros(1, device=f"cuda:{one}").to(f"cuda:{other}")
    memory: list[SharedMemory] = []

    def close() -> None:
        for one in reversed(memory):
            one.close()

    def tables_on(gpu: torch.device) -> list[torch.Tensor]:
        shape = (count, PARAMETERS)
        return [one.seen_by(gpu, shape) for one in memory] or [torch.empty(shape, device=gpu) for _ in range(TABLES)]

    try:
        for _ in range(TABLES if parts else 0):
            memory.append(SharedMemory(parts, numbers, "managed" if options.placement == "managed" else "mapped"))
        return arenas_over(options, count, gpus, batch, tables_on), close
    except BaseException:
        close()
        raise


def arenas_over(
    options: UnifiedOptions,
    count: int,
    devices: Sequence[torch.device],
    batch: int,
    tables_on: Callable[[torch.device], Sequence[torch.Tensor]],
) -> list[Arena]:
    """Arenas by place of tables that all of them see. tables_on: parameters and moments, [count, 59], on a device."""
    arenas = []
    for place, device in enumerate(devices):
        spans = spans_of(options, count, place, len(devices), GPUS)
        rows = rows_of(spans).to(device)
        parameters, moment1, moment2 = tables_on(device)
        gaussians = SharedRows(torch.arange(count, device=device), parameters, moment1, moment2, spans=spans)
        arenas.append(Arena(device, rows, gaussians, rows, batch))
    return arenas
