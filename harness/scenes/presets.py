"""Presets of the procedural city. Imports no torch: suites are validated against these names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Preset:
    """Defaults of a city; a suite's scene may replace gaussians, points and views.

    generator: `blocks` is the city of this package, with ray-cast images; `anchor` is the fixed stand-in city that
    reference timings were taken on, with a fixed pattern for images and nothing to start training from.
    path: `street` (eye height, along the streets) or `aerial` (oblique, from above). gaussians: ready ones, whose
    number decides the city's side. points: initial ones; None where the generator has none. views: cameras.
    size: image size that suits the preset, pixels.
    """

    generator: Literal["blocks", "anchor"]
    path: Literal["street", "aerial"]
    gaussians: int
    points: int | None
    views: int
    size: tuple[int, int]


PRESETS: dict[str, Preset] = {
    "small_street": Preset("blocks", "street", 20_000, 4_000, 32, (320, 240)),
    "small_aerial": Preset("blocks", "aerial", 20_000, 4_000, 32, (320, 240)),
    "big_street": Preset("blocks", "street", 5_000_000, 200_000, 128, (1920, 1080)),
    "big_aerial": Preset("blocks", "aerial", 5_000_000, 200_000, 128, (1920, 1080)),
    "anchor": Preset("anchor", "aerial", 5_000_000, None, 128, (1920, 1080)),
    "anchor_street": Preset("anchor", "street", 5_000_000, None, 128, (1920, 1080)),
    "anchor_aerial": Preset("anchor", "aerial", 5_000_000, None, 128, (1920, 1080)),
}
