"""When enough passes were measured, and how sure their median is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.suite.cell import Stop

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
MEDIAN_OVER_MEAN = 1.253
"""Standard error of the median over that of the mean, for normal samples: sqrt(pi / 2)."""

Samples = Sequence[float] | npt.NDArray[np.floating]


def median(samples: Samples) -> float:
    """The median; nan without samples."""
    return float(np.median(samples)) if len(samples) else float("nan")


def percentile(samples: Samples, percent: float) -> float:
    """Linear between the two nearest samples; nan without samples."""
    return float(np.percentile(samples, percent)) if len(samples) else float("nan")


def median_noise(samples: Samples) -> float:
    """Relative standard error of the median, robust: 1.4826 MAD 1.253 / sqrt(n) / median.

    Infinite with fewer than two samples (one says nothing of its noise) or a median of zero with any spread.
    """
    if len(samples) < 2:
        return float("inf")
    values = np.asarray(samples, dtype=np.float64)
    centre = float(np.median(values))
    deviation = float(np.median(np.abs(values - centre)))
    if deviation == 0.0:
        return 0.0
    if centre == 0.0:
        return float("inf")
    return MAD_TO_SIGMA * deviation * MEDIAN_OVER_MEAN / len(values) ** 0.5 / abs(centre)


def enough(samples: Samples, stop: Stop, seconds: float) -> bool:
    """Whether a series of measured passes may end.

    samples: seconds of the passes so far, warm-up left out. seconds: that measuring has taken. It ends at the cap,
    or once there are min_passes and the median's relative noise is within the bound.
    """
    if seconds >= stop.max_seconds:
        return True
    return len(samples) >= stop.min_passes and median_noise(samples) <= stop.noise
