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


def optional_map(
    values: torch.Tensor | None, absent: float, name: str, workspace: Workspace, dtype: torch.dtype = torch.float32
) -> tuple[np.ndarray, int]:
    """A map by pixel or tile, or its absence, as one flat array and the distance of its entries (0: one for all).

    So a loop reads both alike, with one compilation. name: of the workspace's buffer that holds `absent`.
    """
    if values is None:
        return workspace.take(name, (1,), dtype).fill_(absent).numpy(), 0
    return array(values).reshape(-1), 1
