"""Options that every strategy on Gaussian-level exchange has. Imports no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from strategies.info import Options


class ExchangeOptions(Options):
    """Who owns Gaussians, what their records look like on the wire, and how regions are balanced."""

    ownership: Literal["morton_blocks", "contiguous", "random", "kdtree"] = "morton_blocks"
    """Who owns which Gaussian at the start; `contiguous` is Grendel's release's."""
    balance: Literal["measured", "work", "off"] = "work"
    """Cost of a tile: its segment's measured seconds (paper), what was counted of it at the last visit, or constant."""
    record: Literal["packed", "64"] = "packed"
    """A record on the wire is 44 B and its id, or padded to 64 B; what is not of the record is metadata."""
    redistribute: Literal["random", "morton_blocks", "off"] = "off"
    redistribute_images: int = Field(1000, ge=1)
    """Images between two redistributions, when not off."""


def follows_seconds(options: Any) -> str | None:
    """`varies` of these strategies: where seconds place the borders of regions, no two runs sum alike."""
    assert isinstance(options, ExchangeOptions)
    return "balance: measured cuts regions by seconds, which differ" if options.balance == "measured" else None
