"""Schedules of the training mathematics, all functions of the images the job has seen."""

from __future__ import annotations

import torch

from cuda_src import layout
from strategies.training.config import Training


def sh_degree(training: Training, images_seen: int) -> int:
    """Active degree of the spherical harmonics: grows by one every `sh_every` images (Kerbl et al. 2023)."""
    if training.sh_every == 0:
        return training.sh_degree
    return min(training.sh_degree, images_seen // training.sh_every)


def mean_rate(training: Training, extent: float, images_seen: int) -> float:
    """Learning rate of the means: exponential from the first to the final rate, times the scene's extent."""
    share = min(1.0, images_seen / training.rate_images)
    if training.mean_rate == 0 or training.mean_rate_final == 0:
        return extent * training.mean_rate * (1 - share)
    return extent * training.mean_rate ** (1 - share) * training.mean_rate_final**share


def column_rates(training: Training, extent: float, images_seen: int) -> torch.Tensor:
    """Learning rate of each parameter column at batch 1, [59] float64 on the CPU."""
    by_group = (
        mean_rate(training, extent, images_seen),
        training.log_scale_rate,
        training.quaternion_rate,
        training.opacity_rate,
        training.sh_dc_rate,
        training.sh_rest_rate,
    )
    # A step of a small scene takes little longer than to write 59 numbers one by one.
    return torch.tensor(by_group, dtype=torch.float64).mul_(training.rate_scale).index_select(0, _GROUP_OF_COLUMN)


_GROUPS = ("mean", "log_scale", "quaternion", "opacity", "sh_dc", "sh_rest")
_GROUP_OF_COLUMN = torch.empty(layout.PARAMETERS, dtype=torch.int64)
for _group, _columns in layout.PARAMETER_GROUPS.items():
    _GROUP_OF_COLUMN[_columns] = _GROUPS.index(_group)
