"""Tensors as the arrays that loops are compiled for."""

from __future__ import annotations

import numpy as np
import torch


def array(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a CPU tensor, read-only by intent: contiguous, copied only if it is not.

    Loops are compiled for contiguous arrays; another layout would be compiled anew in the middle of a step.
    """
    return tensor.detach().contiguous().numpy()
