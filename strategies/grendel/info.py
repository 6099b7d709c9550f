"""What `grendel` says of itself: its mechanisms, each a named value."""

from typing import Literal

from pydantic import Field

from strategies.info import Options, StrategyInfo


class GrendelOptions(Options):
    """Mechanisms of Grendel (Zhao et al. 2024) and the choices its paper and release differ in."""

    ownership: Literal["morton_blocks", "contiguous", "random", "kdtree"] = "morton_blocks"
    """Who owns which Gaussian at the start; `contiguous` is the release's."""
    unit: Literal["block", "row", "image"] = "block"
    """What a region's border may not split: a tile (paper), a row of tiles (release), an image."""
    balance: Literal["measured", "work", "off"] = "work"
    """Cost of a tile: its segment's measured seconds (paper), its contributors at the last visit, or constant."""
    balance_batches: bool = True
    """False stops balancing when there are at least as many views as ranks, as the release silently does."""
    ssim_halo: Literal["exact", "none"] = "exact"
    """`none` cuts SSIM's windows at a region's border, as the release does."""
    record: Literal["packed", "64"] = "packed"
    """Bytes of a record on the wire: 44, or padded to 64 and so aligned; padding is metadata."""
    min_opacity: float = Field(0.0, ge=0, le=1)
    """Negative control: records below this opacity are not sent (Splaxel's Fig. 5)."""
    redistribute: Literal["random", "morton_blocks", "off"] = "off"
    redistribute_images: int = Field(1000, ge=1)
    """Images between two redistributions, when not off."""


INFO = StrategyInfo(
    name="grendel",
    summary="Gaussian-level exchange: splats go to the pixels they touch, gradients come back to their owner",
    options=GrendelOptions,
    implementation="strategies.grendel.strategy:Grendel",
    engines=("local", "gloo", "virtual"),
    exact_when="ssim_halo: exact and min_opacity: 0, on any number of ranks",
)
