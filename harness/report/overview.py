"""What a reader should know first: who is fastest, by how much, at what quality, and what did not run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from harness.report.frames import Results
from harness.report.parts import MOST_GROUPS, Lines, groups
from harness.report.quantities import change, count, decibels, number, percent, ranks, ratio
from harness.report.sections.stages import stages, waits

_NOISES = 2.0
"""A lead below so many times the noise of the two medians is no lead."""

_GROUPS = 3
"""Most groups of cells that get findings of their own; the sentences below and the tables hold the rest."""


@dataclass(frozen=True)
class Finding:
    """figure: the value, large. text: the sentence around it. group: of which cells; empty where there is one group."""

    figure: str
    text: str
    group: str = ""


def findings(cells: pd.DataFrame) -> list[Finding]:
    """Findings of each group of cells, in the report's order, then how many cells ended ok."""
    found: list[Finding] = []
    titled = groups(cells)
    for title, group in titled[:_GROUPS]:
        ok = group[group["status"] == "ok"]
        told = _speed(ok) + _quality(ok)
        # One group is told whole; of several each gives its first, so that the overview stays one.
        for finding in told if len(titled) == 1 else told[:1]:
            found.append(replace(finding, group=title if len(titled) > 1 else ""))
    return [*found, _statuses(cells)]


def verdicts(results: Results) -> list[Lines]:
    """For each group, rank count by rank count: who is fastest and by how much, limited by what, at what quality."""
    cells = results.cells
    rates = cells[(cells["status"] == "ok") & cells["views_per_second"].notna()]
    rates = rates[rates.groupby("title")["label"].transform("count") > 1]
    timed = stages(results)
    waited = waits(results)["exposed"].groupby("cell").sum()
    found = []
    for title, group in groups(rates)[:MOST_GROUPS]:
        lines = []
        for _, rivals in group.groupby("ranks", sort=True):
            best = rivals.nlargest(1, "views_per_second").iloc[0]
            told = [_wins(best, rivals), _limits(best, timed[timed["cell"] == best.name], waited.get(best.name))]
            told.append(_beside(best, rivals))
            lines.append((ranks(int(best["ranks"])), " ".join(sentence for sentence in told if sentence)))
        found.append(Lines(title, lines))
    return found


def _called(row: pd.Series) -> str:
    """The cell's label without the number of ranks."""
    return str(row["label"]).replace(f" · {ranks(int(row['ranks']))}", "", 1)


def _wins(best: pd.Series, rivals: pd.DataFrame) -> str:
    rate = f"{number(best['views_per_second'])} views/s" + (" (modelled)" if best["modelled"] else "")
    over = ""
    if not pd.isna(best["speedup"]) and not (best["strategy"] == "single" and best["ranks"] == 1):
        over = f", {ratio(best['speedup'])} single on one rank"
    if len(rivals) == 1:
        return f"{_called(best)}, the only one, reaches {rate}{over}."
    second = rivals.drop(index=best.name).nlargest(1, "views_per_second").iloc[0]
    lead = best["views_per_second"] / second["views_per_second"]
    ahead = f"{change(lead - 1.0)} over" if lead < 2 else ratio(lead)
    noise = _NOISES * (best["noise"] ** 2 + second["noise"] ** 2) ** 0.5
    doubt = ", which is within the noise of their passes" if lead - 1.0 <= noise else ""
    return f"{_called(best)} is fastest of {len(rivals)}, {rate}{over}, {ahead} {_called(second)}{doubt}."


def _limits(best: pd.Series, timed: pd.DataFrame, waited: float | None) -> str:
    """Of the step of the fastest cell: its largest stage, what waits for the exchange, how evenly places send."""
    told = []
    if len(timed):
        largest = timed.nlargest(1, "value").iloc[0]
        told.append(f"its largest stage is {largest['stage']} ({percent(largest['value'] / timed['value'].sum())})")
    if waited is not None and best["step_seconds"] > 0 and best["ranks"] > 1:
        # Of each stage the rank that waits longest: together at least what any one rank waits.
        share = min(1.0, waited / best["step_seconds"])
        told.append(f"waiting for the exchange takes up to {percent(share)} of a step")
    if best["imbalance"] > 0:
        told.append(f"the place that sends most sends {ratio(best['imbalance'])} the mean")
    if not told:
        return ""
    text = "; ".join(told)
    return text[0].upper() + text[1:] + "."


def _beside(best: pd.Series, rivals: pd.DataFrame) -> str:
    trained = rivals.dropna(subset="psnr")
    if trained.empty or pd.isna(best["psnr"]):
        return ""
    top = trained.nlargest(1, "psnr").iloc[0]
    own = f"Its PSNR is {decibels(best['psnr'])} dB"
    if decibels(top["psnr"]) == decibels(best["psnr"]):
        return f"{own}{', which no other exceeds' if len(trained) > 1 else ''}."
    return f"{own}; {_called(top)} reaches {decibels(top['psnr'])} dB."


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
