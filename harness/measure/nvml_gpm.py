"""GPM: how busy a GPU was between two samples. Rates, not bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pynvml

from harness.measure.nvml import answer

_PERCENT, _MIB = 0.01, float(1 << 20)
METRICS: dict[str, tuple[int, float]] = {
    "sm_utilization": (2, _PERCENT),
    "dram_utilization": (10, _PERCENT),
    "pcie_sent_rate": (20, _MIB),
    "pcie_received_rate": (21, _MIB),
    "nvlink_received_rate": (60, _MIB),
    "nvlink_sent_rate": (61, _MIB),
}
"""GPM number of each rate, and what turns it into a share of 1 or bytes a second."""


class GpmSampler:
    """Rates of some GPUs since `begin`. Devices without GPM have none."""

    def __init__(self, handles: Sequence[Any]):
        self._handles = handles
        self._first: list[Any] = [None] * len(handles)

    def begin(self) -> None:
        self._free()
        self._first = [self._sample(handle) for handle in self._handles]

    def end(self) -> list[dict[str, float]]:
        """By GPU, the averages since `begin`, those of METRICS that the device has."""
        found = []
        for handle, first in zip(self._handles, self._first, strict=True):
            last = None if first is None else self._sample(handle)
            found.append({} if last is None else _rates(first, last))
            if last is not None:
                answer("nvmlGpmSampleFree", last)
        self._free()
        return found

    def _sample(self, handle: Any) -> Any:
        support = answer("nvmlGpmQueryDeviceSupport", handle)
        if support is None or not support.isSupportedDevice:
            return None
        sample = answer("nvmlGpmSampleAlloc")
        return None if sample is None else answer("nvmlGpmSampleGet", handle, sample)

    def _free(self) -> None:
        for sample in self._first:
            if sample is not None:
                answer("nvmlGpmSampleFree", sample)
        self._first = [None] * len(self._handles)


def _rates(first: Any, last: Any) -> dict[str, float]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(METRICS)
    asked.sample1, asked.sample2 = first, last
    for place, (number, _) in enumerate(METRICS.values()):
        asked.metrics[place].metricId = number
    if answer("nvmlGpmMetricsGet", asked) is None:
        return {}
    rates = {}
    for place, (name, (_, unit)) in enumerate(METRICS.items()):
        if asked.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS:
            rates[name] = asked.metrics[place].value * unit
    return rates
