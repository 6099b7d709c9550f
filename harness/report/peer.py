"""Rates over those of `gsplat`, the peer: packed and dense apart, since they differ in what crosses between GPUs."""

from __future__ import annotations

import json

import pandas as pd

from harness.report.labels import GROUP

FORMS = ("packed", "dense")
"""What the peer's option `packed` makes of it."""

_PLACE = [*GROUP, "ranks", "link", "environment_id"]


def over_gsplat(cells: pd.DataFrame, rates: pd.DataFrame, runs: pd.Series) -> pd.DataFrame:
    """For each of FORMS a column `over_gsplat_FORM`: views/s over those of the fastest such cell of `gsplat` in the
    group, on as many ranks and the same link; of several runs the median.

    Of the same run; where no run of a cell has such a peer, of any run in the same environment with the same code, and
    then `FORM_of_other_run` is true. rates: views/s by record. runs: by record.
    """
    by_run = rates.assign(run=rates["record"].map(runs)).groupby(["cell", "run"], as_index=False)["value"].median()
    by_run = by_run.join(cells[[*_PLACE, "code_id", "strategy", "options"]], on="cell")
    peers = by_run[by_run["strategy"] == "gsplat"]
    forms = peers["options"].map(lambda options: FORMS[not json.loads(options).get("packed", False)])
    found = pd.DataFrame(index=cells.index)
    for form in FORMS:
        of_form = peers[forms == form]
        own = _over(by_run, of_form, [*_PLACE, "run"]).reindex(cells.index)
        typical = of_form.assign(value=of_form.groupby("cell")["value"].transform("median"))
        other = _over(by_run, typical, [*_PLACE, "code_id"]).reindex(cells.index)
        found[f"over_gsplat_{form}"] = own.fillna(other)
        found[f"{form}_of_other_run"] = own.isna() & other.notna()
    return found


def _over(by_run: pd.DataFrame, peers: pd.DataFrame, keys: list[str]) -> pd.Series:
    """By cell the median of its rates over the fastest peer that agrees in the keys; null without one."""
    if peers.empty:
        return pd.Series(dtype="float64")
    fastest = peers.groupby(keys, dropna=False)["value"].max().rename("peer")
    fastest = by_run.join(fastest, on=keys)["peer"].astype("float64")
    return (by_run["value"] / fastest).groupby(by_run["cell"]).median()
