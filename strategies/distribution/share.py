"""What a rank does of one view of a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.tape import act
from cuda_src.workspace import Workspace
from strategies.distribution.berth import Berth
from strategies.distribution.gaussian_exchange import Passage
from strategies.distribution.passage_rooms import PassageRoom
from strategies.distribution.regions import Regions
from strategies.distribution.turns import Turns


@dataclass
class Share:
    """A rank's share of one view of a batch, and what has been made of it so far.

    number: its place in the batch. turns: of that. view: its number in the scene, None for one without. degree: of the
    harmonics. tiles: this rank's, [k] int32, and owners: the rank of every tile, [tiles] int32, on the device. limit:
    greatest depth of each tile. overflow: flag of its room. berth: where a passage with a room lies; None where the
    host reads counts. truth: its photograph, [H, W, 3] uint8, and mask. splats: that arrived. begun: those of them that
    were listed before the others came. loss, 0-d, and cost, [k]: of its tiles.
    """

    number: int
    turns: Turns
    view: int | None
    camera: Camera
    degree: int
    tiles: torch.Tensor
    owners: torch.Tensor
    limit: torch.Tensor | None
    work: Workspace
    overflow: torch.Tensor
    berth: Berth | None
    truth: tuple[torch.Tensor, torch.Tensor | None] = field(init=False)
    passage: Passage = field(init=False)
    splats: op.Splats = field(init=False)
    begun: range = field(default=range(0), init=False)
    bins: op.Bins = field(init=False)
    raster: op.Raster = field(init=False)
    loss: torch.Tensor = field(init=False)
    cost: Callable[[], torch.Tensor] = field(init=False)

    @property
    def room(self) -> PassageRoom | None:
        """Of its passage."""
        return None if self.berth is None else self.berth.room

    def keep_loss(self, value: torch.Tensor) -> None:
        """A copy, each time that a tape is played: reports outlive the memory that the value lies in."""

        def copy() -> None:
            self.loss = value.clone()

        act(copy)


@dataclass(frozen=True)
class Pictures:
    """Views of a batch that are only rendered. key: of their tapes; None where they are done without."""

    regions: Regions
    shares: tuple[Share, ...]
    key: tuple[Hashable, ...] | None = None
