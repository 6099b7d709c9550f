"""What `bytesplat` says of itself: its three mechanisms and their controls, each a named value."""

from typing import Any, Literal

from pydantic import Field, model_validator

from strategies.distribution.exchange_options import ExchangeOptions, follows_seconds
from strategies.info import StrategyInfo
from strategies.training.config import Training

KIB = 1024


class BytesplatOptions(ExchangeOptions):
    """Mechanisms of ByteSplat on Grendel's exchange."""

    unit: Literal["auto", "block", "row", "image"] = "auto"
    """What a region's border may not split; `auto` is an image when there are as many views as ranks, else a tile."""
    codec: Literal["dense", "bitmap", "index", "bf16"] = "bitmap"
    """How gradients travel back: all, the non-zero ones by bitmap or index, or rounded with error feedback."""
    raster: Literal["separate", "fused"] = "separate"
    """Forward, loss and backward as three operators, or as one that leaves no image in memory."""
    loss_window: Literal["exact", "tile", "l1"] = "exact"
    """What SSIM's windows see: the whole image, a block of 32 x 32 pixels (renormalised), or nothing: L1 alone."""
    jitter: bool = False
    """Moves the blocks of `loss_window: tile` by a random offset each step."""
    prune: Literal["off", "hardware", "importance"] = "off"
    """Once, by benefit / importance until tile lists fit the budget; or as many by importance alone (control)."""
    budget: int = Field(227 * KIB, ge=1)
    """Bytes of shared memory that hold a tile's list."""
    record_bytes: int = Field(76, ge=1)
    """Bytes of that memory a Gaussian of the list takes."""
    target_share: float = Field(0.5, gt=0, le=1)
    """Share of tiles that must fit after pruning."""
    prune_images: int = Field(0, ge=0)
    """Images after which pruning happens; 0 is before the first step."""

    @model_validator(mode="after")
    def _jitter_has_blocks(self) -> "BytesplatOptions":
        if self.jitter and self.loss_window != "tile":
            raise ValueError("expected loss_window: tile with jitter, which moves its blocks")
        return self

    def unit_of(self, ranks: int, batch: int) -> Literal["block", "row", "image"]:
        """The unit for that many ranks and views a step."""
        if self.unit == "auto":
            return "image" if batch >= ranks else "block"
        return self.unit


def refuses(options: Any, ranks: int, batch: int) -> str | None:
    """A fused raster has only its own pixels: a window must not need another rank's."""
    assert isinstance(options, BytesplatOptions)
    unit = options.unit_of(ranks, batch)
    if options.raster == "fused" and options.loss_window != "l1" and ranks > 1 and unit != "image":
        return f"raster fused with loss_window {options.loss_window} needs whole images; unit {unit} splits them"
    return None


def refuses_training(options: Any, training: Training) -> str | None:
    """Occlusion history learns from where each pixel stopped."""
    assert isinstance(options, BytesplatOptions)
    if options.raster == "fused" and training.occlusion == "history":
        return "occlusion history learns from where each pixel stopped, which raster fused keeps to itself"
    return None


def lacks(options: Any, device: str) -> str | None:
    """The fused raster exists on the CPU; the rest is Grendel's."""
    assert isinstance(options, BytesplatOptions)
    if options.raster == "fused" and device == "cuda":
        return "raster fused: not among the compiled kernels of this version"
    return None


INFO = StrategyInfo(
    name="bytesplat",
    summary="Grendel's exchange with less traffic: fused raster, sparse gradients, hardware-aware pruning",
    options=BytesplatOptions,
    implementation="strategies.bytesplat.strategy:ByteSplat",
    engines=("local", "symmetric", "nccl", "gloo", "virtual"),
    exact_when="prune: off, loss_window: exact and any codec but bf16, with either raster, on any number of ranks",
    lacks=lacks,
    refuses=refuses,
    refuses_training=refuses_training,
    varies=follows_seconds,
)
