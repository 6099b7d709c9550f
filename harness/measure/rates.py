"""What a device can do at most, measured in the job whose floors rest on it: bandwidth of a copy, issue of warps."""

from __future__ import annotations

from time import perf_counter

import torch

from harness.measure.clock import synchronize
from harness.measure.floors import Rates
from harness.measure.statistics import median

COPY_BYTES = {"cuda": 4 << 30, "cpu": 64 << 20}
"""Of the source: many times what caches hold."""
COPIES = 7
SCHEDULERS = 4
"""Warp schedulers of a multiprocessor, each issuing at most one instruction a cycle (since Volta)."""


def measured_rates(device: torch.device, clock_hz: float | None) -> Rates:
    """Bandwidth of a copy now; issue rate at that SM clock, or at the device's highest without one."""
    return Rates(copy_bandwidth(device), issue_rate(device, clock_hz))


def copy_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Bytes/s of a large copy within the device's memory, bytes read and written together; median of several."""
    size = size or COPY_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source).copy_(source)
    seconds = []
    for _ in range(COPIES):
        synchronize(device)
        start = perf_counter()
        target.copy_(source)
        synchronize(device)
        seconds.append(perf_counter() - start)
    return 2 * size / median(seconds)


def issue_rate(device: torch.device, clock_hz: float | None) -> float | None:
    """Warp instructions/s that all schedulers together can issue; None for a CPU, or where no clock is known."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    clock = clock_hz or 1e3 * float(getattr(properties, "clock_rate", 0))
    return properties.multi_processor_count * SCHEDULERS * clock or None
