"""Pixels that a place reads from the images of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.camera import TILE
from strategies.distribution.halo import SSIM_HALO
from strategies.distribution.ledger import Ledger
from strategies.distribution.regions import Regions
from strategies.unified.frames import Frames
from strategies.unified.sectors import scattered_bytes

PIXEL_BYTES = 12
"""Three float32."""


def read_halo(regions: Regions, owners: Sequence[torch.Tensor], frames: Frames, place: int) -> list[int]:
    """On the place's stream: fill in the others' pixels within SSIM_HALO of its own; bytes read by source.

    owners: by view, place of each pixel [H, W]. Each place writes into its own images, and of others reads only
    pixels that those own: no two meet.
    """
    read = [0] * len(frames)
    for view, frame in frames[place].items():
        near = _near(regions, view, place).flatten().nonzero().flatten()
        source_of = owners[view].flatten()[near]
        for source in source_of.unique().tolist():
            if source != place:
                read[source] += _read(frame.image, frames[source][view].image, near[source_of == source])
    return read


def _near(regions: Regions, view: int, place: int) -> torch.Tensor:
    """Pixels of the view within SSIM_HALO of the place's own, [H, W] bool: its rows of tiles, each grown."""
    camera, tiles = regions.cameras[view], regions.of(place, view)
    (first_row, left), (last_row, right) = (divmod(int(tile), camera.tiles_x) for tile in (tiles[0], tiles[-1]))
    near = torch.zeros((camera.height, camera.width), dtype=torch.bool)
    for row in range(first_row, last_row + 1):
        begin = left * TILE if row == first_row else 0
        end = (right + 1) * TILE if row == last_row else camera.width
        rows = slice(max(0, row * TILE - SSIM_HALO), (row + 1) * TILE + SSIM_HALO)
        near[rows, max(0, begin - SSIM_HALO) : end + SSIM_HALO] = True
    return near


def read_image(regions: Regions, frames: Frames, view: int, place: int) -> tuple[torch.Tensor, list[int]]:
    """The whole image of a view, [H, W, 3], in the memory of a place, and the bytes read by source."""
    read = [0] * len(frames)
    owner = regions.pixel_owner(view).flatten()
    parts = {source: of_place[view].image for source, of_place in enumerate(frames) if view in of_place}
    image = parts[place] if place in parts else torch.zeros_like(next(iter(parts.values())))
    for source, part in parts.items():
        if source != place:
            read[source] = _read(image, part, (owner == source).nonzero().flatten())
    return image, read


def enter_reads(ledger: Ledger, stage: str, read: Sequence[Sequence[int]]) -> None:
    """Bytes read by reader and source, in the ledger, which asks where they came from."""
    for source in range(len(read)):
        ledger.add(stage, source, [of_reader[source] for of_reader in read])


def _read(into: torch.Tensor, source: torch.Tensor, pixels: torch.Tensor) -> int:
    """Copy some pixels, [n] row-major positions, from one image to another; bytes read."""
    into.view(-1, 3)[pixels] = source.view(-1, 3)[pixels]
    return scattered_bytes(pixels, PIXEL_BYTES)
