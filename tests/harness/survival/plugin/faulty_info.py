"""A strategy whose options make it fail in a chosen way, place and moment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from strategies.info import Options, StrategyInfo


class FaultyOptions(Options):
    fault: Literal["none", "raise", "memory", "device_memory", "nan", "hang", "slow", "kill", "kill_parent", "fill"] = (
        "none"
    )
    rank: int = Field(0, ge=0)
    """Which rank it strikes."""
    step: int = Field(1, ge=0)
    """Before which step; the first is 0."""
    once: str = ""
    """File that the fault leaves; while it exists there is no fault."""
    fill: str = ""
    """`fill`: file that takes all room of its disk, but for what a log needs."""


INFO = StrategyInfo(
    name="faulty",
    summary="fails when asked to",
    options=FaultyOptions,
    implementation="faulty_strategy:Faulty",
    engines=("local", "nccl", "gloo", "virtual"),
)
