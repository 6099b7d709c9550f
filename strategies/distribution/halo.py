"""Pixels that a region's loss needs from other ranks: SSIM's gradient reaches 10 px beyond the region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from cuda_src.camera import TILE, Camera
from cuda_src.tape import act
from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator, Terms
from strategies.distribution.regions import Regions, queued_copy

SSIM_HALO = 10
"""5 px for the value's window and 5 more for the gradient's."""


class Part(NamedTuple):
    """Pixels of one view that go to one rank or come from it, [n] int64 on the device; rows: theirs in what crosses."""

    rank: int
    view: int
    pixels: torch.Tensor
    rows: slice


@dataclass(frozen=True)
class PlacedHalo:
    """What crosses, in the order in which it does, and by rank how many pixels that is."""

    gives: list[Part]
    takes: list[Part]
    to: list[int]
    back: list[int]


@dataclass(frozen=True)
class Halo:
    """Which pixels a rank gives and takes, by other rank, then view: their numbers in it, [n] int64, all of them on the
    host or all where the images lie.

    Nothing but values travels: what one gives is what the other takes, in the same order.
    """

    gives: Sequence[Sequence[torch.Tensor]]
    takes: Sequence[Sequence[torch.Tensor]]
    _placed: dict[torch.device, PlacedHalo] = field(default_factory=dict, compare=False, repr=False)

    def placed(self, device: torch.device) -> PlacedHalo:
        """On that device, where it stays: nobody waits."""
        if device not in self._placed:
            numbers = torch.cat([of_view for of_rank in (*self.gives, *self.takes) for of_view in of_rank])
            there = numbers if numbers.device == device else queued_copy(numbers, device)
            to, back = ([sum(map(len, of_rank)) for of_rank in side] for side in (self.gives, self.takes))
            gives, takes = _parts(self.gives, there[: sum(to)]), _parts(self.takes, there[sum(to) :])
            self._placed[device] = PlacedHalo(gives, takes, to, back)
        return self._placed[device]


def _parts(side: Sequence[Sequence[torch.Tensor]], placed: torch.Tensor) -> list[Part]:
    """Those of a side that have pixels. placed: all of its numbers, one after another, on the device."""
    parts, begin = [], 0
    for rank, of_rank in enumerate(side):
        for view, numbers in enumerate(of_rank):
            rows = slice(begin, begin + len(numbers))
            if len(numbers):
                parts.append(Part(rank, view, placed[rows], rows))
            begin = rows.stop
    return parts


def halo_of_regions(regions: Regions, rank: int) -> Halo:
    """The halo of a rank whose region is a run of tiles."""
    others = range(regions.ranks)
    gives = [pixels_between(regions, rank, other) for other in others]
    return Halo(gives, [pixels_between(regions, other, rank) for other in others])


def pixels_between(regions: Regions, giver: int, taker: int) -> list[torch.Tensor]:
    """By view, the giver's pixels within SSIM_HALO of the taker's, ascending, [n] int64 on the host.

    From the rows of pixels at the ends of their runs of tiles, no image in between.
    """
    views = range(len(regions.cameras))
    if giver == taker:
        return [torch.empty(0, dtype=torch.int64)] * len(views)
    pairs = ((regions.segment(giver, v), regions.segment(taker, v), regions.cameras[v]) for v in views)
    return [torch.from_numpy(_near(theirs, region, camera)) for theirs, region, camera in pairs]


def _near(given: range, region: range, camera: Camera) -> np.ndarray:
    """Pixels of the given tiles within SSIM_HALO of the region's, ascending, [n] int64. Both are runs of tiles."""
    none = np.empty(0, dtype=np.int64)
    if not given or not region:
        return none
    (top, bottom), (first, last) = _pixel_rows(given, camera), _pixel_rows(region, camera)
    rows = np.arange(max(top, first - SSIM_HALO), min(bottom, last + SSIM_HALO))
    if not len(rows):
        return none
    lo, hi = _interval(given, rows // TILE, camera)
    # How many intervals begin less how many end at each column: their sum so far says how many hold it.
    steps = np.zeros((len(rows), camera.width + 1), dtype=np.int8)
    # The 21 rows around one lie in no other rows of tiles than its own and those of the first and the last of them.
    for reached in (rows - SSIM_HALO, rows, rows + SSIM_HALO):
        row = np.clip(reached, 0, camera.height - 1) // TILE
        left, right = _interval(region, row, camera)
        begin, end = np.maximum(left - SSIM_HALO, lo), np.minimum(right + SSIM_HALO, hi)
        some = np.flatnonzero((left < right) & (begin < end))
        steps[some, begin[some]] += 1
        steps[some, end[some]] -= 1
    near = np.cumsum(steps[:, :-1], axis=1, dtype=np.int8)
    return np.flatnonzero(near) + rows[0] * camera.width


def _pixel_rows(tiles: range, camera: Camera) -> tuple[int, int]:
    """Rows of pixels that a run of tiles has a part of, as a half-open interval."""
    return tiles.start // camera.tiles_x * TILE, min(((tiles.stop - 1) // camera.tiles_x + 1) * TILE, camera.height)


def _interval(tiles: range, row: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Columns of pixels that the run has in each row of tiles, half-open; left >= right where it has none."""
    left = np.maximum(tiles.start - row * camera.tiles_x, 0)
    right = np.minimum(tiles.stop - row * camera.tiles_x, camera.tiles_x)
    return left * TILE, np.minimum(right * TILE, camera.width)


class HaloExchange:
    """The other ranks' pixels on their way into each image of a batch."""

    def __init__(
        self, comm: Communicator, stage: str, halo: Halo, images: Sequence[torch.Tensor], workspace: Workspace
    ) -> None:
        """Start it. images: by view [H, W, 3] contiguous, this rank's pixels filled in; the halo is written in place.
        workspace: holds what crosses."""
        placed, kind = halo.placed(images[0].device), images[0].dtype
        self._pixels = [image.view(-1, 3) for image in images]
        gives, self._takes = (
            workspace.take(f"halo.{side}", (sum(counts), 3), kind)
            for side, counts in (("gives", placed.to), ("takes", placed.back))
        )
        for part in placed.gives:
            act(partial(torch.index_select, self._pixels[part.view], 0, part.pixels, out=gives[part.rows]))
        self._placed = placed
        self._coming = comm.exchange(stage, gives, placed.to, placed.back, terms=Terms(into=self._takes))
        self._views = {part.view for part in placed.takes}
        self._waits = True

    def wait_for(self, view: int) -> None:
        """Have all pixels of a view in its image."""
        if view in self._views:
            self.wait()

    def wait(self) -> None:
        """Have those of all views; once."""
        if not self._waits:
            return
        self._waits = False
        self._coming.wait()
        for part in self._placed.takes:
            act(partial(self._pixels[part.view].index_copy_, 0, part.pixels, self._takes[part.rows]))
