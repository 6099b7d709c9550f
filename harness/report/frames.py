"""Records as tidy frames, one for each section of the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.measure.statistics import median_noise
from harness.records.load import canonical, samples
from harness.records.schema import Record
from harness.records.store import records
from harness.report.labels import GROUP, cell_labels, group_titles, scene_name
from harness.report.palette import strategy_order
from harness.suite.cell import Cell

_STATISTICS = ("median", "mean", "last", "max", "sum")
"""Where a metric was recorded by several statistics, the report shows the first of these."""

_DEFAULTS = Cell.model_validate({"suite": ""}).model_dump(mode="json", by_alias=True)


@dataclass(frozen=True)
class Results:
    """What a report is made of.

    records: by the number that `record` columns hold. cells: one row a cell, in the report's order, with `label`,
    `title` (of its group) and its headline values. measurements: one row a measurement (columns of Measurement,
    `record`, `cell`), each metric by one statistic and source. samples: raw values with the same two keys.
    superseded: number of records left out because a newer one of the same cell exists.
    """

    records: dict[int, tuple[Path, Record]]
    cells: pd.DataFrame
    measurements: pd.DataFrame
    samples: pd.DataFrame
    superseded: int

    def of_cells(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a frame with a `cell` column, joined with the cell's label, title and axes, in report order."""
        keys = self.cells[["label", "title", "strategy", "ranks", "name", "stand_in", "kernels", "order"]]
        return frame.join(keys, on="cell").sort_values("order", kind="stable")


def read(folders: list[Path]) -> Results:
    """The newest record of each cell, machine environment and repeat at or below the folders."""
    found = records(*folders)
    rows = pd.DataFrame([_row(record) for _, record in found])
    if rows.empty:
        return Results({}, pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), 0)
    rows["record"] = range(len(rows))
    kept = _newest(_with_facts(rows))
    chosen = {int(number): found[number] for number in kept["record"]}
    measurements = _measurements(kept, chosen)
    raw = _samples(kept, chosen)
    return Results(chosen, _cells(kept, measurements, raw), measurements, raw, len(found) - len(kept))


def _row(record: Record) -> dict[str, Any]:
    """What identifies a record and says how it ran."""
    cell = _DEFAULTS | record.cell
    result = record.result
    facts = result.scene if result else None
    spec = cell["scene"]
    width, height = (facts.width, facts.height) if facts else (cell["size"] or (0, 0)) if spec.get("city") else (0, 0)
    return {
        "suite": record.suite,
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
        "ranks": int(cell["ranks"]),
        "device": cell["device"],
        "engine": (result.engine if result else "") or cell["engine"],
        "kernels": (result.kernels if result else "") or cell["kernels"],
        "link": cell["link"],
        "precision": cell["precision"],
        "threads": int(cell["threads"]),
        "images": int(cell["images"]),
        "seed": int(cell["seed"]),
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
    """Of each cell and environment the records of the code that ran last, and of each repeat the last record.

    A column `cell` numbers the cells.
    """
    rows = rows.sort_values(["started", "record"], kind="stable")
    cell = rows.groupby(["cell_id", "environment_id"], sort=False)
    rows = rows[rows["code_id"] == cell["code_id"].transform("last")]
    rows = rows.drop_duplicates(["cell_id", "environment_id", "repeat"], keep="last").sort_values("record")
    return rows.assign(cell=rows.groupby(["cell_id", "environment_id"], sort=False).ngroup())


def _measurements(rows: pd.DataFrame, chosen: dict[int, tuple[Path, Record]]) -> pd.DataFrame:
    """Measurements of the kept records; of each metric one statistic, and modelled values rather than measured.

    A virtual engine runs its ranks in turn: what it measured as wall time is no statement about ranks side by side.
    """
    found = []
    for number, cell in zip(rows["record"], rows["cell"], strict=True):
        result = chosen[number][1].result
        for measurement in result.measurements if result else ():
            found.append({"record": number, "cell": cell, **measurement.model_dump()})
    columns = [
        "record",
        "cell",
        "metric",
        "value",
        "unit",
        "statistic",
        "source",
        "images_seen",
        "stage",
        "place",
        "peer",
    ]
    frame = pd.DataFrame(found, columns=columns)
    frame = frame[frame["source"] != "published"]
    preference = frame["statistic"].map({s: i for i, s in enumerate(_STATISTICS)}).fillna(len(_STATISTICS))
    preference += 100 * (frame["source"] != "modelled")
    frame = frame.assign(preference=preference).sort_values(["preference"], kind="stable")
    same = ["record", "metric", "images_seen", "stage", "place", "peer"]
    return frame.drop_duplicates(same).sort_index().drop(columns="preference").reset_index(drop=True)


def _samples(rows: pd.DataFrame, chosen: dict[int, tuple[Path, Record]]) -> pd.DataFrame:
    found = []
    for number, cell in zip(rows["record"], rows["cell"], strict=True):
        frame = samples(chosen[number][0])
        if len(frame):
            found.append(frame.assign(record=number, cell=cell))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _cells(rows: pd.DataFrame, measurements: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: how it ran, its worst status, and medians over its repeats that ended ok."""
    worst = rows.assign(bad=rows["status"] != "ok").sort_values(["bad", "repeat"], ascending=[False, True])
    cells = worst.groupby("cell").first().drop(columns="bad")
    cells["repeats"] = rows.groupby("cell").size()
    cells["repeats_ok"] = rows[rows["status"] == "ok"].groupby("cell").size().reindex(cells.index, fill_value=0)
    ok = set(rows.loc[rows["status"] == "ok", "record"])
    usable = measurements[measurements["record"].isin(ok)]
    job = usable[usable["place"].isna() & usable["stage"].isna()]
    for metric in (
        "views_per_second",
        "optimizer_steps_per_second",
        "step_seconds",
        "train_seconds",
        "gaussians_count",
    ):
        cells[metric] = job[job["metric"] == metric].groupby("cell")["value"].median()
    rates = job[job["metric"].isin(["views_per_second", "step_seconds"])]
    cells["modelled"] = (
        (rates["source"] == "modelled").groupby(rates["cell"]).any().reindex(cells.index, fill_value=False)
    )
    for metric in ("visible_gaussians", "tile_instances", "peak_memory_bytes", "peak_tensor_bytes"):
        cells[metric] = _per_record(usable, metric, "max").groupby("cell").median()
    for metric in ("psnr", "ssim"):
        seen = job[job["metric"] == metric].sort_values("images_seen", kind="stable")
        by_record = seen.groupby(["cell", "record"])
        cells[metric] = by_record["value"].last().groupby("cell").median()
        cells["images_seen"] = by_record["images_seen"].last().groupby("cell").max().astype("float64")
        start = seen[seen["images_seen"] == 0].groupby(["cell", "record"])["value"].last()
        cells[f"initial_{metric}"] = start.groupby("cell").median()
    cells["noise"] = _noise(raw[raw["record"].isin(ok)] if len(raw) else raw).reindex(cells.index)
    cells["label"] = cell_labels(cells)
    cells["title"] = group_titles(cells)
    cells["speedup"] = _speedup(cells)
    return _ordered(cells)


def _noise(raw: pd.DataFrame) -> pd.Series:
    """Relative noise of the median pass, the largest of a cell's repeats; null where no passes were measured."""
    if raw.empty:
        return pd.Series(dtype="float64")
    passes = raw[(raw["series"] == "passes") & (raw["metric"] == "step_seconds") & (raw["warmup"] != True)]  # noqa: E712
    by_record = passes.groupby(["cell", "record"])["value"].agg(lambda seconds: median_noise(seconds.to_numpy()))
    return by_record.groupby("cell").max()


def _per_record(frame: pd.DataFrame, metric: str, over_places: str) -> pd.Series:
    """A metric by (cell, record): the job's value or, where only places have one, `over_places` of theirs."""
    values = frame[frame["metric"] == metric]
    return values.groupby(["cell", "record"])["value"].agg(over_places)


def _speedup(cells: pd.DataFrame) -> pd.Series:
    """views/s over that of `single` on one rank in the group; null where it has none or several, or nothing else."""
    singles = cells[(cells["strategy"] == "single") & (cells["ranks"] == 1) & (cells["status"] == "ok")]
    base = singles.drop_duplicates(GROUP, keep=False).set_index(GROUP)["views_per_second"].rename("base")
    others = cells.groupby(GROUP, dropna=False)["views_per_second"].transform("count") > 1
    return (cells["views_per_second"] / cells.join(base, on=GROUP)["base"]).where(others)


def _ordered(cells: pd.DataFrame) -> pd.DataFrame:
    """By group in order of appearance, then ranks, strategy and case; `order` numbers the rows."""
    groups = cells.groupby("title", sort=False).ngroup()
    strategies = cells["strategy"].map(strategy_order)
    cells = cells.assign(_group=groups, _strategy=strategies)
    cells = cells.sort_values(["_group", "_strategy", "ranks"], kind="stable").drop(columns=["_group", "_strategy"])
    return cells.assign(order=range(len(cells)))


def throughput(results: Results) -> pd.DataFrame:
    """views/s of each repeat that ended ok: title, label, variant, strategy, ranks, value, modelled, order.

    variant: what the label says beyond strategy and ranks; cells of one strategy and variant make a scaling curve.
    """
    rates = _of_ok(results, "views_per_second")
    rates = rates[rates["place"].isna()]
    rates = results.of_cells(rates.assign(modelled=rates["source"] == "modelled"))
    return rates.assign(variant=[label.partition(" · ")[2].partition(" · ")[2] for label in rates["label"]])


def stages(results: Results) -> pd.DataFrame:
    """Seconds of each stage, mean over repeats; of several places the slowest. `step` is the unsynchronised step."""
    seconds = _of_ok(results, "stage_seconds").dropna(subset="stage")
    slowest = seconds.groupby(["cell", "record", "stage"], sort=False)["value"].max()
    mean = slowest.groupby(["cell", "stage"], sort=False).mean().reset_index()
    return results.of_cells(mean.join(results.cells["step_seconds"].rename("step"), on="cell"))


def operators(results: Results) -> pd.DataFrame:
    """Seconds of one call of each operator (`stage`), median over repeats."""
    seconds = _of_ok(results, "operator_seconds").dropna(subset="stage")
    median = seconds.groupby(["cell", "stage"], sort=False)["value"].median().reset_index()
    return results.of_cells(median)


def quality(results: Results) -> pd.DataFrame:
    """Held-out PSNR by images seen, mean over repeats."""
    values = _of_ok(results, "psnr").dropna(subset="images_seen")
    values = values[values["place"].isna() & values["stage"].isna()]
    return results.of_cells(values.groupby(["cell", "images_seen"])["value"].mean().reset_index())


def loss(results: Results) -> pd.DataFrame:
    """Training loss by images seen of each cell's first repeat that ended ok."""
    if results.samples.empty:
        return pd.DataFrame()
    values = results.samples[(results.samples["series"] == "training") & (results.samples["metric"] == "loss")]
    values = values[values["record"].isin(_first_ok(results).values())]
    values = values[["cell", "images_seen", "value"]].astype({"images_seen": "float64", "value": "float64"}).dropna()
    return results.of_cells(values.drop_duplicates(["cell", "images_seen"]).sort_values(["cell", "images_seen"]))


def _of_ok(results: Results, metric: str) -> pd.DataFrame:
    ok = [number for number, (_, record) in results.records.items() if record.status == "ok"]
    frame = results.measurements
    return frame[(frame["metric"] == metric) & frame["record"].isin(ok)]


def _first_ok(results: Results) -> dict[int, int]:
    """The record of each cell's first repeat that ended ok."""
    first: dict[int, int] = {}
    cells = results.measurements.drop_duplicates("record").set_index("record")["cell"]
    for number in sorted(cells.index, key=lambda n: results.records[n][1].repeat):
        if results.records[number][1].status == "ok":
            first.setdefault(int(cells[number]), int(number))
    return first


def first_records(results: Results) -> dict[int, tuple[Path, Record]]:
    """By cell, in report order: folder and record of its first repeat that ended ok."""
    first = _first_ok(results)
    return {int(cell): results.records[first[cell]] for cell in results.cells.index if cell in first}
