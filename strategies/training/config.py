"""Settings of the training mathematics, the same for every strategy of a suite. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Training(BaseModel):
    """How a step is computed and how parameters move; defaults are those of Kerbl et al. 2023.

    All schedules count images seen by the job, never iterations, so that strategies with different views a step
    train alike.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: Literal["dense", "visible", "touched"] = "visible"
    """Which rows a step moves: all; footprint on at least one tile in a view of the step; non-zero gradient."""
    batch_rule: Literal["rows", "batch", "none"] = "rows"
    """How a step of b views moves a row that v of them see: averaged over v with rate sqrt(v) and beta^v (`dense`
    counts v = b); the same with b for every row (Grendel); averaged over b with the rates of batch 1."""
    convention: Literal["standard", "inria", "gsplat153"] = "standard"
    footprint: Literal["ellipse", "square"] = "ellipse"
    t_stop: float = Field(1e-4, ge=0, lt=1)
    """Transmittance at which compositing stops; 0 stops below 1e-20."""
    occlusion: Literal["off", "history"] = "off"
    """Whether what lay hidden in a tile at a view's last visit is left out of that tile at the next."""
    ssim_weight: float = Field(0.2, ge=0, le=1)
    sh_degree: int = Field(3, ge=0, le=3)
    sh_every: int = Field(1000, ge=0)
    """Images after which the active SH degree grows by one, from 0; 0 uses the full degree from the start."""
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mean_rate: float = Field(1.6e-4, ge=0)
    mean_rate_final: float = Field(1.6e-6, ge=0)
    """Both times the scene's extent; exponential in between over `rate_images`."""
    rate_images: int = Field(30_000, ge=1)
    log_scale_rate: float = Field(5e-3, ge=0)
    quaternion_rate: float = Field(1e-3, ge=0)
    opacity_rate: float = Field(5e-2, ge=0)
    sh_dc_rate: float = Field(2.5e-3, ge=0)
    sh_rest_rate: float = Field(1.25e-4, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-15, gt=0)
    rate_scale: float = Field(1.0, ge=0)
    """Multiplies every learning rate; throughput runs use 1e-3 so that the workload stays."""
