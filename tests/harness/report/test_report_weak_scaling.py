"""Few rank counts: bars over single instead of lines, and weak scaling, a view a device."""

from __future__ import annotations

from typing import Any

import pytest

from harness.records.schema import Measurement
from harness.report import drawing, frames
from harness.report.sections import scaling, weak_scaling

SCENE = {"city": "anchor_aerial", "gaussians": 20_000_000}


def add(run, rate: float, source: str = "measured", **cell: Any) -> None:
    run.add([Measurement.of("views_per_second", rate, source=source)], **{"scene": SCENE} | cell)


def plots_of(run) -> list:
    with drawing.style():
        return scaling.section(frames.read([run.folder])).plots


def test_one_and_two_ranks_are_drawn_as_bars_over_single_link_by_link(run):
    add(run, 100.0)
    for strategy, link, rate, source in (
        ("grendel", "paced:12", 90.0, "modelled"),
        ("grendel", "native", 160.0, "measured"),
        ("splaxel", "native", 180.0, "measured"),
    ):
        add(run, rate, source, strategy=strategy, ranks=2, link=link)
    (plot,) = plots_of(run)
    assert plot.name == "factors-1"
    (axes,) = plot.figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["grendel · 2 ranks · native", "splaxel · 2 ranks", "grendel · 2 ranks · paced:12"]
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([1.6, 1.8, 0.9])
    assert [patch.get_hatch() for patch in axes.patches] == [None, None, "////"]


def test_three_rank_counts_are_a_line_and_no_bars(run):
    add(run, 100.0)
    for ranks in (1, 2, 4):
        add(run, 80.0 * ranks, strategy="grendel", ranks=ranks)
    assert [plot.name for plot in plots_of(run)] == ["scaling-1"]


def test_a_view_a_device_is_held_against_single_with_one_view(run):
    add(run, 100.0)
    add(run, 125.0, batch=2)
    add(run, 150.0, strategy="grendel", ranks=2, batch=2)
    add(run, 170.0, strategy="grendel", ranks=2)
    add(run, 320.0, strategy="grendel", ranks=4, batch=4)
    found = weak_scaling.weak_scaling(frames.read([run.folder]))
    assert found["ranks"].tolist() == [2, 4]
    assert found["efficiency"].tolist() == pytest.approx([150 / 200, 320 / 400])
    (table,) = weak_scaling.tables(frames.read([run.folder]))
    assert [[value.text for value in row[1:]] for row in table.rows] == [
        ["2", "150", "1.50×", "75 %"],
        ["4", "320", "3.20×", "80 %"],
    ]


def test_without_a_single_at_one_view_there_is_no_weak_scaling(run):
    add(run, 125.0, batch=2)
    add(run, 150.0, strategy="grendel", ranks=2, batch=2)
    add(run, 100.0, scene={"city": "anchor_street", "gaussians": 20_000_000})
    assert weak_scaling.tables(frames.read([run.folder])) == []
