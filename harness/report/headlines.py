"""The headline values of each cell: one row a cell, in the report's order."""

from __future__ import annotations

import pandas as pd

from harness.measure.statistics import median_noise
from harness.report.convergence import quality_gaps
from harness.report.labels import GROUP, cell_labels, group_titles, series, variants
from harness.report.palette import strategy_order

_JOB_VALUES = (
    "views_per_second",
    "optimizer_steps_per_second",
    "step_seconds",
    "render_seconds",
    "train_seconds",
    "gaussians_count",
)

_LARGEST = ("visible_gaussians", "tile_instances", "peak_memory_bytes", "peak_tensor_bytes")


def headlines(rows: pd.DataFrame, measurements: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    """How each cell ran, its worst status, and medians over its repeats that ended ok.

    rows: of records (frames.read). Null where nothing was measured. `views_a_step` are those of one optimizer step;
    `bytes_a_view` is what crossed from one place to another, payload and metadata; `imbalance` is the largest over
    the mean of what places sent.
    """
    worst = rows.assign(bad=rows["status"] != "ok").sort_values(["bad", "repeat"], ascending=[False, True])
    cells = worst.groupby("cell").first().drop(columns="bad")
    cells["began"] = rows.groupby("cell")["started"].min()
    cells["repeats"] = rows.groupby("cell").size()
    cells["repeats_ok"] = rows[rows["status"] == "ok"].groupby("cell").size().reindex(cells.index, fill_value=0)
    ok = set(rows.loc[rows["status"] == "ok", "record"])
    usable = measurements[measurements["record"].isin(ok)]
    job = usable[usable["place"].isna() & usable["stage"].isna()]
    for metric in _JOB_VALUES:
        cells[metric] = job[job["metric"] == metric].groupby("cell")["value"].median()
    rates = job[job["metric"].isin(["views_per_second", "step_seconds"])]
    cells["modelled"] = (
        (rates["source"] == "modelled").groupby(rates["cell"]).any().reindex(cells.index, fill_value=False)
    )
    for metric in _LARGEST:
        cells[metric] = _largest_place(usable, metric).groupby("cell").median()
    for metric in ("psnr", "ssim"):
        seen = job[job["metric"] == metric].sort_values("images_seen", kind="stable")
        by_record = seen.groupby(["cell", "record"])
        cells[metric] = by_record["value"].last().groupby("cell").median()
        cells["images_seen"] = by_record["images_seen"].last().groupby("cell").max().astype("float64")
        start = seen[seen["images_seen"] == 0].groupby(["cell", "record"])["value"].last()
        cells[f"initial_{metric}"] = start.groupby("cell").median()
    cells["noise"] = _noise(raw[raw["record"].isin(ok)] if len(raw) else raw).reindex(cells.index)
    # A step may take several views though the batch is one, and even as many optimizer steps (view consolidation).
    step = cells["step_seconds"].fillna(cells["render_seconds"])
    cells["views_a_step"] = (cells["views_per_second"] * step).fillna(cells["batch"])
    _traffic(cells, usable)
    cells["label"] = cell_labels(cells)
    cells["title"] = group_titles(cells)
    cells["series"] = series(cells)
    cells["variant"] = variants(cells)
    cells["speedup"] = _speedup(cells)
    runs = rows.set_index("record")["run"]
    cells["over_gsplat"] = _over_gsplat(cells, rates[rates["metric"] == "views_per_second"], runs)
    cells["quality_gap"] = quality_gaps(cells)
    return _ordered(cells)


def _largest_place(frame: pd.DataFrame, metric: str) -> pd.Series:
    """A metric by (cell, record): the job's value or, where only places have one, the largest of theirs."""
    values = frame[frame["metric"] == metric]
    return values.groupby(["cell", "record"])["value"].max()


def _noise(raw: pd.DataFrame) -> pd.Series:
    """Relative noise of the median pass, the largest of a cell's repeats; null where no passes were measured."""
    if raw.empty:
        return pd.Series(dtype="float64")
    of_passes = (raw["series"] == "passes") & raw["metric"].isin(["step_seconds", "render_seconds"])
    passes = raw[of_passes & (raw["warmup"] != True)]  # noqa: E712
    by_record = passes.groupby(["cell", "record"])["value"].agg(lambda seconds: median_noise(seconds.to_numpy()))
    return by_record.groupby("cell").max()


def _traffic(cells: pd.DataFrame, usable: pd.DataFrame) -> None:
    """Adds `bytes_a_view` and `imbalance`. A cell that counted collectives and moved nothing has zero bytes."""
    moved = usable[usable["metric"].isin(["payload_bytes", "metadata_bytes"]) & usable["peer"].notna()]
    counted = usable[usable["metric"].isin(["payload_bytes", "metadata_bytes", "collectives"])]["cell"].unique()
    crossed = moved[moved["place"] != moved["peer"]]
    totals = crossed.groupby(["cell", "record"])["value"].sum().groupby("cell").mean()
    totals = totals.reindex(cells.index).where(lambda t: t.notna() | ~cells.index.isin(counted), 0.0)
    cells["bytes_a_view"] = totals / cells["views_a_step"]
    sent = crossed.groupby(["cell", "record", "place"])["value"].sum().groupby(["cell", "place"]).mean()
    cells["imbalance"] = sent.groupby("cell").max() / (sent.groupby("cell").sum() / cells["ranks"])


def _speedup(cells: pd.DataFrame) -> pd.Series:
    """views/s over that of `single` on one rank in the group; null where it has none or several, or nothing else.

    Of several the one of the same commit, since runs are merged to be compared, or else of the same training.
    """
    singles = cells[(cells["strategy"] == "single") & (cells["ranks"] == 1) & (cells["status"] == "ok")]
    bases = pd.Series(float("nan"), index=cells.index)
    for keys in (GROUP, [*GROUP, "commit"], [*GROUP, "training"]):
        base = singles.drop_duplicates(keys, keep=False).set_index(keys)["views_per_second"].rename("base")
        bases = bases.fillna(cells.join(base, on=keys)["base"].astype("float64"))
    others = cells.groupby(GROUP, dropna=False)["views_per_second"].transform("count") > 1
    return (cells["views_per_second"] / bases).where(others)


def _over_gsplat(cells: pd.DataFrame, rates: pd.DataFrame, runs: pd.Series) -> pd.Series:
    """views/s over those of the fastest cell of `gsplat` in the group, on as many ranks and the same link, in the same
    run.

    rates: views/s by record. runs: by record. Null where a run has no such cell; of several runs the median.
    """
    if rates.empty:
        return pd.Series(float("nan"), index=cells.index)
    by_run = rates.assign(run=rates["record"].map(runs)).groupby(["cell", "run"], as_index=False)["value"].median()
    place = [*GROUP, "ranks", "link", "environment_id"]
    where = [*place, "run"]
    by_run = by_run.join(cells[[*place, "strategy"]], on="cell")
    peers = by_run[by_run["strategy"] == "gsplat"].groupby(where, dropna=False)["value"].max().rename("peer")
    found = by_run.join(peers, on=where)
    return (found["value"] / found["peer"]).groupby(found["cell"]).median().reindex(cells.index)


def _ordered(cells: pd.DataFrame) -> pd.DataFrame:
    """By group in order of appearance, then strategy, ranks and start; `order` numbers the rows."""
    cells = cells.sort_values("began", kind="stable")
    groups = cells.groupby("title", sort=False).ngroup()
    strategies = cells["strategy"].map(strategy_order)
    cells = cells.assign(_group=groups, _strategy=strategies)
    cells = cells.sort_values(["_group", "_strategy", "ranks"], kind="stable").drop(columns=["_group", "_strategy"])
    return cells.assign(order=range(len(cells)))
