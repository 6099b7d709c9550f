"""Pixels that a place reads from the images of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strategies.distribution.halo import pixels_between
from strategies.distribution.ledger import Ledger
from strategies.distribution.regions import Regions, queued_copy
from strategies.unified.frames import Frames
from strategies.unified.sectors import scattered_bytes

PIXEL_BYTES = 12
"""Three float32."""


def read_halo(regions: Regions, frames: Frames, place: int) -> list[int]:
    """On the place's stream: fill in the others' pixels within SSIM_HALO of its own; bytes read by source.

    Each place writes into its own images, and of others reads only pixels that those own: no two meet.
    """
    read = [0] * len(frames)
    for source in range(len(frames)):
        for view, pixels in enumerate(pixels_between(regions, source, place)):
            if len(pixels):
                read[source] += _read(frames[place][view].image, frames[source][view].image, pixels)
    return read


def read_image(
    regions: Regions, frames: Frames, view: int, place: int, device: torch.device
) -> tuple[torch.Tensor, list[int]]:
    """The whole image of a view, [H, W, 3], in the memory of a place (its device), and the bytes read by source."""
    read = [0] * len(frames)
    owner = regions.pixel_owner(view).flatten()
    parts = {source: of_place[view].image for source, of_place in enumerate(frames) if view in of_place}
    image = parts[place] if place in parts else torch.zeros_like(next(iter(parts.values())), device=device)
    for source, part in parts.items():
        if source != place:
            read[source] = _read(image, part, (owner == source).nonzero().flatten())
    return image, read


def enter_reads(ledger: Ledger, stage: str, read: Sequence[Sequence[int]]) -> None:
    """Bytes read by reader and source, in the ledger, which asks where they came from."""
    for source in range(len(read)):
        ledger.add(stage, source, [of_reader[source] for of_reader in read])


def _read(into: torch.Tensor, source: torch.Tensor, pixels: torch.Tensor) -> int:
    """Copy some pixels, [n] row-major positions on the host, ascending, from one image to another; bytes read.

    Between GPUs they cross packed, since a copy has whole runs of sectors where single loads would have parts.
    """
    read = source.view(-1, 3)[queued_copy(pixels, source.device)].to(into.device, non_blocking=True)
    into.view(-1, 3)[queued_copy(pixels, into.device)] = read
    return scattered_bytes(pixels, PIXEL_BYTES)
