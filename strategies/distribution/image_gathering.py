"""The whole image of a view whose pixels lie on many ranks."""

from __future__ import annotations

from functools import partial

import torch

from cuda_src.tape import act
from cuda_src.workspace import Workspace
from strategies.distribution.communicator import Communicator, Terms
from strategies.distribution.regions import Regions


def gather_image(
    comm: Communicator, regions: Regions, image: torch.Tensor, workspace: Workspace
) -> torch.Tensor | None:
    """The whole image of a batch of one on rank 0: every rank sends the pixels of its own tiles there.

    workspace: holds what crosses.
    """
    rank, ranks = comm.rank, comm.ranks
    places = [[image[p.y0 : p.y1, p.x0 : p.x1] for p in regions.rectangles(r, 0)] for r in range(ranks)]
    sizes = [sum(place.shape[0] * place.shape[1] for place in of_rank) for of_rank in places]
    to, back = [0] * ranks, [0] * ranks
    if rank == 0:
        back[1:] = sizes[1:]
    else:
        to[0] = sizes[rank]
    sent, received = (
        workspace.take(f"gathered.{side}", (sum(counts), 3), image.dtype)
        for side, counts in (("sent", to), ("received", back))
    )
    for place, rows in _laid_out(places[rank] if rank else [], sent):
        act(partial(rows.copy_, place))
    comm.exchange("render", sent, to, back, terms=Terms(into=received)).wait()
    if rank != 0:
        return None
    for place, rows in _laid_out([place for of_rank in places[1:] for place in of_rank], received):
        act(partial(place.copy_, rows))
    return image


def _laid_out(places: list[torch.Tensor], rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each place in an image, [h, w, 3], beside its share of the rows, which follow one another."""
    parts = rows.split([place.shape[0] * place.shape[1] for place in places])
    return [(place, part.view(place.shape)) for place, part in zip(places, parts, strict=True)]
