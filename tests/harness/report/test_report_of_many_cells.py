"""A report of many cells draws no more than one of some: the rest is in its tables."""

from __future__ import annotations

from harness.report import drawing, frames
from harness.report.page import compose
from harness.report.parts import MOST_GROUPS


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
