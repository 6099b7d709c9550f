"""NVML as witness: counters of the GPUs of a job, read by one process a node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import pynvml

from harness.measure.nvml_window import KIB, Reading

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field: the sum over all links."""

_P2P_READ, _P2P_NVLINK = 0, 2  # The bindings' own name for the first is a tuple.
_KIB_FIELDS = {"nvlink_sent": 138, "nvlink_received": 139, "nvlink_raw_sent": 140, "nvlink_raw_received": 141}
_PLAIN_FIELDS = {
    "pcie_sent": 197,
    "pcie_received": 198,
    "energy": 83,
    "power": 74,
    "thermal": 75,
    "sync_boost": 76,
    "board_limit": 77,
    "reliability": 79,
    "sw_thermal": 269,
    "hw_thermal": 270,
    "power_brake": 271,
    "ecc_corrected": 3,
    "ecc_uncorrected": 4,
}
_LINK_ERROR_FIELDS = {"link_replay": 161, "link_recovery": 162, "link_crc": 163}
# Numbers, not names: older bindings lack some of the names, and an older driver answers 'not supported' for the number.
FIELDS: dict[str, tuple[int, int]] = {
    **{name: (number, ALL_LINKS) for name, number in (_KIB_FIELDS | _LINK_ERROR_FIELDS).items()},
    **{name: (number, 0) for name, number in _PLAIN_FIELDS.items()},
}
"""Field number and scope of every counter of a Reading."""

_MEMBER_OF_TYPE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class NoNvmlError(Exception):
    """There is no NVML, or not the GPUs asked for."""


class Nvml:
    """An open session on some GPUs, given by UUID: NVML ignores CUDA_VISIBLE_DEVICES. Use it in a `with`, or close it.

    NoNvmlError where a GPU cannot be had. Counters that a device or driver lacks are left out of its readings.
    """

    def __init__(self, uuids: Sequence[str]):
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoNvmlError(str(error)) from error
        try:
            self.handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise NoNvmlError(str(error)) from error
        self._fields = [supported_fields(handle) for handle in self.handles]

    def __enter__(self) -> Nvml:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        pynvml.nvmlShutdown()

    def read(self) -> tuple[Reading, ...]:
        """Every GPU now."""
        return tuple(read_gpu(handle, fields) for handle, fields in zip(self.handles, self._fields, strict=True))


def cuda_uuid(device: Any) -> str:
    """The UUID by which NVML knows a CUDA device of torch."""
    import torch

    return f"GPU-{str(torch.cuda.get_device_properties(device).uuid).removeprefix('GPU-')}"


def supported_fields(handle: Any) -> tuple[str, ...]:
    """The counters of FIELDS that this GPU answers."""
    return tuple(_values(handle, tuple(FIELDS)))


def read_gpu(handle: Any, fields: Sequence[str]) -> Reading:
    """One GPU now; fields: the counters to ask for."""
    counters = _values(handle, fields)
    for name in _KIB_FIELDS.keys() & counters.keys():
        counters[name] *= KIB
    megahertz = answer("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM)
    reasons = answer("nvmlDeviceGetCurrentClocksEventReasons", handle)
    processes = answer("nvmlDeviceGetComputeRunningProcesses", handle)
    return Reading(
        seconds=time.monotonic(),
        counters=counters,
        sm_hertz=None if megahertz is None else megahertz * 1e6,
        reasons=int(reasons or 0),
        processes=None if processes is None else tuple(sorted(process.pid for process in processes)),
    )


def answer(function: str, *arguments: Any) -> Any:
    """What a function of NVML answers; None where the device, the driver or the bindings lack it."""
    try:
        return getattr(pynvml, function)(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def way_between(handle: Any, other: Any) -> str | None:
    """How a GPU reaches the memory of another: `nvlink`, `pcie` or, for all that the driver says, not at all."""
    for kind, way in ((_P2P_NVLINK, "nvlink"), (_P2P_READ, "pcie")):
        if answer("nvmlDeviceGetP2PStatus", handle, other, kind) == pynvml.NVML_P2P_STATUS_OK:
            return way
    return None


def pcie_rates(handle: Any) -> tuple[int, int] | None:
    """Bytes a second sent and received over PCIe in a sample of 20 ms each; None where there is no such counter."""
    sent = answer("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = answer("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return None if sent is None or received is None else (sent * KIB, received * KIB)


def _values(handle: Any, fields: Sequence[str]) -> dict[str, int]:
    """By name, those of the fields that have a value: each carries a return code of its own."""
    if not fields:
        return {}
    found = answer("nvmlDeviceGetFieldValues", handle, [FIELDS[name] for name in fields])
    values = {}
    for name, value in zip(fields, found or (), strict=False):
        member = _MEMBER_OF_TYPE.get(value.valueType)
        if value.nvmlReturn == pynvml.NVML_SUCCESS and member is not None:
            values[name] = int(getattr(value.value, member))
    return values
