"""DRAM bytes and instructions by operator, as Nsight Compute counts them: its command, and its CSV read by us.

Every operator runs inside an NVTX range of its name behind a prefix; the profiler is asked to name kernels by the range
around them. A kernel of no such range is left out.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

RANGE = "operator."
"""Prefix of the NVTX ranges: `operator.project`."""

DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2 = "lts__t_bytes.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
DURATION = "gpu__time_duration.sum"
ISSUE_ACTIVE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
WARPS_ACTIVE = "sm__warps_active.avg.pct_of_peak_sustained_active"
L2_REDUCTIONS = "lts__t_requests_srcunit_tex_op_red.sum"
NEEDED = (DRAM_READ, DRAM_WRITTEN, L2, INSTRUCTIONS, DURATION)
METRICS = (*NEEDED, ISSUE_ACTIVE, WARPS_ACTIVE, L2_REDUCTIONS)
"""What the profiler is asked for; without one that is not needed the others still count."""

_KERNEL = "Kernel Name"
_SCALES = {
    "": 1.0,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "Tbyte": 1e12,
    "%": 1e-2,
    "request": 1.0,
    "inst": 1.0,
    "Kinst": 1e3,
    "Minst": 1e6,
    "Ginst": 1e9,
    "nsecond": 1e-9,
    "usecond": 1e-6,
    "msecond": 1e-3,
    "second": 1.0,
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
}
"""From the units that the profiler writes, whatever its version, to bytes, seconds, shares and counts."""


class UnreadableError(Exception):
    """The profiler's output is no table of kernels; the text says what it says instead."""


@dataclass(frozen=True)
class Counted:
    """Of all kernels of one operator's call; nan for what was not counted.

    dram_bytes: read and written. seconds: of kernels, gaps left out. issue_active: share of cycles in which a scheduler
    issued; warps_active: share of a multiprocessor's warps that were resident, both means over the kernels' time.
    l2_reductions: requests for reductions that arrived at the L2 cache.
    """

    kernels: int
    dram_bytes: float
    l2_bytes: float
    instructions: float
    seconds: float
    issue_active: float
    warps_active: float
    l2_reductions: float


@dataclass
class _Sums:
    kernels: int = 0
    values: dict[str, float] = field(default_factory=dict)


def find_ncu() -> Path | None:
    """Nsight Compute's command line: on the PATH, or in CUDA_HOME."""
    found = shutil.which("ncu")
    if found is None and (home := os.environ.get("CUDA_HOME")):
        found = shutil.which("ncu", path=str(Path(home) / "bin"))
    return None if found is None else Path(found)


def profiling_command(ncu: Path, log: Path, command: Sequence[str]) -> list[str]:
    """What profiles the command and leaves CSV in `log`: only between cudaProfilerStart and -Stop, at the clocks and
    with the caches that a step would have."""
    options = {
        "--metrics": ",".join(METRICS),
        "--clock-control": "none",
        "--cache-control": "none",
        "--profile-from-start": "off",
        "--target-processes": "all",
        "--page": "raw",
        "--print-units": "base",
        "--print-nvtx-rename": "kernel",
        "--log-file": str(log),
    }
    return [str(ncu), "--csv", "--nvtx", *(word for option in options.items() for word in option), *command]


def read_csv(text: str) -> dict[str, Counted]:
    """By operator, the sums over its kernels; text: of the page `raw`, a column a metric, units below the header.

    Lines before the table are the profiler's and the program's own. A metric that the profiler could not count is nan.
    Raises UnreadableError where there is no table, or it lacks a metric that is needed.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if f'"{_KERNEL}"' in line), None)
    if start is None:
        said = [line for line in lines if line.startswith("==") and ("ERROR" in line or "WARNING" in line)]
        raise UnreadableError(said[-1].strip("= ") if said else "no table of kernels")
    table: list[list[str]] = [*csv.reader(lines[start:]), []]
    header, units, rows = table[0], table[1], table[2:]
    missing = [metric for metric in NEEDED if metric not in header]
    if missing:
        raise UnreadableError(f"no column {missing[0]}")
    if units and units[0]:
        raise UnreadableError("no row of units below the header")
    columns = {metric: header.index(metric) for metric in METRICS if metric in header}
    sums: dict[str, _Sums] = {}
    for row in rows:
        operator = _operator(row) if len(row) == len(header) else None
        if operator is None:
            continue
        own = sums.setdefault(operator, _Sums())
        own.kernels += 1
        values = {metric: _number(row[column], units[column]) for metric, column in columns.items()}
        for metric, value in values.items():
            weight = values[DURATION] if metric in (ISSUE_ACTIVE, WARPS_ACTIVE) else 1.0
            own.values[metric] = own.values.get(metric, 0.0) + weight * value
    return {name: _counted(own) for name, own in sums.items()}


def _operator(row: Sequence[str]) -> str | None:
    """The range that the row names: in the kernel's name, or in a column of its own, as versions differ."""
    for cell in row:
        if (match := re.search(re.escape(RANGE) + r"(\w+)", cell)) is not None:
            return match[1]
    return None


def _number(text: str, unit: str) -> float:
    """In bytes, seconds, a share or a count; thousands may stand apart by commas. nan for what is no number."""
    try:
        return float(text.replace(",", "")) * _SCALES[unit]
    except (ValueError, KeyError):
        return float("nan")


def _counted(sums: _Sums) -> Counted:
    v = sums.values
    issue, warps, reductions = (v.get(metric, float("nan")) for metric in (ISSUE_ACTIVE, WARPS_ACTIVE, L2_REDUCTIONS))
    seconds = v[DURATION] or float("nan")
    return Counted(
        sums.kernels,
        v[DRAM_READ] + v[DRAM_WRITTEN],
        v[L2],
        v[INSTRUCTIONS],
        v[DURATION],
        issue / seconds,
        warps / seconds,
        reductions,
    )
