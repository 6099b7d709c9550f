"""Records as tidy frames: which records count, their measurements and their raw samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.records.load import canonical, samples_of
from harness.records.schema import Record
from harness.records.store import records
from harness.report.headlines import headlines
from harness.report.labels import scene_name
from harness.suite.cell import Cell

_STATISTICS = ("median", "mean", "last", "max", "sum")
"""Where a metric was recorded by several statistics, the report shows the first of these."""

_DEFAULTS = Cell.model_validate({"suite": ""}).model_dump(mode="json", by_alias=True)

_SHOWN = ["label", "title", "strategy", "ranks", "name", "variant", "series", "stand_in", "kernels", "order"]
"""Columns of cells that frames of one section carry along."""

_COLUMNS = ["record", "cell", "metric", "value", "unit", "statistic", "source", "images_seen", "stage", "place", "peer"]


@dataclass(frozen=True)
class Results:
    """What a report is made of.

    records: by the number that `record` columns hold. cells: one row a cell, in the report's order, with `label`,
    `title` (of its group) and its headline values. measurements: one row a measurement (columns of Measurement,
    `record`, `cell`), each metric by one statistic and source. samples: raw values with the same two keys.
    superseded: number of records left out because a newer one of the same cell exists. every: those too.
    """

    records: dict[int, tuple[Path, Record]]
    cells: pd.DataFrame
    measurements: pd.DataFrame
    samples: pd.DataFrame
    superseded: int
    every: tuple[Record, ...] = ()

    def of_cells(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a frame with a `cell` column, joined with the cell's label, title and axes, in report order."""
        return frame.join(self.cells[_SHOWN], on="cell").sort_values("order", kind="stable")

    def of_ok(self, *metrics: str) -> pd.DataFrame:
        """Measurements of these metrics, of records that ended ok."""
        ok = [number for number, (_, record) in self.records.items() if record.status == "ok"]
        frame = self.measurements
        return frame[frame["metric"].isin(metrics) & frame["record"].isin(ok)] if len(frame) else frame

    def first_ok(self) -> dict[int, int]:
        """By cell, in report order: the record of its first repeat that ended ok."""
        first: dict[int, int] = {}
        if self.measurements.empty:
            return first
        cells = self.measurements.drop_duplicates("record").set_index("record")["cell"]
        for number in sorted(cells.index, key=lambda n: self.records[n][1].repeat):
            if self.records[number][1].status == "ok":
                first.setdefault(int(cells[number]), int(number))
        return {int(cell): first[cell] for cell in self.cells.index if cell in first}


def read(folders: list[Path]) -> Results:
    """The newest record of each folder's cells, machine environments and repeats.

    A folder is a run: where two folders hold one cell measured with different code, both are kept, to be compared.
    """
    found = [(i, *of) for i, folder in enumerate(folders) for of in records(folder)]
    found = list({path.resolve(): (i, path, record) for i, path, record in reversed(found)}.values())[::-1]
    rows = pd.DataFrame([{"folder": i, **_row(record)} for i, _, record in found])
    if rows.empty:
        return Results({}, pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), 0)
    rows["record"] = range(len(rows))
    kept = _newest(_with_facts(rows))
    chosen = {int(number): found[number][1:] for number in kept["record"]}
    measurements = _measurements(kept, chosen)
    raw = _samples(kept, chosen)
    return Results(
        chosen,
        headlines(kept, measurements, raw),
        measurements,
        raw,
        len(found) - len(kept),
        tuple(record for _, _, record in found),
    )


def _row(record: Record) -> dict[str, Any]:
    """What identifies a record and says how it ran."""
    cell = _DEFAULTS | record.cell
    result = record.result
    facts = result.scene if result else None
    spec = cell["scene"]
    width, height = (facts.width, facts.height) if facts else (cell["size"] or (0, 0)) if spec.get("city") else (0, 0)
    return {
        "suite": record.suite,
        "run": record.run,
        "cell_id": record.cell_id,
        "code_id": record.code_id,
        "environment_id": record.environment_id,
        "repeat": record.repeat,
        "commit": record.commit,
        "machine": record.machine,
        "started": record.started,
        "seconds": record.seconds,
        "status": record.status,
        "reason": record.reason or "",
        "command": record.command,
        "scenario": cell["scenario"],
        "strategy": cell["strategy"],
        "name": cell["name"] or "",
        "options": canonical(cell["options"]),
        "start": cell.get("from") or "",
        "training": canonical(cell["training"]),
        "batch_rule": cell["training"].get("batch_rule") or "",
        "ranks": int(cell["ranks"]),
        "device": cell["device"],
        "engine": (result.engine if result else "") or cell["engine"],
        "kernels": (result.kernels if result else "") or cell["kernels"],
        "link": cell["link"],
        "precision": cell["precision"],
        "threads": int(cell["threads"]),
        "images": int(cell["images"]),
        "seed": int(cell["seed"]),
        "deterministic": "deterministic" if cell["deterministic"] else "as usual",
        "batch": int(cell["batch"]),
        "scene": scene_name(spec, facts.name if facts else None),
        "gaussians": int(facts.gaussians if facts else spec.get("gaussians") or 0),
        "width": int(width),
        "height": int(height),
        "stand_in": bool(facts and facts.synthetic_stand_in),
        "opened": facts is not None,
        "workload": canonical([cell["scenario"], spec, cell["size"], cell["batch"]]),
    }


def _with_facts(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of cells that never opened their scene take what others found in it: they belong to the same group."""
    facts = ["scene", "gaussians", "width", "height", "stand_in"]
    opened = rows[rows["opened"]].drop_duplicates(["machine", "workload"]).set_index(["machine", "workload"])[facts]
    found = rows[["machine", "workload"]].join(opened, on=["machine", "workload"])[facts]
    borrow = ~rows["opened"] & found["scene"].notna()
    rows = rows.copy()
    for fact in facts:
        rows[fact] = rows[fact].where(~borrow, found[fact]).astype(rows[fact].dtype)
    return rows


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each folder's cells and environments the records of the code that ran last, of each repeat the last record.

    A column `cell` numbers the cells: what ran with other code is another one.
    """
    rows = rows.sort_values(["started", "record"], kind="stable")
    cell = rows.groupby(["folder", "cell_id", "environment_id"], sort=False)
    rows = rows[rows["code_id"] == cell["code_id"].transform("last")]
    same = ["cell_id", "environment_id", "code_id"]
    rows = rows.drop_duplicates([*same, "repeat"], keep="last").sort_values("record")
    return rows.assign(cell=rows.groupby(same, sort=False).ngroup())


def _measurements(rows: pd.DataFrame, chosen: dict[int, tuple[Path, Record]]) -> pd.DataFrame:
    """Measurements of the kept records; of each metric one statistic, and modelled values rather than measured.

    A virtual engine runs its ranks in turn: what it measured as wall time is no statement about ranks side by side.
    """
    # A list a column, as in records.load.
    columns: dict[str, list[Any]] = {column: [] for column in _COLUMNS}
    for number, cell in zip(rows["record"], rows["cell"], strict=True):
        result = chosen[number][1].result
        measured = [m for m in result.measurements if m.source != "published"] if result else []
        columns["record"] += [number] * len(measured)
        columns["cell"] += [cell] * len(measured)
        for column in _COLUMNS[2:]:
            columns[column] += [getattr(measurement, column) for measurement in measured]
    frame = pd.DataFrame(columns)
    preference = frame["statistic"].map({s: i for i, s in enumerate(_STATISTICS)}).fillna(len(_STATISTICS))
    preference += 100 * (frame["source"] != "modelled")
    frame = frame.assign(preference=preference).sort_values(["preference"], kind="stable")
    same = ["record", "metric", "images_seen", "stage", "place", "peer"]
    return frame.drop_duplicates(same).sort_index().drop(columns="preference").reset_index(drop=True)


def _samples(rows: pd.DataFrame, chosen: dict[int, tuple[Path, Record]]) -> pd.DataFrame:
    numbered = zip(rows["record"], rows["cell"], strict=True)
    return samples_of((*chosen[number], {"record": number, "cell": cell}) for number, cell in numbered)
