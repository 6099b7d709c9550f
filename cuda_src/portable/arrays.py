"""Tensors as the arrays that loops are compiled for."""

from __future__ import annotations

import numpy as np
import torch

from cuda_src.workspace import Workspace


def array(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a CPU tensor, read-only by intent: contiguous, copied only if it is not.

    Loops are compiled for contiguous arrays; another layout would be compiled anew in the middle of a step.
    """
    return tensor.detach().contiguous().numpy()


def flat_map(
    values: torch.Tensor | None, absent: float, name: str, workspace: Workspace, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, int]:
    """A map by pixel or tile, or its absence, as one flat tensor and the distance of its entries (0: one for all).

    So a kernel reads both alike, with one compilation. name: of the workspace's buffer that holds `absent`.
    """
    if values is None:
        return workspace.take(name, (1,), dtype).fill_(absent), 0
    return values.detach().to(dtype).contiguous().view(-1), 1


def flat_background(background: torch.Tensor | None, workspace: Workspace) -> tuple[torch.Tensor, int]:
    """One colour, or one a pixel, or black, as a flat tensor, and the distance of pixels in it (0: one for all)."""
    if background is None:
        return workspace.zeros("raster.no_background", (3,)), 0
    return background.detach().to(torch.float32).contiguous().view(-1), 3 if background.dim() == 3 else 0


def optional_map(
    values: torch.Tensor | None, absent: float, name: str, workspace: Workspace, dtype: torch.dtype = torch.float32
) -> tuple[np.ndarray, int]:
    """`flat_map` as an array."""
    flat, distance = flat_map(values, absent, name, workspace, dtype)
    return flat.numpy(), distance
