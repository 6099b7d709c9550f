"""What a cell ran on, without importing torch and without anything that identifies one machine among its kind."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LAYOUT = 1
"""Version of what `environment_id` hashes; raised when its parts or their meaning change."""

DISTRIBUTION = "splat-harness"

_NOT_SOURCES = (":(exclude)results", ":(exclude)reports")


@cache
def environment() -> dict[str, Any]:
    """Software versions and hardware product names: no UUID, serial number, host name or path.

    Keys: python, torch, numba, numpy, gsplat, cuda (that torch was built for), driver, driver_cuda, nccl (each null
    where absent), cpu, cores (that this process may use), memory_bytes, os, gpus (product names), gpu_memory_bytes
    (one a GPU), nvlink (active links of the first GPU; null without GPUs).
    """
    torch_version, cuda = _torch_build()
    return {
        "python": platform.python_version(),
        "torch": torch_version,
        "numba": _version("numba"),
        "numpy": _version("numpy"),
        "gsplat": _version("gsplat"),
        "cuda": cuda,
        "nccl": _nccl(cuda),
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_bytes": _memory_bytes(),
        "os": f"{platform.system()} {platform.release().split('-')[0]}",
        **_nvml(),
    }


def environment_id(facts: dict[str, Any], device: str) -> str:
    """12 hex digits that are equal where times may be compared: product names and counts, and the software under them.

    device: `cpu` hashes the CPU model and its cores, `cuda` the GPUs, their links, the driver, CUDA and NCCL.
    """
    keys = ["torch", "numba"]
    keys += ["cpu", "cores"] if device == "cpu" else ["gpus", "nvlink", "driver", "cuda", "nccl"]
    hashed = {"layout": LAYOUT, "device": device} | {key: facts[key] for key in keys}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:12]


def machine(facts: dict[str, Any], device: str) -> str:
    """A label for people: `2x NVIDIA H200`, or `CPU, AMD EPYC, 2 cores`."""
    if device == "cpu" or not facts["gpus"]:
        return f"CPU, {facts['cpu']}, {facts['cores']} core{'s' if facts['cores'] != 1 else ''}"
    names = list(facts["gpus"])
    return " + ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))


@cache
def cpu_model() -> str:
    """The CPU's product name without trademarks and clock rates."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(errors="replace"), re.MULTILINE)
        name = found.group(1) if found else name
    name = re.sub(r"\((R|TM)\)|@.*|\b\d+-Core\b|\bProcessor\b|\bCPU\b", " ", name, flags=re.IGNORECASE)
    return " ".join(name.split()) or "unknown"


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _torch_build() -> tuple[str | None, str | None]:
    """Torch's version and the CUDA it was built for, read from its version.py: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if file is None or not file.exists():
        return _version("torch"), None
    text = file.read_text(encoding="utf-8")
    torch = re.search(r"^__version__\s*=\s*['\"](.+?)['\"]", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*=\s*['\"](.+?)['\"]", text, re.MULTILINE)
    return (torch.group(1) if torch else _version("torch")), (cuda.group(1) if cuda else None)


def _nccl(cuda: str | None) -> str | None:
    """Version of the NCCL wheel that torch's CUDA build depends on; null for a CPU build."""
    return _version(f"nvidia-nccl-cu{cuda.split('.')[0]}") if cuda else None


def _nvml() -> dict[str, Any]:
    """Driver and visible GPUs by NVML, which needs no CUDA context; without a driver there are no GPUs."""
    absent: dict[str, Any] = {"driver": None, "driver_cuda": None, "gpus": [], "gpu_memory_bytes": [], "nvlink": None}
    import pynvml

    try:
        with visible_handles() as seen:
            cuda = pynvml.nvmlSystemGetCudaDriverVersion()
            return {
                "driver": pynvml.nvmlSystemGetDriverVersion(),
                "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
                "gpus": [pynvml.nvmlDeviceGetName(handle) for handle in seen],
                "gpu_memory_bytes": [int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in seen],
                "nvlink": active_links(seen[0]) if seen else None,
            }
    except pynvml.NVMLError:
        return absent


@contextmanager
def visible_handles() -> Iterator[list[Any]]:
    """NVML's handles of the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order; NVMLError without a driver."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
        yield [handles[i] for i in visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)]
    finally:
        pynvml.nvmlShutdown()


def active_links(handle: Any) -> int:
    """How many NVLinks of a GPU are up."""
    import pynvml

    active = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED
        except pynvml.NVMLError:  # This GPU has fewer links, or none.
            break
    return active


def visible_gpus(setting: str | None, uuids: Sequence[str]) -> list[int]:
    """NVML indices of the GPUs that CUDA_VISIBLE_DEVICES leaves visible: NVML itself ignores the variable.

    Entries are indices or beginnings of UUIDs; as in CUDA, the first entry that names no GPU ends the list.
    """
    if setting is None:
        return list(range(len(uuids)))
    seen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            seen.append(int(entry))
        elif entry.startswith("GPU-") and (matches := [i for i, uuid in enumerate(uuids) if uuid.startswith(entry)]):
            seen.append(matches[0])
        else:
            break
    return seen


COMMIT_FILE = "COMMIT"


def commit(folder: Path | None = None) -> str:
    """The checkout's commit, 12 digits, with `+changes` when files outside results/ and reports/ differ from it.

    folder: of the checkout; by default the one that holds this package. Without a repository, what the file COMMIT in
    that folder says (tests/gpu_check.sh leaves it in trees that travelled without one), else the distribution's
    version.
    """
    root = folder or Path(__file__).resolve().parents[2]
    # A package installed below some other project's checkout must not take that project's commit.
    if (root / ".git").exists() and (revision := _git(root, "rev-parse", "HEAD")):
        changes = _git(root, "status", "--porcelain", "--", ".", *_NOT_SOURCES)
        return revision[:12] + ("+changes" if changes else "")
    if (root / COMMIT_FILE).is_file():
        return (root / COMMIT_FILE).read_text().strip()[:12]
    return _version(DISTRIBUTION) or "unknown"


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints, or None when there is no git or it refuses."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
