"""Cells as folders of records hold them: the repeats of each, and one value a repeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.errors import UserError
from harness.measure.statistics import median_noise
from harness.records.load import canonical
from harness.records.schema import Measurement, Record
from harness.records.store import SAMPLES, records
from harness.suite.cell import Cell
from harness.suite.identity import LEFT_OUT

DEFAULTS = Cell.model_validate({"suite": ""}).model_dump(mode="json", by_alias=True)
"""Values of the fields that a record of an older version does not name."""

_STATISTICS = ("median", "mean", "last", "max", "sum")
_SUMS = frozenset({"payload_bytes", "metadata_bytes"})


@dataclass(frozen=True)
class MeasuredCell:
    """One cell in one environment by one code. repeats: folder and record of each, in order."""

    repeats: tuple[tuple[Path, Record], ...]

    @property
    def first(self) -> Record:
        return self.repeats[0][1]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The cell's fields, those of its record over today's defaults."""
        return DEFAULTS | self.first.cell

    @property
    def key(self) -> tuple[str, str]:
        return self.first.cell_id, self.first.environment_id

    @property
    def ok(self) -> list[Record]:
        return [record for _, record in self.repeats if record.status == "ok"]

    @property
    def trouble(self) -> str | None:
        """Status and reason of the first repeat that did not end ok."""
        for _, record in self.repeats:
            if record.status != "ok":
                return f"{record.status}: {record.reason}" if record.reason else record.status
        return None

    @property
    def label(self) -> str:
        """The case's name, or what tells the cell from others at a glance."""
        return str(self.settings["name"] or self.described())

    def described(self, without: str | None = None) -> str:
        """Strategy, ranks, options and batch; without: a field that is left out."""
        settings = self.settings
        words = [settings["strategy"]] if without != "strategy" else []
        if without != "ranks":
            words.append(f"{settings['ranks']} rank{'s' if settings['ranks'] != 1 else ''}")
        if without != "strategy":
            words += [f"{k}={v}" for k, v in settings["options"].items() if f"options.{k}" != without]
        if settings["batch"] != 1 and without != "batch":
            words.append(f"batch {settings['batch']}")
        return ", ".join(words) or str(settings["name"] or settings["scenario"])

    @property
    def scene(self) -> str:
        """Scene, Gaussians and image size, to tell cells of equal labels apart."""
        scene, size = self.settings["scene"], self.settings["size"]
        name = scene.get("city") or Path(scene.get("path") or "").name
        parts = [name, str(scene.get("gaussians") or ""), "x".join(map(str, size)) if size else ""]
        return " ".join(part for part in parts if part)

    def values(self, metric: str, stage: str | None = None, statistic: str | None = None) -> list[float]:
        """The metric's value of each repeat that ended ok and has one."""
        found = (value_of(record, metric, stage, statistic) for record in self.ok)
        return [value for value in found if value is not None]

    def source(self, metric: str) -> str | None:
        """Whether it was measured or modelled; None where no repeat has it."""
        return next((m.source for r in self.ok if r.result for m in r.result.measurements if m.metric == metric), None)

    def stages(self, metric: str) -> list[str]:
        """Stages that have the metric, in order of appearance."""
        named = (m.stage for r in self.ok if r.result for m in r.result.measurements if m.metric == metric)
        return list(dict.fromkeys(stage for stage in named if stage))

    @property
    def workload(self) -> str | None:
        """Hash of cameras, images and Gaussians; None where no repeat opened its scene."""
        return next((r.result.scene.workload_hash for _, r in self.repeats if r.result and r.result.scene), None)

    @cached_property
    def noise(self) -> float | None:
        """Relative noise of the median pass, the largest of the repeats; None where there are no passes."""
        found = [noise for folder, record in self.repeats if record.status == "ok" and (noise := _noise(folder))]
        return max(found, default=None)


def read(folders: Iterable[Path], every_code: bool = False) -> list[MeasuredCell]:
    """The cells of the records at or below the folders, as `grouped`."""
    return grouped(records(*folders), every_code)


def grouped(found: Iterable[tuple[Path, Record]], every_code: bool = False) -> list[MeasuredCell]:
    """Records, each with its folder, as cells, in the order in which they first ran; of each repeat the newest record.

    every_code: a cell is there once for each code that measured it; otherwise with the code that ran last.
    """
    groups: dict[tuple[str, ...], dict[int, tuple[Path, Record]]] = {}
    for folder, record in sorted(found, key=lambda one: one[1].started):
        repeats = groups.setdefault((record.cell_id, record.environment_id, record.code_id), {})
        repeats[record.repeat] = folder, record
    cells = [MeasuredCell(tuple(repeats[i] for i in sorted(repeats))) for repeats in groups.values()]
    if not every_code:
        newest: dict[tuple[str, str], MeasuredCell] = {}
        for cell in sorted(cells, key=lambda cell: max(record.started for _, record in cell.repeats)):
            newest[cell.key] = cell
        cells = [cell for cell in cells if newest[cell.key] is cell]
    return cells


def value_of(record: Record, metric: str, stage: str | None = None, statistic: str | None = None) -> float | None:
    """One value of a record: of the whole job; else of the place that has most; bytes are summed over places.

    Of several by images seen, the last. statistic: otherwise the median before others. None where it was not measured.
    """
    found = [m for m in (record.result.measurements if record.result else ()) if m.metric == metric]
    found = [m for m in found if m.source != "published" and (stage is None or m.stage == stage)]
    found = [m for m in found if statistic is None or m.statistic == statistic]
    if metric in _SUMS:
        return sum(m.value for m in found) if found else None
    if stage is None:
        found = [m for m in found if m.stage is None]
    whole = [m for m in found if m.place is None]
    if not whole:
        return max((m.value for m in found), default=None)
    return min(whole, key=_preference).value


def _preference(measurement: Measurement) -> tuple[int, int]:
    statistic = measurement.statistic
    rank = _STATISTICS.index(statistic) if statistic in _STATISTICS else len(_STATISTICS)
    return rank, -(measurement.images_seen or 0)


def _noise(folder: Path) -> float | None:
    """Relative noise of the median of the measured passes beside a record."""
    path = folder / SAMPLES
    if not path.exists():
        return None
    try:
        table = pq.read_table(path).to_pydict()
    except Exception as error:  # pyarrow raises many types for a damaged file.
        raise UserError(f"cannot be read as Parquet ({error}); the samples are damaged", path) from None
    rows = zip(*(table.get(key, ()) for key in ("series", "warmup", "metric", "value")), strict=False)
    passes = [
        value
        for series, warm_up, metric, value in rows
        if series == "passes" and not warm_up and metric in ("step_seconds", "render_seconds")
    ]
    return median_noise(passes) if passes else None


def fields(settings: dict[str, Any], without: tuple[str, ...] = ()) -> str:
    """Canonical text of the fields that decide a cell's result, some (dotted) left out: cells of equal text compare."""
    kept = {key: value for key, value in settings.items() if key not in LEFT_OUT and key not in without}
    kept["scene"] = {k: v for k, v in kept.get("scene", {}).items() if k not in ("stand_in", "optional")}
    for path in without:
        group, _, key = path.partition(".")
        if key and isinstance(kept.get(group), dict):
            kept[group] = {k: v for k, v in kept[group].items() if k != key}
    return canonical(kept)
