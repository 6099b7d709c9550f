"""What the row `gsplat` says of itself: another code base's renderer and optimizer, trained as a strategy."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from strategies.info import Options, StrategyInfo
from strategies.training.config import Training

DISTRIBUTION = "gsplat"
VERSION = "1.5.3"
"""The release whose interface and conventions this row is written for."""

T_STOP = 1e-4
"""Transmittance at which gsplat stops compositing: a constant of its kernels."""


class GsplatOptions(Options):
    """How gsplat is called; everything else is as its own trainer does it."""

    packed: bool = False
    """Whether what lies between its kernels holds the visible Gaussians alone. Its documentation calls packed the one
    that saves memory and the other the faster one, and its trainer's default is not packed."""
    order: Literal["source", "morton"] = "source"
    """How Gaussians lie in memory: as they come, or on a Z-order curve, which serves its masked optimizer."""


def lacks(options: Any, device: str) -> str | None:
    """gsplat has kernels for GPUs only, and is another package."""
    if device == "cpu":
        return "gsplat computes on GPUs only"
    try:
        found = version(DISTRIBUTION)
    except PackageNotFoundError:
        return f"needs the package {DISTRIBUTION} {VERSION}, which `pip install 'splat-harness[peer]'` brings"
    return None if found == VERSION else f"needs {DISTRIBUTION} {VERSION}, found {found}"


def refuses_training(options: Any, training: Training) -> str | None:
    """What its kernels fix, and a mechanism they have not."""
    if training.occlusion != "off":
        return "gsplat has no occlusion history"
    if training.footprint != "ellipse":
        return f"gsplat has no footprint {training.footprint}: its boxes leave out nothing that ellipse blends"
    if training.t_stop != T_STOP:
        return f"gsplat stops at transmittance {T_STOP}, not {training.t_stop}"
    return None


INFO = StrategyInfo(
    name="gsplat",
    summary="the package gsplat on one GPU, its renderer and sparse Adam: the peer that figures are compared with",
    options=GsplatOptions,
    implementation="strategies.gsplat_peer.strategy:GsplatPeer",
    max_ranks=1,
    exact_when="with convention gsplat153, to the rounding of its kernels",
    lacks=lacks,
    refuses_training=refuses_training,
)
