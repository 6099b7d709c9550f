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
    """Whether what lies between its kernels, and crosses between GPUs, holds the visible Gaussians alone. Its
    documentation calls packed the one that saves memory and the other the faster one, and its trainer's default is not
    packed."""
    order: Literal["source", "morton"] = "source"
    """How Gaussians lie in memory: as they come, or on a Z-order curve, which serves its masked optimizer."""
    harmonics: Literal["split", "joined"] = "split"
    """Two tensors, as its trainer holds them for a rate each and concatenates them at every call; or one, which needs
    neither that nor its gradient taken apart."""


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
    if options.harmonics == "joined" and training.sh_rest_rate == 0:
        return "gsplat's joined harmonics all move by sh_rest_rate, which is 0"
    return None


def refuses(options: Any, ranks: int, batch: int) -> str | None:
    """On several GPUs each renders whole images, as many as the others."""
    if batch % ranks:
        return f"gsplat renders as many whole views on every rank: batch {batch} is no multiple of {ranks} ranks"
    return None


def remark(options: Any, ranks: int) -> str | None:
    """What gsplat sends between GPUs; and that packed rows are not what the release does."""
    if ranks == 1:
        return None
    if not options.packed:
        return "gsplat's default on several GPUs is dense: a row of every Gaussian for every view, seen or not"
    return (
        f"gsplat {VERSION} packed on several GPUs is repaired at run time: stock, it lists tiles by image ids taken "
        "before the exchange and ends in an illegal memory access"
    )


INFO = StrategyInfo(
    name="gsplat",
    summary="the package gsplat, its renderer, exchange and sparse Adam: the peer that figures are compared with",
    options=GsplatOptions,
    implementation="strategies.gsplat_peer.strategy:GsplatPeer",
    engines=("local", "nccl"),
    exact_when="with convention gsplat153, to the rounding of its kernels",
    lacks=lacks,
    refuses=refuses,
    refuses_training=refuses_training,
    remark=remark,
)
