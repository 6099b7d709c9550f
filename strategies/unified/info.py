"""What `unified` says of itself: its mechanisms, each a named value."""

from typing import Literal

from pydantic import Field

from cuda_src.layout import PARAMETERS
from strategies.info import Options, StrategyInfo, never_varies

ROW_BYTES = 4 * PARAMETERS
"""One Gaussian in one of the three tables (parameters and two moments), float32."""
MEBIBYTE = 1 << 20


class UnifiedOptions(Options):
    """One aggregate device: where its memory lies, and how places reach each other's."""

    placement: Literal["round_robin", "striped", "managed"] = "round_robin"
    """Stripes dealt round robin, one contiguous part a place, or cudaMallocManaged (CUDA only)."""
    stripe_bytes: int = Field(2 * MEBIBYTE, ge=ROW_BYTES)
    """Stripe of `round_robin`, bytes of one table; CUDA's virtual memory takes multiples of 2 MiB."""
    exchange: Literal["push", "remote_atomic", "local_reduce"] = "push"
    """How gradients come back: read from the inbox, added remotely a (tile, splat), or reduced from dense buffers."""
    record: Literal[64, 48] = 64
    """Bytes of a slot of the inbox: 44 of the splat and 4 of its row, and padding to an aligned 64."""
    balance: Literal["work", "off"] = "work"
    """Cost of a tile when pixels are cut: what was counted of it at the view's last visit, or constant."""


def lacks(options: UnifiedOptions, device: str) -> str | None:
    """Why a table cannot be placed so in the memory of that kind of device; None when it can."""
    if options.placement == "managed" and device == "cpu":
        return "placement managed: needs cudaMallocManaged, device is cpu"
    if options.placement == "round_robin" and device == "cuda" and options.stripe_bytes % (2 * MEBIBYTE):
        return f"stripe_bytes {options.stripe_bytes}: CUDA's virtual memory is mapped in multiples of 2 MiB"
    return None


INFO = StrategyInfo(
    name="unified",
    summary="one aggregate device: one table over the memory of all places, operators launched on each, then a join",
    options=UnifiedOptions,
    implementation="strategies.unified.strategy:Unified",
    processes="one",
    engines=("local",),
    exact_when="always, on any number of places",
    gpu_kernels=("compiled",),
    lacks=lacks,
    varies=never_varies,
)
