"""What this machine can compute on, asked without torch."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from itertools import permutations

from cuda_src.nvcc import find_nvcc
from harness.measure.environment import visible_handles
from harness.measure.nvml import way_between


@dataclass(frozen=True)
class Machine:
    """gpus: visible to CUDA. cpus: cores this process may use. compiled: the CUDA kernels are part of this version.
    nvcc: a CUDA compiler was found. numba_cuda: the package that the portable kernels need on a GPU is installed.
    peers: every GPU reaches the memory of every other."""

    gpus: int
    cpus: int
    compiled: bool
    nvcc: bool
    numba_cuda: bool = False
    peers: bool = False


def this_machine() -> Machine:
    """What is here now."""
    return Machine(
        gpu_count(),
        _cpu_count(),
        _installed("cuda_src.compiled"),
        find_nvcc() is not None,
        _installed("numba_cuda"),
        gpus_are_peers(),
    )


def gpu_count() -> int:
    """GPUs that a working driver shows and CUDA_VISIBLE_DEVICES leaves visible; 0 without a driver.

    NVML ignores CUDA_VISIBLE_DEVICES, so that it is applied here.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if visible is None else min(count, _listed(visible))


def gpus_are_peers() -> bool:
    """Whether there are several GPUs, and each maps the memory of all others."""
    import pynvml

    try:
        with visible_handles() as handles:
            pairs = list(permutations(handles, 2))
            return bool(pairs) and all(way_between(*pair) for pair in pairs)
    except pynvml.NVMLError:
        return False


def _listed(visible: str) -> int:
    """How many devices the variable lists; as CUDA does, the list ends at the first negative number."""
    devices = 0
    for device in visible.split(","):
        if not device.strip() or device.strip().startswith("-"):
            break
        devices += 1
    return devices


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
