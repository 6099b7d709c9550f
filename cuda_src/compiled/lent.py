"""Memory that the operators of one view lend one another, since no two of them need all of theirs at once.

What binning works with is free again when its lists are there. It then holds the gradients of the splats, which the
optimizer reads before the workspace's next view is binned, and behind them what the raster keeps of its segments;
before there are gradients, in their place, what the loss's two kernels leave one another. At 20 M Gaussians that is
half a gigabyte, and it is what keeps a step within 64 B a Gaussian beside parameters and moments.
"""

from __future__ import annotations

import torch

from cuda_src.workspace import Workspace

_ALIGNMENT = 256
_NAME = "compiled.lent"
_DERIVATIVES = 9
"""Values a pixel that the loss spreads back through its windows: three of each colour, DERIVATIVES of loss.cuh."""
_FIELD = 32
"""Derivatives lie in fields of so many columns of pixels; FIELD of loss.cuh."""


def lent(workspace: Workspace, *sizes: int) -> list[torch.Tensor]:
    """So many bytes each, one behind another from the beginning of the workspace's lent memory on, in this order.

    Valid until the next `bin_splats`, `raster_forward` or `l1_ssim` with that workspace, but for what the raster has
    behind the gradients, which `l1_ssim` of an image of its camera's size leaves alone. The first of them stay where
    they are, and keep what they hold, if memory is lent again with more behind them and `lent_bytes` stays the same.
    """
    return laid_out(workspace, _NAME, *sizes)


def laid_out(workspace: Workspace, name: str, *sizes: int) -> list[torch.Tensor]:
    """So many bytes each, one behind another in the buffer of that name."""
    whole = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    parts = workspace.take(name, (sum(whole),), torch.uint8).split(whole)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def loss_bytes(height: int, width: int) -> int:
    """What `l1_ssim` works with for an image of that size."""
    return _DERIVATIVES * height * (-(-width // _FIELD) * _FIELD) * torch.float32.itemsize


def lent_bytes(workspace: Workspace) -> int:
    """All that can be lent now. Memory that has grown may begin where it did, and yet not hold what it held."""
    return workspace.capacity(_NAME, torch.uint8)
