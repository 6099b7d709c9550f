"""What `grendel` says of itself: its mechanisms, each a named value."""

from typing import Literal

from pydantic import Field

from strategies.distribution.exchange_options import ExchangeOptions, follows_seconds
from strategies.info import StrategyInfo


class GrendelOptions(ExchangeOptions):
    """Mechanisms of Grendel (Zhao et al. 2024) and the choices its paper and release differ in."""

    unit: Literal["block", "row", "image"] = "block"
    """What a region's border may not split: a tile (paper), a row of tiles (release), an image."""
    balance_batches: bool = True
    """False stops balancing when there are at least as many views as ranks, as the release silently does."""
    ssim_halo: Literal["exact", "none"] = "exact"
    """`none` cuts SSIM's windows at a region's border, as the release does."""
    codec: Literal["dense", "bitmap", "index", "bf16"] = "dense"
    """How gradients travel back: all of them (paper), or ByteSplat's codes, or rounded with error feedback."""
    min_opacity: float = Field(0.0, ge=0, le=1)
    """Negative control: records below this opacity are not sent (Splaxel's Fig. 5)."""


INFO = StrategyInfo(
    name="grendel",
    summary="Gaussian-level exchange: splats go to the pixels they touch, gradients come back to their owner",
    options=GrendelOptions,
    implementation="strategies.grendel.strategy:Grendel",
    engines=("local", "symmetric", "nccl", "gloo", "virtual"),
    exact_when="ssim_halo: exact, min_opacity: 0 and any codec but bf16, on any number of ranks",
    varies=follows_seconds,
)
