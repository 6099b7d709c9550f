"""Pixels that a place reads from the images of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strategies.distribution.halo import SSIM_HALO, dilate
from strategies.distribution.ledger import Ledger
from strategies.distribution.regions import Regions
from strategies.unified.frames import Frames
from strategies.unified.sectors import scattered_bytes

PIXEL_BYTES = 12
"""Three float32."""


def read_halo(regions: Regions, frames: Frames, place: int) -> list[int]:
    """On the place's stream: fill in the others' pixels within SSIM_HALO of its own; bytes read by source.

    Each place writes into its own images, and of others reads only pixels that those own: no two meet.
    """
    read = [0] * len(frames)
    for view, frame in frames[place].items():
        owner = regions.pixel_owner(view)
        near = dilate(owner == place, SSIM_HALO)
        for source in owner[near].unique().tolist():
            if source != place:
                read[source] += _read(frame.image, frames[source][view].image, near & (owner == source))
    return read


def read_image(regions: Regions, frames: Frames, view: int, place: int) -> tuple[torch.Tensor, list[int]]:
    """The whole image of a view, [H, W, 3], in the memory of a place, and the bytes read by source."""
    read = [0] * len(frames)
    owner = regions.pixel_owner(view)
    parts = {source: of_place[view].image for source, of_place in enumerate(frames) if view in of_place}
    image = parts[place] if place in parts else torch.zeros_like(next(iter(parts.values())))
    for source, part in parts.items():
        if source != place:
            read[source] = _read(image, part, owner == source)
    return image, read


def enter_reads(ledger: Ledger, stage: str, read: Sequence[Sequence[int]]) -> None:
    """Bytes read by reader and source, in the ledger, which asks where they came from."""
    for source in range(len(read)):
        ledger.add(stage, source, [of_reader[source] for of_reader in read])


def _read(into: torch.Tensor, source: torch.Tensor, pixels: torch.Tensor) -> int:
    into[pixels] = source[pixels]
    return scattered_bytes(pixels.flatten().nonzero().flatten(), PIXEL_BYTES)
