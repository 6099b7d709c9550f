"""DRAM bytes and instructions of each operator: one view of the cell once more, in a process under Nsight Compute.

Started as `python -m harness.runner.operator_profile FOLDER VIEW`, it runs each operator once in an NVTX range, warm.
Never while something is timed.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import torch

from harness.measure.clock import synchronize
from harness.measure.floors import OPERATORS, Work
from harness.measure.nsight import RANGE, Counted, UnreadableError, find_ncu, profiling_command, read_csv
from harness.runner.job import Job
from harness.runner.operator_calls import OperatorCalls
from harness.runner.result import CELL
from harness.runner.whereabouts import Whereabouts
from strategies.distribution.communicator import LocalCommunicator

NOTE = "dram_bytes"
"""Key of the record's environment that says why there are none."""
SECONDS = 120.0
"""After which the profiler is ended: it saves and restores memory around kernels that it runs more than once."""
_FOLDER = "profile"


def run(job: Job, view: int, works: dict[int, Work]) -> None:
    """Measure the operators of that view where the device is a GPU and the profiler there; else note why not."""
    if job.device.type != "cuda":
        return
    job.phase("counting DRAM bytes")
    torch.cuda.empty_cache()
    found = profile(job, view)
    if isinstance(found, str):
        job.notes[NOTE] = found
        print(f"DRAM bytes were not measured: {found}")
        return
    for name, counted in found.items():
        job.measure("dram_bytes", counted.dram_bytes, "last", stage=name)
        job.measure("dram_over_compulsory", counted.dram_bytes / OPERATORS[name].bytes(works[view]), "last", stage=name)
        job.measure("l2_bytes", counted.l2_bytes, "last", stage=name)
        job.measure("warp_instructions", counted.instructions, "last", stage=name)
        job.measure("kernel_seconds", counted.seconds, "last", stage=name)
        beside = {metric: getattr(counted, metric) for metric in ("issue_active", "warps_active", "l2_reductions")}
        for metric, value in beside.items():
            if not math.isnan(value):  # Not every version of the profiler, and not every GPU, counts them.
                job.measure(metric, value, "last", stage=name)


def profile(job: Job, view: int) -> dict[str, Counted] | str:
    """What the profiler counts by operator, or one sentence on why it counts nothing."""
    if job.kernels.backend == "reference":
        return "the reference launches thousands of small kernels, which the profiler would take one by one"
    ncu = find_ncu()
    if ncu is None:
        return "Nsight Compute (ncu) is not installed"
    # A folder of its own: what a worker leaves in the cell's is the cell's.
    folder = job.folder / _FOLDER
    log = folder / "operators.csv"
    own = [sys.executable, "-m", "harness.runner.operator_profile", str(folder), str(view)]
    command = profiling_command(ncu, log, own)
    try:
        folder.mkdir()
        shutil.copy(job.folder / CELL, folder / CELL)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=SECONDS)
        text = log.read_text() if log.exists() else ""
        found = read_csv(text)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Nsight Compute did not end well: {type(error).__name__}"
    except UnreadableError as error:
        return f"Nsight Compute says: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not found:
        return f"Nsight Compute saw no operator (exit code {done.returncode})"
    return {name: counted for name, counted in found.items() if name in OPERATORS}


def main(folder: Path, view: int) -> None:
    """Each operator of the view twice; only the second time is the profiler's. Prints where the time went."""
    begun = perf_counter()
    job = Job.open(folder, LocalCommunicator(torch.device("cuda", 0)), Whereabouts(folder, 0))
    scene, source = job.scene(from_points=False)
    calls = OperatorCalls(job, scene, source).of(view)
    both = calls.step | calls.beside
    made = perf_counter()
    for call in both.values():
        call()
    synchronize(job.device)
    warm = perf_counter()
    runtime = torch.cuda.cudart()
    runtime.cudaProfilerStart()
    for name, call in both.items():
        with torch.cuda.nvtx.range(RANGE + name):
            call()
            synchronize(job.device)
    runtime.cudaProfilerStop()
    print(f"profiled {len(both)} operators in {perf_counter() - warm:.1f} s", end="")
    print(f", after {made - begun:.1f} s for the scene and the view and {warm - made:.1f} s for calls before")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
