"""Adam on the rows that a step has touched."""

from __future__ import annotations

import math

import numpy as np
import torch

from cuda_src import layout
from cuda_src.operators import KernelSet
from cuda_src.portable.arrays import array
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import f32, loop
from cuda_src.portable.scalar_adam import adam, usable_gradient
from cuda_src.portable.threads import even_ranges, run_ranges


@loop
def _update_rows(lo, hi, parameters, moment1, moment2, rows, gradients, views, rates, powers, correction):
    for u in range(lo, hi):
        row = rows[u]
        p, m1, m2, g = parameters[row], moment1[row], moment2[row], gradients[u]
        c = powers[views[u]]
        keep1, take1, keep2, take2, share, root, epsilon = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        for column in range(layout.PARAMETERS):
            p[column], m1[column], m2[column] = adam(
                p[column],
                m1[column],
                m2[column],
                usable_gradient(g[column]) * share,
                rates[column] * root,
                keep1,
                take1,
                keep2,
                take2,
                correction,
                epsilon,
            )


def powers_by_views(most_views: int, beta1: float, beta2: float, epsilon: float, images_seen: int) -> np.ndarray:
    """Per number of views, [most_views + 1, 7] float32; in float64 first: 1 - 0.999 has few digits in float32."""
    v = np.maximum(np.arange(most_views + 1, dtype=np.float64), 1.0)
    root = np.sqrt(v)
    columns = (
        beta1**v,
        1 - beta1**v,
        beta2**v,
        1 - beta2**v,
        1 / v,
        root / (1 - beta1**images_seen),
        epsilon / root,
    )
    return np.stack(columns, axis=1).astype(np.float32)


@by_device
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
    """See `cuda_src.operators.adam_rows`."""
    if not len(rows):
        return
    arrays = (
        parameters.detach().numpy(),
        moment1.numpy(),
        moment2.numpy(),
        array(rows),
        array(gradients),
        array(views),
        array(rates),
        powers_by_views(int(views.max()), beta1, beta2, epsilon, images_seen),
        f32(1 / math.sqrt(1 - beta2**images_seen)),
    )
    run_ranges(
        kernels.threads,
        even_ranges(len(rows), kernels.threads),
        lambda _, lo, hi: _update_rows(lo, hi, *arrays),
    )
