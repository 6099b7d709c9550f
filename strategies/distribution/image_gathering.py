"""The whole image of a view whose pixels lie on many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cuda_src.tape import act
from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator, Pending, Terms
from strategies.distribution.regions import Regions

_Places = list[tuple[torch.Tensor, torch.Tensor]]
"""Parts of an image, [h, w, 3], each beside its share of rows that follow one another."""


@dataclass(frozen=True)
class Gathering:
    """An image on its way to rank 0. unplaced: what comes elsewhere than in the image itself."""

    image: torch.Tensor | None
    pending: Pending
    unplaced: _Places

    def whole(self) -> torch.Tensor | None:
        """The whole image, on rank 0. On every rank its own part, and what was sent of it, is free from here on."""
        self.pending.wait()
        for place, rows in self.unplaced:
            act(partial(place.copy_, rows))
        return self.image


def gather_image(
    comm: Communicator, regions: Regions, view: int, image: torch.Tensor, workspace: Workspace
) -> Gathering:
    """Every rank begins to send the pixels of its own tiles of one view of a batch to rank 0.

    image: [H, W, 3], in which own pixels are, and on rank 0 all will be. workspace: holds what crosses; parts that are
    contiguous in the image cross as they lie.
    """
    rank, ranks = comm.rank, comm.ranks
    places = [[image[p.y0 : p.y1, p.x0 : p.x1] for p in regions.rectangles(r, view)] for r in range(ranks)]
    sizes = [sum(place.shape[0] * place.shape[1] for place in of_rank) for of_rank in places]
    if rank != 0:
        sent, laid_out = _rows(places[rank], workspace, "gathered.sent", image.dtype)
        for place, rows in laid_out:
            act(partial(rows.copy_, place))
        to = [sizes[rank], *[0] * (ranks - 1)]
        return Gathering(None, comm.exchange("render", sent, to, [0] * ranks), [])
    into, unplaced = [image.new_empty((0, 3))], []
    for source in range(1, ranks):
        rows, laid_out = _rows(places[source], workspace, f"gathered.{source}", image.dtype)
        into.append(rows)
        unplaced += laid_out
    pending = comm.exchange("render", into[0], [0] * ranks, [0, *sizes[1:]], terms=Terms(into=into))
    return Gathering(image, pending, unplaced)


def _rows(
    places: Sequence[torch.Tensor], workspace: Workspace, name: str, dtype: torch.dtype
) -> tuple[torch.Tensor, _Places]:
    """Pixels of these places, [n, 3], one after another: where they lie if that is so there, else in a buffer."""
    if len(places) == 1 and places[0].is_contiguous():
        return places[0].view(-1, 3), []
    sizes = [place.shape[0] * place.shape[1] for place in places]
    rows = workspace.take(name, (sum(sizes), 3), dtype)
    parts = rows.split(sizes)
    return rows, [(place, part.view(place.shape)) for place, part in zip(places, parts, strict=True)]
