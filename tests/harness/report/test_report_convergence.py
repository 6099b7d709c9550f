"""A rate whose strategy does not reach single's quality at equal images is marked."""

from __future__ import annotations

import math

import pytest

from harness.report import frames
from harness.report.sections.cells import cell_rows

BLURRED = {"boundary": "drop"}


@pytest.fixture
def gaps(run):
    """By strategy, options and scenario: the gap and the mark, once all cells are written."""

    def read():
        results = frames.read([run.folder])
        _, _, rows = cell_rows(results)
        cells = results.cells
        keys = zip(cells["strategy"], cells["options"], cells["scenario"], strict=True)
        marks = ["≠" in row.facts["views/s"].text for row in rows]
        return dict(zip(keys, zip(cells["quality_gap"], marks, strict=True), strict=True))

    return read


def test_a_throughput_row_is_marked_by_what_its_strategy_trains(run, gaps):
    run.train("single", 1, psnr=18.5)
    run.train("splaxel", 2, psnr=18.2, options=BLURRED)
    run.train("grendel", 2, psnr=18.48)
    for strategy, options in (("single", {}), ("splaxel", BLURRED), ("splaxel", {}), ("grendel", {})):
        run.throughput(strategy, 1 if strategy == "single" else 2, options=options)
    found = gaps()
    assert found["splaxel", '{"boundary":"drop"}', "throughput"] == (pytest.approx(-0.3), True)
    assert found["splaxel", '{"boundary":"drop"}', "train"] == (pytest.approx(-0.3), True)
    assert found["grendel", "{}", "throughput"] == (pytest.approx(-0.02), False)
    assert found["single", "{}", "throughput"] == (0.0, False)
    assert math.isnan(found["splaxel", "{}", "throughput"][0]), "other options say nothing of these"


def test_unequal_images_are_not_compared(run, gaps):
    run.train("single", 1, psnr=18.5)
    run.train("grendel", 2, psnr=14.0, size=(640, 480))
    assert math.isnan(gaps()["grendel", "{}", "train"][0])


def test_a_report_without_training_has_no_column_for_it(run):
    run.throughput("single", 1)
    columns, _, _ = cell_rows(frames.read([run.folder]))
    assert "− single, dB" not in columns
