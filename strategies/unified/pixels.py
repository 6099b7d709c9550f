"""Pixels that a place reads from the images of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strategies.distribution.halo import Halo
from strategies.distribution.ledger import Ledger
from strategies.distribution.placed_regions import MOST_KEPT, PlacedRegions
from strategies.distribution.regions import Regions, queued_copy
from strategies.unified.frames import Frames
from strategies.unified.sectors import scattered_bytes

PIXEL_BYTES = 12
"""Three float32."""


@dataclass(frozen=True)
class _Read:
    """Pixels of one view that a place reads from another: their positions, [n] row-major, there and here."""

    source: int
    view: int
    there: torch.Tensor
    here: torch.Tensor
    bytes: int


class HaloReads:
    """The others' pixels within SSIM_HALO of a place's own. What is read is found once for regions that come again.

    devices: of all places.
    """

    def __init__(self, place: int, devices: Sequence[torch.device]) -> None:
        self._place, self._devices = place, devices
        self._known: dict[PlacedRegions, list[_Read]] = {}

    def read(self, placed: PlacedRegions, frames: Frames) -> list[int]:
        """On the place's stream: fill them in; bytes read by source.

        Each place writes into its own images, and of others reads only pixels that those own: no two meet.
        """
        reads = self._known.get(placed)
        if reads is None:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            reads = self._known[placed] = self._found(placed.halo)
        read = [0] * len(frames)
        for one in reads:
            _copy(frames[self._place][one.view].image, frames[one.source][one.view].image, one.here, one.there)
            read[one.source] += one.bytes
        return read

    def _found(self, halo: Halo) -> list[_Read]:
        reads = []
        for number, (rank, view, here, _) in enumerate(halo.placed(self._devices[self._place]).takes):
            there = halo.placed(self._devices[rank]).takes[number].pixels
            reads.append(_Read(rank, view, there, here, scattered_bytes(halo.takes[rank][view], PIXEL_BYTES)))
        return reads


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
            pixels = (owner == source).nonzero().flatten()
            _copy(image, part, queued_copy(pixels, image.device), queued_copy(pixels, part.device))
            read[source] = scattered_bytes(pixels, PIXEL_BYTES)
    return image, read


def enter_reads(ledger: Ledger, stage: str, read: Sequence[Sequence[int]]) -> None:
    """Bytes read by reader and source, in the ledger, which asks where they came from."""
    for source in range(len(read)):
        ledger.add(stage, source, [of_reader[source] for of_reader in read])


def _copy(into: torch.Tensor, source: torch.Tensor, here: torch.Tensor, there: torch.Tensor) -> None:
    """Some pixels from one image to another. Between GPUs they cross packed, since a copy has whole runs of sectors
    where single loads would have parts."""
    into.view(-1, 3)[here] = source.view(-1, 3)[there].to(into.device, non_blocking=True)
