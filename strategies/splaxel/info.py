"""What `splaxel` says of itself: its mechanisms, each a named value."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from strategies.info import Options, StrategyInfo, never_varies
from strategies.training.config import Training


class SplaxelOptions(Options):
    """Mechanisms of Splaxel and the choices between what its paper does and what is exact."""

    boxes_per_rank: int = Field(1, ge=1)
    """Leaves of the kd-tree that a rank owns, dealt in a checkerboard; the paper has one, many balance better."""
    compose: Literal["all", "owner"] = "all"
    """Who composites a pixel: every rank that supervises it (paper), or one that returns its gradients."""
    order: Literal["tree", "depth"] = "tree"
    """Front to back by the kd-tree from the camera's side, or by each partial's mean depth (paper; 4 B more)."""
    regions: Literal["polyhedra", "whole"] = "polyhedra"
    """Spatial redundancy removed: only pixels of the box's projection are rendered and sent; `whole`: all of them."""
    saturation: Literal["off", "on"] = "on"
    """Leave out sub-tiles of a box that lie behind a stopped or saturated prefix of other boxes."""
    saturation_eps: float = Field(1e-4, gt=0, lt=1)
    """Transmittance in front of a box below which it counts as saturated."""
    reactivate: Literal["never", "budget", "every_k"] = "budget"
    """When a left out sub-tile returns: never; when fresh light reaches it again (paper); every so many visits."""
    every: int = Field(10, ge=1)
    """Visits of a view between two that show everything; of `reactivate: every_k`."""
    window: int = Field(1, ge=1)
    """View consolidation: how many views ahead are searched for some that run at once; 1 is off."""
    boundary: Literal["drop", "keep", "exact"] = "drop"
    """Splats that cross a face: dropped where their depth lies in another box (paper), kept whole, or exact."""
    repartition_images: int = Field(2000, ge=1)
    """Images between two checks of the balance."""
    repartition_imbalance: float = Field(0.20, ge=0)
    """Boxes are cut anew when the largest work is beyond the mean by more than this share."""

    @model_validator(mode="after")
    def _every_needs_every_k(self) -> SplaxelOptions:
        given = self.model_fields_set
        if "every" in given and self.reactivate != "every_k":
            raise ValueError("expected reactivate: every_k beside every, which nothing else reads")
        masks = given & {"saturation_eps", "reactivate"}
        if self.saturation == "off" and masks:
            raise ValueError(f"expected saturation: on beside {' and '.join(sorted(masks))}, which nothing else reads")
        return self


def refuses(options: Any, ranks: int, batch: int) -> str | None:
    """Consolidated views are steps of their own."""
    assert isinstance(options, SplaxelOptions)
    if options.window > 1 and batch > 1:
        return f"window {options.window} runs views as steps of their own; batch {batch} is one step of several views"
    return None


def refuses_training(options: Any, training: Training) -> str | None:
    """Views that run together equal views one by one only if the ranks that are idle in one do not move in it."""
    assert isinstance(options, SplaxelOptions)
    if options.window > 1 and training.optimizer == "dense":
        return f"window {options.window} leaves ranks idle in a view; optimizer dense moves every Gaussian in each"
    return None


INFO = StrategyInfo(
    name="splaxel",
    summary="pixel-level exchange: boxes of space render partial images, pixels cross, Gaussians stay",
    options=SplaxelOptions,
    implementation="strategies.splaxel.strategy:Splaxel",
    engines=("local", "nccl", "gloo", "virtual"),
    exact_when="boundary: exact, order: tree, saturation: off and training.t_stop: 0, on any number of ranks",
    refuses=refuses,
    refuses_training=refuses_training,
    varies=never_varies,
)
