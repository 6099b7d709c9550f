"""A report of many cells draws no more than one of some, and what else it does grows no faster than they do."""

from __future__ import annotations

import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

import harness
from harness.records import load
from harness.records.schema import Measurement
from harness.report import drawing, frames
from harness.report.build import build_report
from harness.report.page import compose
from harness.report.parts import MOST_BARS, MOST_GROUPS, MOST_LINES


def page_of(run, groups):
    """The page of so many groups of cells, each of two strategies."""
    for i in range(groups):
        scene = {"city": "small_street", "gaussians": 1000 * (i + 1)}
        run.throughput("single", 1, scene=scene)
        run.throughput("grendel", 2, scene=scene)
    with drawing.style():
        return compose(frames.read([run.folder]))


def test_plots_do_not_grow_with_the_groups_and_every_cell_has_its_row(new_run):
    some, many = page_of(new_run("some"), MOST_GROUPS + 1), page_of(new_run("many"), 3 * MOST_GROUPS)
    assert [plot.name for plot in many.plots] == [plot.name for plot in some.plots]
    assert len(many.cells) == 2 * 3 * MOST_GROUPS
    assert len({cell.label + cell.group for cell in many.cells}) == len(many.cells)


@pytest.fixture(scope="module")
def crowded(lasting_run):
    """The page of one group of many cells: seeds of three strategies, and of one a named case a seed."""
    run = lasting_run("crowded")
    seeds = MOST_BARS
    for seed in range(seeds):
        run.throughput("single", 1, seed=seed)
        run.throughput("grendel", 4, seed=seed, name=f"case {seed}")
        run.train("splaxel", 2, seed=seed, size=(320, 180), psnr=15 + seed)
    with drawing.style():
        return compose(frames.read([run.folder]))


def test_a_plot_of_bars_draws_some_cells_of_each_strategy_and_says_how_many_there_are(crowded):
    (plot,) = [plot for plot in crowded.plots if plot.name == "throughput-1"]
    labels = [label.get_text().replace("\n", " ") for label in plot.figure.axes[0].get_yticklabels()]
    assert len(labels) == MOST_BARS
    assert {label.split()[0] for label in labels} == {"single", "grendel"}
    assert f"{MOST_BARS} of {2 * MOST_BARS}" in plot.description
    assert len(crowded.cells) == 3 * MOST_BARS


def test_no_plot_of_a_crowded_group_is_taller_or_has_more_lines_than_can_be_told_apart(crowded):
    assert {plot.name for plot in crowded.plots} >= {"stages-1", "memory-1", "curves-1", "ablation-1"}
    for plot in crowded.plots:
        assert plot.figure.get_figheight() <= 0.8 * MOST_BARS
        texts = plot.figure.legends[0].get_texts() if plot.name.startswith("curves") else []
        assert len(texts) <= MOST_LINES


def test_an_ablation_of_many_cases_keeps_those_that_it_draws_beside_their_base(crowded):
    (plot,) = [plot for plot in crowded.plots if plot.name == "ablation-1"]
    assert "case 0" in plot.figure.axes[0].get_yticklabels()[0].get_text()


def read_and_composed(run):
    with drawing.style():
        compose(frames.read([run.folder]))


def calls(work, *arguments):
    """Calls that the package's own functions make in the course of the work, of functions of Python and of C."""
    made = 0
    own = str(Path(harness.__file__).parent)

    def count(frame, event, argument):
        nonlocal made
        caller = frame.f_back if event == "call" else frame if event == "c_call" else None
        made += caller is not None and caller.f_code.co_filename.startswith(own)

    sys.setprofile(count)
    try:
        work(*arguments)
    finally:
        sys.setprofile(None)
    return made


def test_work_grows_no_faster_than_the_cells(new_run):
    sizes = (18, 36, 72)
    made = []
    for size in sizes:
        run = new_run(f"of {size}")
        for i in range(size):
            scene = {"city": "small_street", "gaussians": 1000 * (i % (size // 3) + 1)}
            run.throughput("grendel" if i % 2 else "single", 1 + i % 2, seed=i, scene=scene)
        made.append(calls(read_and_composed, run))
    first, second = (b - a for a, b in pairwise(made))
    assert second < 2 * 1.2 * first


def test_a_measurement_takes_little_memory(run):
    for seed in range(4):
        run.throughput("grendel", 16, seed=seed)
    frames.read([run.folder])
    tracemalloc.start()
    try:
        results = frames.read([run.folder])
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(results.measurements) > 2000
    assert held < 700 * len(results.measurements)
    assert peak < 1500 * len(results.measurements)


def test_the_table_of_a_report_holds_the_rows_of_every_record_as_load_has_them(run):
    for seed in range(3):
        run.throughput("single", 1, seed=seed)
    run.add([Measurement.of("loss", float("nan"), "last")], strategy="grendel", ranks=2, name='a "name", with a comma')
    run.add(status="skipped", reason="needs 4 GPUs", strategy="unified", ranks=4)
    build_report([run.folder], run.folder / "report")
    table = load(run.folder).to_csv(index=False, lineterminator="\n")
    assert (run.folder / "report" / "measurements.csv").read_text() == table
    assert len(table.splitlines()) > 30
