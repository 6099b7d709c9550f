"""What the places have rendered of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from cuda_src.operators import Bins, Raster, Splats


@dataclass(frozen=True)
class Frame:
    """A place's part of a view. splats: what its inbox held. bins: of its own tiles.

    image: [H, W, 3] with background, zeros beyond its tiles until others' pixels are read into it.
    """

    splats: Splats
    bins: Bins
    raster: Raster
    image: torch.Tensor


Frames = Sequence[Mapping[int, Frame]]
"""By place, and by number in the batch of each view that the place has tiles of."""
