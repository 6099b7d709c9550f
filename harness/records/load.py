"""Records as tables: one row a measurement, one row a raw sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.records.schema import COLUMNS, Measurement, Record
from harness.records.store import SAMPLES, records

if TYPE_CHECKING:
    import pandas

_INTEGERS = ("ranks", "gpus", "batch", "seed", "repeat")
_NULLABLE_INTEGERS = ("gaussians", "width", "height", "images_seen", "place", "peer")
_FLOATS = ("value",)

SAMPLE_KEYS = ("run", "suite", "cell_id", "code_id", "environment_id", "strategy", "ranks", "repeat")
"""Columns of `samples` that come from the record."""
SAMPLE_COLUMNS = (
    "series",
    "pass",
    "index",
    "warmup",
    "images_seen",
    "stage",
    "place",
    "peer",
    "metric",
    "value",
    "unit",
)
"""Columns of `samples` that the worker wrote; a record without one of them gets nulls."""


def canonical(options: Any) -> str:
    """JSON with sorted keys and no spaces: equal options, equal text."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def load(*folders: Path | str) -> pandas.DataFrame:
    """Every measurement of the records at or below the folders, with exactly the columns of schema.COLUMNS.

    A record that measured nothing (skipped, failed) is one row whose metric is null. A folder without records gives
    an empty frame. UserError when a folder does not exist or a record is damaged.
    """
    return table_of(record for _, record in records(*folders))


def table_of(found: Iterable[Record]) -> pandas.DataFrame:
    """As `load`, of records that are at hand."""
    import pandas

    # A list a column: a mapping a row would hold all that rows have in common as many times.
    columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    for record in found:
        common = _common(record)
        measurements = record.result.measurements if record.result else []
        for column, values in columns.items():
            if column in common:
                values += [common[column]] * max(1, len(measurements))
            else:
                values += [getattr(measurement, column) for measurement in measurements] or [None]
    series = {name: pandas.Series(values, dtype=object).astype(_dtype(name)) for name, values in columns.items()}
    return pandas.DataFrame(series, columns=COLUMNS)


def rows_of(found: Iterable[Record]) -> Iterator[list[Any]]:
    """The rows of `table_of` one after another, in the order of COLUMNS; a value that is no number is null."""
    own = [(place, column) for place, column in enumerate(COLUMNS) if column in Measurement.__dataclass_fields__]
    for record in found:
        common = _common(record)
        row = [common.get(column) for column in COLUMNS]
        measurements = record.result.measurements if record.result else []
        if not measurements:
            yield row
        for measurement in measurements:
            filled = [*row]
            for place, column in own:
                value = getattr(measurement, column)
                filled[place] = None if value != value else value
            yield filled


def _dtype(column: str) -> Any:
    import pandas

    if column in _INTEGERS:
        return "int64"
    if column in _NULLABLE_INTEGERS:
        return "Int64"
    if column in _FLOATS:
        return "float64"
    # Before pandas 3 its strings turn None into "None" or comparisons into null; plain objects do neither.
    return "str" if int(pandas.__version__.split(".")[0]) >= 3 else object


def _common(record: Record) -> dict[str, Any]:
    """What all rows of a record share."""
    cell, result = record.cell, record.result
    scene = result.scene if result else None
    spec = cell.get("scene") or {}
    width, height = (cell.get("size") if spec.get("city") else None) or (None, None)
    return {
        "run": record.run,
        "suite": record.suite,
        "scenario": cell.get("scenario"),
        "cell_id": record.cell_id,
        "code_id": record.code_id,
        "environment_id": record.environment_id,
        "commit": record.commit,
        "machine": record.machine,
        "device": cell.get("device"),
        "engine": (result.engine if result else "") or cell.get("engine"),
        "link": cell.get("link"),
        "kernels": (result.kernels if result else "") or cell.get("kernels"),
        "strategy": cell.get("strategy"),
        "options": canonical(cell.get("options", {})),
        "scene": scene.name if scene else spec.get("city") or Path(spec.get("path") or "").name or None,
        "gaussians": scene.gaussians if scene else spec.get("gaussians"),
        "width": scene.width if scene else width,
        "height": scene.height if scene else height,
        "ranks": cell.get("ranks", 1),
        "gpus": record.gpus,
        "batch": cell.get("batch", 1),
        "seed": cell.get("seed", 0),
        "repeat": record.repeat,
        "status": record.status,
        "reason": record.reason,
        "name": cell.get("name"),
    }


def samples(*folders: Path | str) -> pandas.DataFrame:
    """Every raw sample of the records at or below the folders: SAMPLE_KEYS, then SAMPLE_COLUMNS."""
    return samples_of((folder, record, {}) for folder, record in records(*folders))


def samples_of(found: Iterable[tuple[Path, Record, Mapping[str, Any]]]) -> pandas.DataFrame:
    """As `samples`, of records given with their folders; the mapping holds further columns, of one value each.

    UserError for samples that are damaged.
    """
    import pandas
    import pyarrow
    from pyarrow import parquet

    tables, lengths = [], []
    columns: dict[str, list[Any]] = {}
    for folder, record, more in found:
        path = folder / SAMPLES
        if not path.exists():
            continue
        try:
            with parquet.ParquetFile(path) as file:
                table = file.read()
        except Exception as error:  # pyarrow raises many types for a damaged file
            raise UserError(f"cannot be read as Parquet ({error}); the samples are damaged", path) from None
        if len(table):
            tables.append(table.replace_schema_metadata())
            lengths.append(len(table))
            common = _common(record)
            for key, value in {**more, **{key: common[key] for key in SAMPLE_KEYS}}.items():
                columns.setdefault(key, []).append(value)
    if not tables:
        return pandas.DataFrame(columns=[*SAMPLE_KEYS, *SAMPLE_COLUMNS])
    frame = pyarrow.concat_tables(tables, promote_options="permissive").to_pandas()
    for key, values in columns.items():
        frame[key] = pandas.Series(values).repeat(lengths).to_numpy()
    named = [*SAMPLE_KEYS, *SAMPLE_COLUMNS]
    return frame.reindex(columns=[*named, *(column for column in frame.columns if column not in named)])
