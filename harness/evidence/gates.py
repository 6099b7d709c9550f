"""What a cell counts the same in every run: bytes, collectives, launches, instances, memory, loss and quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.evidence.measured import value_of
from harness.records.schema import METRICS, Record
from harness.report.quantities import NONE, difference
from harness.report.quantities import change as percent_change

COUNTS = ("collectives", "kernel_launches")
"""The program decides them alone: exact in every environment."""
BY_FLOATS = ("tile_instances", "peak_tensor_bytes")
BYTES = ("payload_bytes", "metadata_bytes")
"""By stage. They and BY_FLOATS follow what floating point calls visible: exact on one machine's CPU alone."""
ROUNDED = 2e-4
"""Of BYTES and BY_FLOATS elsewhere, relative, and on a GPU, where sums take another order in every run. Ten times what
other instructions of a CPU made of them (reports/cpu/gate/other_instructions.json)."""
LOSS_HERE, LOSS_ELSEWHERE = 1e-6, 1e-3
"""Six and three digits, relative; HERE on a CPU."""
PSNR_HERE, PSNR_ELSEWHERE = 0.05, 0.2
"""dB."""
_ROUNDING = 1e-12
"""Of a mean over steps, as records hold counts."""


@dataclass(frozen=True)
class Change:
    """A count that is not what it was. base, new: null where that side has none."""

    metric: str
    stage: str | None
    base: float | None
    new: float | None

    def __str__(self) -> str:
        name = f"{self.metric} of {self.stage}" if self.stage else self.metric
        if self.new is None or self.base is None:
            return f"{name} is not measured any more" if self.new is None else f"{name} is new"
        text = f"{name} {_shown(self.base, self.metric)} → {_shown(self.new, self.metric)}"
        if self.metric == "psnr":
            return f"{text} ({difference(self.new - self.base)} dB)"
        share = percent_change(self.new / self.base - 1) if self.base else NONE
        return text if share in ("0 %", NONE) else f"{text} ({share})"


@dataclass(frozen=True)
class OtherBits:
    """Gaussians of two deterministic cells that are not equal; base, new: their hashes."""

    base: str
    new: str

    def __str__(self) -> str:
        return f"Gaussians are not equal to the last bit (hash {self.base[:12]} → {self.new[:12]})"


def changes(
    base: Record, new: Record, same_environment: bool, repeats: Sequence[Record] = ()
) -> list[Change | OtherBits]:
    """The counts of `new` that are not those of `base`, in the order in which this file names them.

    repeats: further ones of `base`: a count in which they differ among themselves may be anything that they span.
    A stage that moved nothing before counts as zero bytes; other counts that only `new` has are no change: the older
    version did not take them.
    """
    found: list[tuple[Change, float]] = []
    same_sums = same_environment and base.cell["device"] == "cpu"
    for metric in BYTES:
        for stage in _stages(base, metric) | _stages(new, metric):
            tolerance = _ROUNDING if same_sums else ROUNDED
            before, after = value_of(base, metric, stage) or 0.0, value_of(new, metric, stage) or 0.0
            found.append((Change(metric, stage, before, after), tolerance * max(before, after)))
    for metric in (*COUNTS, *BY_FLOATS, "loss", "psnr"):
        old, now = value_of(base, metric), value_of(new, metric)
        if old is not None:
            found.append((Change(metric, None, old, now), _tolerance(metric, old, same_environment, same_sums)))
    told: list[Change | OtherBits] = [one for one, tolerance in found if not _within(one, tolerance, repeats)]
    hashes = [record.result.gaussians_hash if record.result else None for record in (base, new)]
    if same_environment and hashes[0] and hashes[1] and hashes[0] != hashes[1]:
        told.append(OtherBits(hashes[0], hashes[1]))
    return told


def _within(change: Change, tolerance: float, repeats: Sequence[Record]) -> bool:
    if change.base is None or change.new is None:
        return False
    others = (value_of(record, change.metric, change.stage) for record in repeats)
    bases = [change.base, *(value for value in others if value is not None)]
    return min(bases) - tolerance <= change.new <= max(bases) + tolerance


def _tolerance(metric: str, value: float, here: bool, same_sums: bool) -> float:
    """Largest difference that is none, in the metric's unit."""
    if metric == "psnr":
        return PSNR_HERE if here else PSNR_ELSEWHERE
    if metric == "loss":
        return abs(value) * (LOSS_HERE if same_sums else LOSS_ELSEWHERE)
    return abs(value) * (_ROUNDING if same_sums or metric in COUNTS else ROUNDED)


def _stages(record: Record, metric: str) -> dict[str, None]:
    """In order of appearance."""
    measured = record.result.measurements if record.result else ()
    return {m.stage: None for m in measured if m.metric == metric and m.stage}


def _shown(value: float, metric: str) -> str:
    """Whole counts as such; a mean or a loss with the digits that tell it from another."""
    unit = METRICS[metric][0]
    text = f"{value:,.0f}" if float(value).is_integer() and metric != "psnr" else f"{value:,.7g}"
    return f"{text} {unit}" if unit != "1" else text
