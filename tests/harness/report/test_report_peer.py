"""Rates over those of gsplat: which of its rows a rate is divided by, packed and dense apart."""

from __future__ import annotations

import pandas as pd
import pytest

from harness.records.schema import Measurement
from harness.report import frames
from harness.report.sections.cells import cell_rows

PACKED = {"packed": True}


def rate(value: float) -> list[Measurement]:
    return [Measurement.of("views_per_second", value)]


def cells_of(run) -> pd.DataFrame:
    return frames.read([run.folder]).cells


def test_packed_and_dense_rows_are_peers_of_their_own_and_the_fastest_of_a_form_counts(run):
    run.add(rate(30.0))
    run.add(rate(5.0), strategy="gsplat", options=PACKED)
    run.add(rate(6.0), strategy="gsplat", options=PACKED | {"order": "morton"})
    run.add(rate(10.0), strategy="gsplat")
    cells = cells_of(run)
    ours = cells[cells["strategy"] == "single"].iloc[0]
    assert (ours["over_gsplat_packed"], ours["over_gsplat_dense"]) == (5.0, 3.0)
    assert cells[cells["strategy"] == "gsplat"]["over_gsplat_dense"].tolist() == pytest.approx([0.5, 0.6, 1.0])


def test_a_peer_of_other_ranks_link_or_scenario_is_none(run):
    run.add(rate(4.0), strategy="gsplat", ranks=2)
    run.add(rate(9.0), strategy="grendel", ranks=4)
    run.add(rate(9.0), strategy="grendel", ranks=2, link="paced:12")
    run.add(rate(9.0), strategy="grendel", ranks=2, scenario="render")
    run.add(rate(9.0), strategy="grendel", ranks=2)
    cells = cells_of(run)
    assert cells[cells["strategy"] == "grendel"]["over_gsplat_dense"].dropna().tolist() == [9 / 4]


def test_rates_of_several_runs_are_each_divided_by_their_own_peer(run):
    for repeat, (ours, theirs) in enumerate([(10.0, 4.0), (20.0, 4.0), (20.0, 2.0)]):
        run.add(rate(ours), run=f"run-{repeat}", repeat=repeat)
        run.add(rate(theirs), strategy="gsplat", run=f"run-{repeat}", repeat=repeat)
    cells = cells_of(run).set_index("strategy")
    assert cells.loc["single", "over_gsplat_dense"] == pytest.approx(20 / 4)
    assert cells.loc["gsplat", "over_gsplat_dense"] == 1
    assert not cells["dense_of_other_run"].any()


def test_a_run_without_a_peer_takes_that_of_another_run_of_the_same_code_and_machine_and_says_so(run):
    run.add(rate(20.0), run="second")
    run.add(rate(7.0), strategy="grendel", run="second", machine="another CPU")
    run.add(rate(7.0), strategy="splaxel", run="second", code_id="beef")
    for repeat, value in enumerate((4.0, 5.0, 9.0)):
        run.add(rate(value), strategy="gsplat", run="first", repeat=repeat)
    columns, _, rows = cell_rows(frames.read([run.folder]))
    assert "× gsplat packed" not in columns
    shown = {row.label: row.facts["× gsplat dense"].text for row in rows}
    assert shown == {
        "single · 1 rank": "4.00× (other run)",
        "splaxel · 1 rank": "–",
        "grendel · 1 rank": "–",
        "gsplat · 1 rank": "1.00×",
    }
