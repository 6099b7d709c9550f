"""What `auto` means on this machine, and why a cell cannot run on it."""

from __future__ import annotations

from harness.suite.cell import Cell
from harness.suite.machine import Machine
from strategies.info import StrategyInfo

CUDA_ENGINES = frozenset({"nccl", "symmetric"})
"""Engines that need a GPU a rank."""


def resolve_device(device: str, machine: Machine) -> str:
    """`auto` is cuda where there is a GPU and this version has kernels for it, else cpu."""
    if device != "auto":
        return device
    return "cuda" if machine.gpus > 0 and machine.compiled else "cpu"


def resolve(cell: Cell, info: StrategyInfo, machine: Machine) -> Cell:
    """The cell with device, kernels and engine made concrete. Kernels that were asked for are never exchanged."""
    device = resolve_device(cell.device, machine)
    kernels = cell.kernels
    if kernels == "auto":
        kernels = "portable" if device == "cpu" and cell.precision == "float32" else "reference"
        if device == "cuda" and cell.precision == "float32":
            kernels = "compiled"
    engine = cell.engine if cell.engine != "auto" else _best_engine(cell.ranks, device, info, machine)
    return cell.model_copy(update={"device": device, "kernels": kernels, "engine": engine})


def _best_engine(ranks: int, device: str, info: StrategyInfo, machine: Machine) -> str:
    """The first engine the strategy offers that fits; on a CPU with too few cores `virtual`, which needs only one."""
    usable = [engine for engine in info.engines if device == "cuda" or engine not in CUDA_ENGINES]
    if ranks == 1 or info.processes == "one":
        return "local" if "local" in usable or not usable else usable[0]
    several = [engine for engine in usable if engine != "local"]
    if device == "cpu" and ranks > machine.cpus and "virtual" in several:
        return "virtual"
    return several[0] if several else info.engines[0]


def skip_reason(cell: Cell, info: StrategyInfo, machine: Machine) -> str | None:
    """Why this resolved cell cannot run here; None when it can."""
    if info.max_ranks is not None and cell.ranks > info.max_ranks:
        places = "one place" if info.max_ranks == 1 else f"at most {info.max_ranks} places"
        return f"{info.name} computes on {places}"
    if cell.engine not in info.engines:
        return f"engine {cell.engine}: not offered by {info.name}"
    if cell.engine == "local" and cell.ranks > 1 and info.processes == "per_device":
        return "engine local: one rank only"
    if cell.engine == "gloo" and cell.device == "cuda":
        return "several GPUs need an engine between GPUs, which this version does not have; gloo is for CPUs"
    if cell.precision == "float64" and cell.kernels != "reference":
        return f"kernels {cell.kernels}: precision float64 needs reference"
    options = info.options.model_validate(cell.options)
    reason = info.refuses(options, cell.ranks, cell.batch) or info.refuses_training(options, cell.training)
    if reason := reason or info.lacks(options, cell.device):
        return reason
    return _lacking_hardware(cell, machine)


def _lacking_hardware(cell: Cell, machine: Machine) -> str | None:
    if cell.device == "cpu":
        if cell.kernels == "compiled":
            return "kernels compiled: not available on cpu"
        if cell.engine in CUDA_ENGINES:
            return f"engine {cell.engine}: needs a GPU a rank, device is cpu"
        return None
    needed = 1 if cell.engine == "virtual" else cell.ranks
    if needed > machine.gpus:
        return f"needs {needed} GPU{'s' if needed > 1 else ''}, {machine.gpus} present"
    if not machine.compiled:
        return "needs the compiled kernels, which this version does not have"
    if cell.kernels == "compiled" and not machine.nvcc:
        return "needs nvcc"
    return None
