"""What this machine has for measuring, and what a suite would miss on it. Imports no torch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pynvml
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cuda_src.nvcc import find_nvcc
from harness.measure.environment import active_links, environment, visible_handles
from harness.measure.nvml import answer, pcie_rates, read_gpu, supported_fields, way_between
from harness.measure.nvml_window import ERRORS, THROTTLES
from harness.suite.feasibility import skip_reason
from harness.suite.listing import memory_text
from harness.suite.machine import Machine
from harness.suite.plan import Plan
from strategies.registry import strategy

WIDTH = 80
"""Columns of what people read."""
SHARED_MEMORY = Path("/dev/shm")
"""Through which NCCL moves what cannot go from GPU to GPU, and all of `link: host`."""
BUSY_PCIE = 100e6
"""Bytes a second over PCIe that an idle GPU does not reach."""
BOUNDLESS = Machine(gpus=1 << 20, cpus=1 << 20, compiled=True, nvcc=True, peers=True)
_HOLDING_BACK = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "temperature",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "temperature",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}


@dataclass(frozen=True)
class Gpu:
    """A GPU that CUDA_VISIBLE_DEVICES leaves visible, by its place among those.

    counters: names of what NVML counts on it. pcie_rate: bytes a second both ways over PCIe, a sample of 20 ms each;
    processes: how many use it now; both None where NVML does not tell. peers: by place, how it reaches the others'
    memory: `nvlink`, `pcie`, `none`, and `self`.
    """

    name: str
    memory_bytes: int
    free_bytes: int
    links: int
    sm_hertz: float | None
    held_back: tuple[str, ...]
    counters: tuple[str, ...]
    gpm: bool
    pcie_rate: int | None
    processes: int | None
    peers: tuple[str, ...]


@dataclass(frozen=True)
class Unmet:
    """A cell of a suite that this machine cannot run, and why. what: its name, or strategy and ranks."""

    cell_id: str
    what: str
    reason: str


@dataclass(frozen=True)
class Examination:
    """facts: as of every record's environment. nvcc, numba_cuda: versions; None where absent. shared_memory: free
    bytes. unmet: of the suite that was asked about."""

    facts: dict[str, Any]
    nvcc: str | None
    numba_cuda: str | None
    shared_memory: int | None
    gpus: tuple[Gpu, ...]
    unmet: tuple[Unmet, ...] = field(default=())


def examine(plan: Plan | None = None) -> Examination:
    """Look at this machine; plan: of the suite whose needs are to be met."""
    unmet = () if plan is None else tuple(unmet_needs(plan))
    return Examination(environment(), nvcc_version(), _numba_cuda(), _shared_memory(), visible(), unmet)


def unmet_needs(plan: Plan) -> Iterator[Unmet]:
    """The plan's cells that cannot run here. What no machine could run is no need of this one."""
    for planned in plan.cells:
        cell = planned.cell
        if planned.skip is None or skip_reason(cell, strategy(cell.strategy), BOUNDLESS) is not None:
            continue
        what = cell.name or f"{cell.strategy}, {cell.ranks} rank{'s' if cell.ranks > 1 else ''}"
        yield Unmet(planned.cell_id, what, planned.skip)


def nvcc_version() -> str | None:
    """Release of the CUDA compiler that would be used; `unknown` where it does not say."""
    compiler = find_nvcc()
    if compiler is None:
        return None
    try:
        said = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(r"release (\d+\.\d+)", said)
    return found.group(1) if found else "unknown"


def visible() -> tuple[Gpu, ...]:
    """The GPUs, by NVML; none without a driver."""
    try:
        with visible_handles() as seen:
            return tuple(_gpu(handle, seen) for handle in seen)
    except pynvml.NVMLError:
        return ()


def _gpu(handle: Any, others: Sequence[Any]) -> Gpu:
    counters = supported_fields(handle)
    reading, memory = read_gpu(handle, counters), answer("nvmlDeviceGetMemoryInfo", handle)
    rates = pcie_rates(handle)
    support = answer("nvmlGpmQueryDeviceSupport", handle)
    held_back = (text for reason, text in _HOLDING_BACK.items() if reading.reasons & reason)
    return Gpu(
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=0 if memory is None else int(memory.total),
        free_bytes=0 if memory is None else int(memory.free),
        links=active_links(handle),
        sm_hertz=reading.sm_hertz,
        held_back=tuple(dict.fromkeys(held_back)),
        counters=counters,
        gpm=bool(support is not None and support.isSupportedDevice),
        pcie_rate=None if rates is None else sum(rates),
        processes=None if reading.processes is None else len(reading.processes),
        peers=tuple("self" if other is handle else way_between(handle, other) or "none" for other in others),
    )


def _numba_cuda() -> str | None:
    try:
        return version("numba-cuda")
    except PackageNotFoundError:
        return None


def _shared_memory() -> int | None:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def as_json(found: Examination) -> dict[str, Any]:
    """For programs."""
    return asdict(found)


def tables(found: Examination) -> Iterator[RenderableType]:
    """For people: versions, then the GPUs, then what a suite misses."""
    facts = found.facts
    machine = Table(show_header=False, box=None, pad_edge=False)
    absent = "none"
    for label, value in (
        ("cpu", f"{facts['cpu']}, {facts['cores']} cores, {memory_text(facts['memory_bytes'])}"),
        ("python", f"{facts['python']}, torch {facts['torch']}, numba {facts['numba']}, numpy {facts['numpy']}"),
        ("cuda", f"{facts['cuda'] or absent}, driver {facts['driver'] or absent}, nccl {facts['nccl'] or absent}"),
        ("nvcc", found.nvcc or absent),
        ("numba-cuda", found.numba_cuda or absent),
        ("/dev/shm", "none" if found.shared_memory is None else f"{memory_text(found.shared_memory)} free"),
    ):
        machine.add_row(Text(label, style="bold"), Text(value))
    yield machine
    if not found.gpus:
        yield Text("no GPU: suites run on the CPU")
    else:
        yield _gpu_table(found.gpus)
        yield from (Text(f"! {remark}", style="yellow") for remark in remarks(found))
    if found.unmet:
        yield Text(f"{len(found.unmet)} of the suite's cells cannot run here:", style="yellow")
        for cell in found.unmet:
            yield Text(f"  {cell.cell_id} {cell.what}: {cell.reason}")


def _gpu_table(gpus: Sequence[Gpu]) -> Table:
    table = Table("gpu", "name", "free", "of", "links", "peers", "counters", "MHz", "used by", pad_edge=False, box=None)
    for place, gpu in enumerate(gpus):
        ways = ",".join(dict.fromkeys(way for way in gpu.peers if way != "self")) or "-"
        counted = [word for word, has in _groups(gpu).items() if has]
        clock = "-" if gpu.sm_hertz is None else f"{gpu.sm_hertz / 1e6:.0f}"
        used = "?" if gpu.processes is None else str(gpu.processes)
        table.add_row(
            str(place),
            gpu.name.removeprefix("NVIDIA "),
            memory_text(gpu.free_bytes),
            memory_text(gpu.memory_bytes),
            str(gpu.links),
            ways,
            " ".join(counted) or "none",
            clock,
            used,
        )
    return table


def _groups(gpu: Gpu) -> dict[str, bool]:
    """Which kinds of counters a GPU has."""
    return {
        "nvlink": "nvlink_sent" in gpu.counters,
        "pcie": "pcie_sent" in gpu.counters,
        "energy": "energy" in gpu.counters,
        "throttle": any(reason in gpu.counters for reason in THROTTLES),
        "errors": any(error in gpu.counters for error in ERRORS),
        "gpm": gpu.gpm,
    }


def remarks(found: Examination) -> Iterator[str]:
    """What would spoil measurements or leave them without a witness, a sentence each."""
    if found.nvcc is None:
        yield "no nvcc: the CUDA kernels cannot be built"
    for place, gpu in enumerate(found.gpus):
        if gpu.processes:
            yield f"gpu {place}: {gpu.processes} other processes; cells that measure times will be invalid"
        if gpu.pcie_rate is not None and gpu.pcie_rate > BUSY_PCIE:
            yield f"gpu {place}: {gpu.pcie_rate / 1e9:.1f} GB/s over PCIe now; somebody moves data"
        if gpu.held_back:
            yield f"gpu {place}: its clock is held back ({', '.join(gpu.held_back)})"
        if "none" in gpu.peers:
            yield f"gpu {place}: no access to another GPU's memory; traffic goes through the host"
        if len(found.gpus) > 1 and "nvlink_sent" not in gpu.counters:
            yield f"gpu {place}: no NVLink counters; traffic has no witness"
