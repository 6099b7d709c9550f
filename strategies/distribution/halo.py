"""Pixels that a region's loss needs from other ranks: SSIM's gradient reaches 10 px beyond the region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from strategies.distribution.communicator import Communicator

SSIM_HALO = 10
"""5 px for the value's window and 5 more for the gradient's."""


class PixelOwners(Protocol):
    """Any partition of a batch's images into pixels of ranks, known to all of them."""

    def pixel_owner(self, view: int) -> torch.Tensor:
        """Rank of each pixel of that view of the batch, [H, W] int64."""
        ...


def dilate(mask: torch.Tensor, by: int) -> torch.Tensor:
    """A boolean [H, W] mask grown by `by` pixels in both directions, corners included."""
    size = 2 * by + 1
    grown = F.max_pool2d(mask[None, None].float(), (1, size), stride=1, padding=(0, by))
    return F.max_pool2d(grown, (size, 1), stride=1, padding=(by, 0))[0, 0] > 0


def fill_halo(comm: Communicator, stage: str, regions: PixelOwners, images: Sequence[torch.Tensor]) -> None:
    """Bring in, for each image of a batch, the other ranks' pixels within SSIM_HALO of this rank's region.

    images: by view [H, W, 3] contiguous, this rank's pixels filled in; the halo is written in place. Nothing but
    pixel values is sent: positions follow from the regions, which all ranks know.
    """
    rank, others = comm.rank, range(comm.ranks)
    gives: dict[int, list[torch.Tensor]] = {}
    takes: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for view, image in enumerate(images):
        owner = regions.pixel_owner(view)
        if not bool((owner == rank).any()):
            continue
        mine, near_me = owner == rank, dilate(owner == rank, SSIM_HALO)
        for other in others:
            theirs = owner == other
            if other == rank or not bool(theirs.any()):
                continue
            give, take = mine & dilate(theirs, SSIM_HALO), theirs & near_me
            if bool(give.any()):
                gives.setdefault(other, []).append(image[give])
            if bool(take.any()):
                takes.setdefault(other, []).append((image, take))
    send = {other: torch.cat(parts) for other, parts in gives.items()}
    expected = {other: sum(int(mask.sum()) for _, mask in parts) for other, parts in takes.items()}
    for source, rows in comm.neighbours(stage, send, expected, like=images[0].view(-1, 3)).items():
        lengths = [int(mask.sum()) for _, mask in takes[source]]
        for (image, mask), part in zip(takes[source], rows.split(lengths), strict=True):
            image[mask] = part
