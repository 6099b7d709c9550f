"""What the exchange of a cell makes of its link: bytes a second, exposed and hidden time, and the counters' word."""

from __future__ import annotations

import pandas as pd

from harness.report.frames import Results
from harness.report.parts import Table, Value, figure, groups, tabulated, text
from harness.report.quantities import memory, milliseconds, number, percent
from harness.report.sections.stages import waits
from harness.report.sections.traffic import ledger
from harness.suite.feasibility import CUDA_ENGINES


def link_use(results: Results) -> pd.DataFrame:
    """Cells that moved bytes between ranks, in report order.

    exposed, hidden: seconds a view. counts: seconds a view that ranks waited for counts of what comes, booked apart.
    rate: bytes a second that the busiest rank sent in the exchanges of a step, by the time that these took. of_link: of
    what one exchange of known size reached on the same link. forward, back: of what NCCL's own all-to-all of the same
    counts reaches, packing and unpacking included. wire: bytes that NVLink's counters saw over those of the ledger, and
    `judged`, what came of it. Null where not measured.
    """
    moved = ledger(results)
    if moved.empty:
        return moved
    crossing = moved[moved["place"] != moved["peer"]]
    cells = results.cells[results.cells.index.isin(crossing["cell"])]
    timed = waits(results)
    of_counts = timed["exposed"][timed.index.get_level_values("stage").str.endswith(" counts")]
    counts = of_counts.groupby("cell").sum() / cells["views_a_step"]
    # Ranks also tell each other what tiles cost, in no hurry: only stages that move payload are the exchange.
    moving = crossing.loc[crossing["kind"] == "payload", ["cell", "stage"]].drop_duplicates()
    timed = timed[timed.index.isin(pd.MultiIndex.from_frame(moving))].groupby("cell").sum(min_count=1)
    timed = timed.div(cells["views_a_step"], axis=0)
    busiest = crossing.groupby(["cell", "place"])["value"].sum().groupby("cell").max()
    # Exchanges of other engines have no times of their own: a wait for a rank that computes is one for its rows.
    rate = (busiest / timed.sum(axis=1)).where(cells["engine"].isin(CUDA_ENGINES) & (timed.sum(axis=1) > 0))
    known = _of_job(results, "link_bandwidth")
    return cells.assign(
        exposed=timed["exposed"],
        hidden=timed["hidden"],
        counts=counts,
        rate=rate,
        of_link=rate / known,
        forward=_of_all_to_all(results, "exchange_forward"),
        back=_of_all_to_all(results, "exchange_backward"),
        wire=_of_job(results, "wire_over_ledger"),
        judged=pd.Series(_judgements(results), dtype="object"),
    )


def _of_job(results: Results, metric: str, stage: str | None = None) -> pd.Series:
    """That figure of the whole job, or of a stage of it, by cell, median over repeats."""
    values = results.of_ok(metric)
    if values.empty:
        return pd.Series(dtype="float64")
    of_stage = values["stage"].isna() if stage is None else values["stage"] == stage
    return values[of_stage & values["place"].isna()].groupby("cell")["value"].median()


def _of_all_to_all(results: Results, stage: str) -> pd.Series:
    return _of_job(results, "exchange_bandwidth", stage) / _of_job(results, "all_to_all_bandwidth", stage)


def balance(results: Results) -> pd.Series:
    """By cell: in the stages that a cut of the picture can balance, the slowest rank's time over the mean of ranks."""
    return _of_job(results, "stage_imbalance", "region")


def _judgements(results: Results) -> dict[int, str]:
    """What was said of the counters, by cell: `within bounds`, or why they were not judged."""
    said = {}
    for cell, number_ in results.first_ok().items():
        result = results.records[number_][1].result
        if result is not None and (words := result.environment.get("wire")):
            said[cell] = str(words)
    return said


def tables(results: Results) -> list[Table]:
    """The exchange of every cell, a body a group."""
    columns = [
        "cell",
        "bytes a view",
        "ms a view exposed",
        "ms a view hidden",
        "ms a view counts",
        "GB/s a rank",
        "of the link",
        "of all-to-all, forward",
        "of all-to-all, back",
        "wire / ledger",
        "judged",
    ]
    bodies = [(title, [_row(row) for _, row in group.iterrows()]) for title, group in groups(link_use(results))]
    return tabulated(columns, bodies, "What the exchange makes of the link", "The exchange of every cell")


def _row(row: pd.Series) -> list[Value]:
    return [
        text(row["label"]),
        figure(row["bytes_a_view"], memory),
        figure(row["exposed"], milliseconds),
        figure(row["hidden"], milliseconds),
        figure(row["counts"], milliseconds),
        figure(row["rate"] / 1e9, number),
        figure(row["of_link"], percent),
        figure(row["forward"], percent),
        figure(row["back"], percent),
        figure(row["wire"], lambda value: f"{value:.3f}"),
        figure(None, number) if pd.isna(row["judged"]) else text(row["judged"]),
    ]
