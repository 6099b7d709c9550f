"""Adam on the rows that a step has touched: a thread a number, so that neighbours read neighbours."""

from __future__ import annotations

import math

import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from cuda_src.portable.adam import powers_by_views
from cuda_src.portable.on_cuda.runtime import blocks_for, cuda, kernel
from cuda_src.portable.scalar import f32
from cuda_src.portable.scalar_adam import adam, usable_gradient

_THREADS = 256
_COLUMNS = layout.PARAMETERS


@kernel
def update_rows(parameters, moment1, moment2, rows, gradients, views, rates, powers, correction):
    number = cuda.grid(1)
    u, column = number // _COLUMNS, number % _COLUMNS
    if u < rows.size:
        row, c = rows[u], powers[views[u]]
        keep1, take1, keep2, take2, share, root, epsilon = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        parameters[row, column], moment1[row, column], moment2[row, column] = adam(
            parameters[row, column],
            moment1[row, column],
            moment2[row, column],
            usable_gradient(gradients[u, column]) * share,
            rates[column] * root,
            keep1,
            take1,
            keep2,
            take2,
            correction,
            epsilon,
        )


def adam_rows(
    kernels: KernelSet,
    parameters: torch.Tensor,
    moment1: torch.Tensor,
    moment2: torch.Tensor,
    rows: torch.Tensor,
    gradients: torch.Tensor,
    views: torch.Tensor,
    rates: torch.Tensor,
    images_seen: int,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """See `cuda_src.operators.adam_rows`. One read by the host: the most views of a row."""
    if not len(rows):
        return
    device = parameters.device
    powers = torch.from_numpy(powers_by_views(int(views.max()), beta1, beta2, epsilon, images_seen)).to(device)
    update_rows.launch(
        device, blocks_for(len(rows) * _COLUMNS, _THREADS), _THREADS, parameters, moment1, moment2, rows, gradients,
        views, rates, powers, f32(1 / math.sqrt(1 - beta2**images_seen)),
    )  # fmt: skip
