"""Memory that the operators of one view lend one another, since no two of them need all of theirs at once.

What binning works with is free again when its lists are there, and then holds what the raster keeps of its segments and
the gradients of the splats, which the optimizer reads before the workspace's next view is binned. At 20 M Gaussians
that is half a gigabyte, and it is what keeps a step within 64 B a Gaussian beside parameters and moments.
"""

from __future__ import annotations

import torch

from cuda_src.workspace import Workspace

_ALIGNMENT = 256
_NAME = "compiled.lent"


def lent(workspace: Workspace, *sizes: int) -> list[torch.Tensor]:
    """So many bytes each, one behind another from the beginning of the workspace's lent memory on, in this order.

    Valid until the next `bin_splats` or `raster_forward` with that workspace. The first of them stay where they are,
    and keep what they hold, if the memory is lent again with more behind them and `lent_bytes` stays what it was.
    """
    whole = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    parts = workspace.take(_NAME, (sum(whole),), torch.uint8).split(whole)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def lent_bytes(workspace: Workspace) -> int:
    """All that can be lent now. Memory that has grown may begin where it did, and yet not hold what it held."""
    return workspace.capacity(_NAME, torch.uint8)
