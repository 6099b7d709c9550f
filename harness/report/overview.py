"""What a reader should know first: who is fastest, by how much, at what quality, and what did not run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from harness.report.quantities import count, decibels, number, ratio

_GROUPS = 4
"""Most groups of cells that get findings of their own; the tables hold the rest."""


@dataclass(frozen=True)
class Finding:
    """figure: the value, large. text: the sentence around it. group: of which cells; empty where there is one group."""

    figure: str
    text: str
    group: str = ""


def findings(cells: pd.DataFrame) -> list[Finding]:
    """Findings of each group of cells, in the report's order, then how many cells ended ok."""
    found: list[Finding] = []
    groups = list(cells.groupby("title", sort=False))
    for title, group in groups[:_GROUPS]:
        ok = group[group["status"] == "ok"]
        for finding in _speed(ok) + _quality(ok):
            found.append(replace(finding, group=str(title) if len(groups) > 1 else ""))
    return [*found, _statuses(cells)]


def _speed(ok: pd.DataFrame) -> list[Finding]:
    rates = ok.dropna(subset="views_per_second")
    if rates.empty:
        return []
    best = rates.nlargest(1, "views_per_second").iloc[0]
    rate = number(best["views_per_second"]) + " views/s"
    modelled = ", modelled" if best["modelled"] else ""
    if len(rates) == 1:
        return [Finding(rate, f"{best['label']}, the only rate measured{modelled}.")]
    found = [Finding(rate, f"{best['label']} is fastest{modelled}.")]
    if not pd.isna(best["speedup"]):
        if best["strategy"] == "single" and best["ranks"] == 1:
            rest = rates[~((rates["strategy"] == "single") & (rates["ranks"] == 1))]
            if len(rest):
                second = rest.nlargest(1, "views_per_second").iloc[0]
                text = f"is what the next one, {second['label']}, reaches of single on one rank."
                found.append(Finding(ratio(second["speedup"]), text))
        else:
            found.append(Finding(ratio(best["speedup"]), f"{best['label']} over single on one rank."))
    return found


def _quality(ok: pd.DataFrame) -> list[Finding]:
    trained = ok.dropna(subset="psnr")
    if trained.empty:
        return []
    best = trained.nlargest(1, "psnr").iloc[0]
    text = f"best held-out PSNR, {best['label']} after {count(best['images_seen'])} images"
    if not pd.isna(best["initial_psnr"]):
        text += f"; {decibels(best['initial_psnr'])} dB before training"
    if len(trained) > 1:
        text += f"; the others are within {decibels(best['psnr'] - trained['psnr'].min())} dB"
    return [Finding(f"{decibels(best['psnr'])} dB", text + ".")]


def _statuses(cells: pd.DataFrame) -> Finding:
    ended = cells["status"].value_counts()
    ok = int(ended.get("ok", 0))
    figure = f"{ok} of {len(cells)}"
    if ok == len(cells):
        return Finding(figure, "cells ended ok; none was skipped and none failed.")
    parts = []
    for status in ("failed", "oom", "timeout", "invalid", "skipped"):
        rows = cells[cells["status"] == status]
        if len(rows):
            reasons = list(dict.fromkeys(r for r in rows["reason"] if r))
            shown = "; ".join(reasons[:2]) + ("; …" if len(reasons) > 2 else "")
            parts.append(f"{len(rows)} {status}" + (f" ({shown})" if shown else ""))
    return Finding(figure, f"cells ended ok; {', '.join(parts)}.")
