"""A recording of counters around known traffic, made on a real machine and replayed where there is none.

python -m harness.measure.nvml_trace tests/harness/measure/traces/h200x2.jsonl

A file of JSON lines: a header ({"trace": 1, "gpus": product names, "driver": version}), then a moment a line: its name,
the bytes that each GPU sent to others since the moment before, and a reading a GPU. Pids and UUIDs are left out.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.measure.nvml_window import Reading, Window

FORMAT = 1
IDLE_SECONDS = 0.5
LARGE_BYTES, LARGE_COPIES = 1 << 30, 16
LARGE_SECONDS = 0.3
"""For which copies go on, so many at a time: a GPU's energy moves some ten times a second."""
SMALL_BYTES, SMALL_COPIES = 1 << 20, 10


@dataclass(frozen=True)
class Moment:
    """name: of what happened since the moment before. sent: bytes by GPU. readings: by GPU."""

    name: str
    sent: tuple[int, ...]
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Trace:
    """gpus: product names. moments: in order."""

    gpus: tuple[str, ...]
    driver: str
    moments: tuple[Moment, ...]

    def windows(self, name: str) -> tuple[Window, ...]:
        """By GPU, the window that ends at the moment of that name. KeyError without it."""
        for before, after in zip(self.moments, self.moments[1:], strict=False):
            if after.name == name:
                return tuple(Window(a, b) for a, b in zip(before.readings, after.readings, strict=True))
        raise KeyError(name)


def replay(file: Path) -> Trace:
    """The trace in that file; UserError where it is not one."""
    try:
        header, *lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if header["trace"] != FORMAT:
            raise UserError(f"trace: value {header['trace']!r}; expected {FORMAT}", file, 1)
        moments = []
        for line in lines:
            readings = tuple(
                Reading(r["seconds"], r["counters"], r["sm_hertz"], r["reasons"]) for r in line["readings"]
            )
            moments.append(Moment(line["moment"], tuple(line["sent"]), readings))
        return Trace(tuple(header["gpus"]), header["driver"], tuple(moments))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"expected a recording of NVML counters ({type(error).__name__}: {error})", file) from None


def record(trace: Trace, file: Path) -> None:
    """Write the trace."""
    lines = [json.dumps({"trace": FORMAT, "gpus": list(trace.gpus), "driver": trace.driver})]
    for moment in trace.moments:
        readings = [
            {"seconds": r.seconds, "counters": dict(r.counters), "sm_hertz": r.sm_hertz, "reasons": r.reasons}
            for r in moment.readings
        ]
        lines.append(json.dumps({"moment": moment.name, "sent": list(moment.sent), "readings": readings}))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def capture() -> Trace:
    """Idle time, large copies from the first GPU to the second, small copies, work of one GPU alone; on this machine.

    With one GPU the copies stay on it, and no bytes are sent.
    """
    import pynvml
    import torch

    from harness.measure.nvml import Nvml, cuda_uuid

    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    with Nvml([cuda_uuid(device) for device in devices]) as nvml:
        names = tuple(pynvml.nvmlDeviceGetName(handle) for handle in nvml.handles)
        source = torch.ones(LARGE_BYTES, dtype=torch.uint8, device=devices[0])
        target = torch.empty(LARGE_BYTES, dtype=torch.uint8, device=devices[min(1, len(devices) - 1)])
        target[:SMALL_BYTES].copy_(source[:SMALL_BYTES])  # Sets the way between the two up.
        between = source.device != target.device
        moments: list[Moment] = []

        def moment(name: str, sent: int = 0) -> None:
            for device in devices:
                torch.cuda.synchronize(device)
            by_gpu = (sent if between else 0, *[0] * (len(devices) - 1))
            moments.append(Moment(name, by_gpu, nvml.read()))

        moment("begin")
        time.sleep(IDLE_SECONDS)
        moment("idle")
        copied, begun = 0, time.monotonic()
        while time.monotonic() - begun < LARGE_SECONDS:
            for _ in range(LARGE_COPIES):
                target.copy_(source)
            torch.cuda.synchronize(source.device)
            copied += LARGE_COPIES * LARGE_BYTES
        moment("large", copied)
        for _ in range(SMALL_COPIES):
            target[:SMALL_BYTES].copy_(source[:SMALL_BYTES])
        moment("small", SMALL_COPIES * SMALL_BYTES)
        for _ in range(100):
            source.add_(1)
        moment("alone")
        return Trace(names, pynvml.nvmlSystemGetDriverVersion(), tuple(moments))


if __name__ == "__main__":
    record(capture(), Path(sys.argv[1]))
