"""What `auto` means on this machine, and why a cell cannot run on it."""

from __future__ import annotations

from pathlib import Path

from harness.suite.cell import Cell
from harness.suite.machine import Machine
from strategies.info import StrategyInfo

CUDA_ENGINES = frozenset({"nccl", "symmetric"})
"""Engines that need a GPU a rank."""
PEER_ENGINES = frozenset({"symmetric"})
"""Engines whose ranks write each other's memory."""
HOST_ENGINES = frozenset({"gloo"})
"""Engines that move host memory only."""


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
    engine = cell.engine if cell.engine != "auto" else _best_engine(cell, device, info, machine)
    return cell.model_copy(update={"device": device, "kernels": kernels, "engine": engine})


def _best_engine(cell: Cell, device: str, info: StrategyInfo, machine: Machine) -> str:
    """The first engine the strategy offers that fits; on a CPU with too few cores `virtual`, which needs only one.

    GPUs that are missing are never made up for by `virtual`: it models a machine, and has to be asked for.
    """
    unusable = HOST_ENGINES if device == "cuda" else CUDA_ENGINES
    if not machine.peers or cell.link == "host":
        unusable |= PEER_ENGINES
    usable = [engine for engine in info.engines if engine not in unusable]
    if cell.ranks == 1 or info.processes == "one":
        return "local" if "local" in usable or not usable else usable[0]
    several = [engine for engine in usable if engine != "local"]
    if device == "cpu" and cell.ranks > machine.cpus and "virtual" in several:
        return "virtual"
    if device == "cuda":
        several = [engine for engine in several if engine != "virtual"]
    fallback = [engine for engine in info.engines if engine != "local"] or list(info.engines)
    return (several or fallback)[0]


def skip_reason(cell: Cell, info: StrategyInfo, machine: Machine) -> str | None:
    """Why this resolved cell cannot run here; None when it can."""
    if cell.scene.optional and cell.scene.path is not None and not Path(cell.scene.path).expanduser().exists():
        return f"scene {cell.scene.path} is not there"
    if info.max_ranks is not None and cell.ranks > info.max_ranks:
        places = "one place" if info.max_ranks == 1 else f"at most {info.max_ranks} places"
        return f"{info.name} computes on {places}"
    if cell.engine not in info.engines:
        return f"engine {cell.engine}: not offered by {info.name}"
    if cell.engine == "local" and cell.ranks > 1 and info.processes == "per_device":
        return "engine local: one rank only"
    if cell.engine in ("gloo", *CUDA_ENGINES) and cell.ranks == 1 and "local" in info.engines:
        return f"engine {cell.engine}: several ranks only; one has engine local"
    if cell.engine == "gloo" and cell.device == "cuda":
        missing = "" if "nccl" in info.engines else f", which {info.name} does not offer"
        return f"engine gloo: for CPUs only; several GPUs need nccl{missing}"
    if reason := _unsuited_link(cell):
        return reason
    if cell.device == "cuda" and info.gpu_kernels is not None and cell.kernels not in info.gpu_kernels:
        return f"kernels {cell.kernels}: {info.name} computes with {' or '.join(info.gpu_kernels)} on GPUs"
    if cell.precision == "float64" and cell.kernels != "reference":
        return f"kernels {cell.kernels}: precision float64 needs reference"
    options = info.options.model_validate(cell.options)
    reason = info.refuses(options, cell.ranks, cell.batch) or info.refuses_training(options, cell.training)
    if reason := reason or info.lacks(options, cell.device):
        return reason
    return _lacking_hardware(cell, machine) or _varying(cell, info)


def _varying(cell: Cell, info: StrategyInfo) -> str | None:
    """Why two runs of a cell that asks for equal bits would not have them."""
    if not cell.deterministic:
        return None
    if cell.device == "cuda":
        # A tile's blocks add to a splat's gradient as they end; no kernel of ours sums in a fixed order there.
        return f"deterministic: kernels {cell.kernels} on cuda sum gradients of splats in an order that varies"
    reason = info.varies(info.options.model_validate(cell.options))
    return f"deterministic: {reason}" if reason else None


def _unsuited_link(cell: Cell) -> str | None:
    """Why the cell's link is none that its engine knows."""
    if cell.link == "host" and cell.engine in ("gloo", "virtual"):
        return f"link host: between GPUs only, engine is {cell.engine}"
    if cell.link == "host" and cell.engine in PEER_ENGINES:
        return "link host: not for ranks that write each other's memory"
    if cell.link != "native" and cell.engine == "local" and cell.ranks > 1:
        return f"link {cell.link}: not for places that load and store each other's memory"
    return None


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
    if cell.engine in PEER_ENGINES and not machine.peers:
        return f"engine {cell.engine}: these GPUs do not reach each other's memory"
    if not machine.compiled:
        return "needs the compiled kernels, which this version does not have"
    if cell.kernels == "compiled" and not machine.nvcc:
        return "needs nvcc"
    if cell.kernels == "portable" and not machine.numba_cuda:
        return "kernels portable on cuda: needs numba-cuda"
    return None
