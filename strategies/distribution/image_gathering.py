"""The whole image of a view whose pixels lie on many ranks."""

from __future__ import annotations

import torch

from strategies.distribution.communicator import Communicator
from strategies.distribution.regions import Regions


def gather_image(comm: Communicator, regions: Regions, image: torch.Tensor) -> torch.Tensor | None:
    """The whole image of a batch of one on rank 0: every rank sends the pixels of its own tiles there."""
    rank, ranks = comm.rank, comm.ranks
    parts = [regions.rectangles(r, 0) for r in range(ranks)]
    sizes = [sum((p.y1 - p.y0) * (p.x1 - p.x0) for p in of_rank) for of_rank in parts]
    own = [image[p.y0 : p.y1, p.x0 : p.x1].reshape(-1, 3) for p in parts[rank] if rank != 0]
    send = torch.cat([image.new_empty((0, 3)), *own])
    received = comm.exchange(
        "render", send, [len(send), *[0] * (ranks - 1)], [0, *sizes[1:]] if rank == 0 else [0] * ranks
    ).wait()
    if rank != 0:
        return None
    for of_rank, rows in zip(parts[1:], received.split(sizes[1:]), strict=True):
        pixels = rows.split([(p.y1 - p.y0) * (p.x1 - p.x0) for p in of_rank])
        for p, part in zip(of_rank, pixels, strict=True):
            image[p.y0 : p.y1, p.x0 : p.x1] = part.view(p.y1 - p.y0, p.x1 - p.x0, 3)
    return image
