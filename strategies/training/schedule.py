"""Schedules of the training mathematics, all functions of the images the job has seen."""

from __future__ import annotations

import torch

from cuda_src import layout
from strategies.training.config import Training

_GROUPS = tuple(layout.PARAMETER_GROUPS)
_GROUP_OF_COLUMN = torch.empty(layout.PARAMETERS, dtype=torch.int64)
for _number, _columns in enumerate(layout.PARAMETER_GROUPS.values()):
    _GROUP_OF_COLUMN[_columns] = _number


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
    by_group = {
        "mean": mean_rate(training, extent, images_seen),
        "log_scale": training.log_scale_rate,
        "quaternion": training.quaternion_rate,
        "opacity": training.opacity_rate,
        "sh_dc": training.sh_dc_rate,
        "sh_rest": training.sh_rest_rate,
    }
    # Six numbers spread by one call: to write 59 one by one takes the host longer.
    rates = torch.tensor([by_group[group] * training.rate_scale for group in _GROUPS], dtype=torch.float64)
    return rates.index_select(0, _GROUP_OF_COLUMN)
