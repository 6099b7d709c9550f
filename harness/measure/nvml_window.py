"""What the counters of GPUs say between two moments, and what that means for a measurement. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KIB = 1024
MIN_JUDGED_BYTES = 64 << 20
"""Traffic of a GPU below which counters and ledger are not compared: what else crosses a link would decide."""
MESSAGE_BOUNDS = (0.98, 1.05)
"""Of wire over ledger, where ranks send messages."""
LOAD_STORE_BOUNDS = (0.85, 1.15)
"""The same where GPUs load and store each other's memory: the ledger then counts whole 32-byte sectors."""
MAX_HOST_SHARE = 0.01
"""On `link: host` NVLink may carry so much of the ledger."""
MAX_THROTTLED_SHARE = 0.01
"""Of a window's time, by any one reason."""

THROTTLES = ("power", "thermal", "sync_boost", "board_limit", "reliability", "sw_thermal", "hw_thermal", "power_brake")
"""Reasons for a lower clock with a nanosecond counter; waiting for work is none of them."""
ERRORS = ("ecc_uncorrected", "ecc_corrected", "link_replay", "link_recovery", "link_crc")
_WRAPS = {"pcie_sent": 1 << 32, "pcie_received": 1 << 32}
"""Counters that begin again at this many bytes on some devices."""


@dataclass(frozen=True)
class Reading:
    """One GPU at one moment.

    seconds: of a monotonic clock. counters: cumulative, by name, those alone that the device has: nvlink_sent and
    nvlink_received (data), nvlink_raw_sent and nvlink_raw_received (with protocol), pcie_sent and pcie_received, all
    in bytes; energy in mJ; THROTTLES in ns; ERRORS. sm_hertz: None where it is not told. reasons: NVML's bit mask of
    why the clock is not higher. processes: pids on the GPU, as NVML numbers them; None where it does not tell.
    """

    seconds: float
    counters: Mapping[str, int]
    sm_hertz: float | None = None
    reasons: int = 0
    processes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Window:
    """One GPU from one reading to another. between: further readings. rates: GPM's averages, by name."""

    first: Reading
    last: Reading
    between: tuple[Reading, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.last.seconds - self.first.seconds

    def delta(self, counter: str) -> int | None:
        """By how much a counter rose; None where it is absent or went backwards.

        PCIe's may have wrapped more than once: a lower bound.
        """
        before, after = self.first.counters.get(counter), self.last.counters.get(counter)
        if before is None or after is None:
            return None
        rise = after - before
        return rise if rise >= 0 else rise + _WRAPS[counter] if counter in _WRAPS else None

    @property
    def joules(self) -> float | None:
        used = self.delta("energy")
        return None if used is None else used * 1e-3

    @property
    def clocks(self) -> list[float]:
        """SM clock at every reading that told it, Hz."""
        readings = (self.first, *self.between, self.last)
        return [reading.sm_hertz for reading in readings if reading.sm_hertz is not None]

    @property
    def throttled(self) -> dict[str, float]:
        """Seconds that the clock was held down, by reason; those alone that occurred."""
        rises = {reason: self.delta(reason) for reason in THROTTLES}
        return {reason: rise * 1e-9 for reason, rise in rises.items() if rise}

    def foreign(self, own: Sequence[int]) -> int:
        """The most processes that were on the GPU at once and are not the job's own pids.

        In a container NVML may number processes as another namespace does: then none of the own is found, and as many
        as the job has are taken to be its own.
        """
        worst = 0
        for reading in (self.first, *self.between, self.last):
            found = set(reading.processes or ())
            others = len(found - set(own))
            worst = max(worst, others if found & set(own) else others - len(own))
        return worst

    def disturbance(self, own: Sequence[int]) -> str | None:
        """Why this window's times must not be used; None when nothing was in their way. own: the job's pids."""
        for reason, seconds in self.throttled.items():
            if seconds > MAX_THROTTLED_SHARE * self.seconds:
                return f"clocks were held down ({reason}) for {seconds / self.seconds:.1%} of the time, expected 1 %"
        for error in ("ecc_uncorrected", "link_replay", "link_recovery"):
            if rise := self.delta(error):
                return f"{rise} errors of kind {error}, expected none"
        if others := self.foreign(own):
            return f"{others} foreign process{'es' if others > 1 else ''} on the GPU, expected none"
        return None


@dataclass(frozen=True)
class Drift:
    """NVLink data of an idle GPU, bytes a second."""

    sent: float = 0.0
    received: float = 0.0

    @classmethod
    def of(cls, idle: Window) -> Drift:
        """What an idle window shows."""
        if idle.seconds <= 0:
            return cls()
        return cls((idle.delta("nvlink_sent") or 0) / idle.seconds, (idle.delta("nvlink_received") or 0) / idle.seconds)


@dataclass(frozen=True)
class WireVerdict:
    """Wire against ledger.

    sent: bytes each GPU's counter saw leave, idle drift taken off; empty without counters. ratio: all of them over the
    ledger; None without counters or traffic. problem: why the cell is invalid. unjudged: why there is no judgement.
    """

    sent: tuple[float, ...] = ()
    ratio: float | None = None
    problem: str | None = None
    unjudged: str | None = None


def judge_wire(
    windows: Sequence[Window],
    sent: Sequence[int],
    received: Sequence[int],
    drift: Sequence[Drift],
    link: str = "native",
    bounds: tuple[float, float] = MESSAGE_BOUNDS,
) -> WireVerdict:
    """Compare what each GPU's NVLink counters saw with what the ledger says it sent and received over the link.

    All sequences by GPU. sent, received: bytes of payload and metadata that the engine moved over the link, own records
    left out. link: of the cell; on `host` NVLink must have carried next to nothing.
    """
    seen: list[tuple[float, float]] = []
    for window, idle in zip(windows, drift, strict=True):
        out, back = window.delta("nvlink_sent"), window.delta("nvlink_received")
        if out is None or back is None:
            return WireVerdict(unjudged="no NVLink counters")
        seen.append((out - idle.sent * window.seconds, back - idle.received * window.seconds))
    out_bytes = tuple(out for out, _ in seen)
    ratio = sum(out_bytes) / sum(sent) if sum(sent) else None
    least = min((*sent, *received), default=0)
    if least < MIN_JUDGED_BYTES:
        return WireVerdict(out_bytes, ratio, unjudged=f"{least / 2**20:.3g} MiB a GPU, judged from 64 MiB on")
    for gpu, measured in enumerate(seen):
        for word, wire, ledger in zip(("sent", "received"), measured, (sent[gpu], received[gpu]), strict=True):
            share = wire / ledger
            if link == "host" and share > MAX_HOST_SHARE:
                problem = f"place {gpu} {word} {share:.1%} of the ledger's bytes over NVLink, expected under 1 %"
                return WireVerdict(out_bytes, ratio, problem)
            if link != "host" and not bounds[0] <= share <= bounds[1]:
                problem = f"place {gpu} {word} {share:.3f} of the ledger's bytes, expected {bounds[0]} to {bounds[1]}"
                return WireVerdict(out_bytes, ratio, problem)
    return WireVerdict(out_bytes, ratio)
