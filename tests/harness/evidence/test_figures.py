"""Rows and columns of the compact tables that Markdown files show."""

from __future__ import annotations

import json

import pytest

from harness.evidence.figures import ROWS, table
from harness.evidence.measured import read
from harness.evidence.trees import present
from harness.records.schema import Measurement

CITY = {"city": "anchor_aerial", "gaussians": 20_000_000}


def rate(views_per_second, **metrics):
    return {"views_per_second": views_per_second, "step_seconds": 1 / views_per_second, **metrics}


@pytest.fixture
def run(folder):
    return folder("run")


def rows(run):
    """Headings, and the cells of each row; what stands below."""
    lines = table(read([run.path]), present()).splitlines()
    cut = [[text.strip() for text in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return cut[0], cut[2:], lines[-1]


def test_the_peer_is_a_column_by_its_fastest_cell_on_the_same_scene_and_batch(run):
    run.cell(scene=CITY, metrics=rate(100.0))
    run.cell(scene=CITY, metrics=rate(20.0), strategy="gsplat")
    run.cell(scene=CITY, metrics=rate(25.0), strategy="gsplat", options={"packed": True}, name="packed")
    run.cell(scene=CITY, metrics=rate(90.0), strategy="gsplat", batch=4)
    run.cell(scene=CITY, metrics=rate(80.0), strategy="gsplat", environment="2" * 12)
    headings, found, _ = rows(run)
    assert headings == ["scene", "views/s", "ms a step", "× gsplat"]
    assert found == [["anchor_aerial", "100", "10.0", "4.00×"]]


def test_a_row_whose_peer_was_not_measured_has_a_dash_and_the_reason_stands_below(run):
    run.cell(scene=CITY, metrics=rate(100.0))
    run.cell(scene=CITY, metrics=rate(20.0), strategy="gsplat")
    street = {"city": "anchor_street", "gaussians": 20_000_000}
    run.cell(scene=street, metrics=rate(50.0), workload="1" * 64)
    run.cell(scene=street, strategy="gsplat", workload="1" * 64, status="skipped", reason="not run: over the budget")
    _, found, below = rows(run)
    assert found[1] == ["anchor_street", "50.0", "20.0", "–"]
    assert "1 of 4 cells have no figures (skipped: not run: over the budget)." in below


def test_a_peer_of_another_run_divides_nothing(run):
    run.cell(scene=CITY, metrics=rate(100.0))
    run.cell(scene=CITY, metrics=rate(20.0), strategy="gsplat")
    for file in run.path.rglob("record.json"):
        told = json.loads(file.read_text())
        file.write_text(json.dumps({**told, "run": told["cell"]["strategy"]}))
    headings, _, _ = rows(run)
    assert "× gsplat" not in headings


def test_gaussians_are_those_of_the_tiled_scene_and_not_of_one_copy(folder, run):
    for along in (1, 2):
        run.cell(scene={**CITY, "tile": [1, along]}, metrics=rate(100.0), workload=f"{along:064}")
    headings, found, _ = rows(run)
    assert [row[0] for row in found] == ["anchor_aerial", "anchor_aerial tiled 1 × 2"]
    assert "views/s" in headings


def test_strategies_stand_by_their_fastest_cell_and_over_single_of_the_same_batch(run):
    run.cell(scene=CITY, metrics=rate(100.0))
    run.cell(scene=CITY, metrics=rate(120.0), batch=2)
    run.cell(scene=CITY, metrics=rate(150.0), strategy="grendel", ranks=2, engine="gloo")
    run.cell(scene=CITY, metrics=rate(180.0), strategy="grendel", ranks=2, engine="gloo", batch=2)
    headings, found, _ = rows(run)
    assert headings == ["strategy", "scene", "ranks", "batch", "views/s", "ms a step", "× single"]
    assert found == [
        ["single", "anchor_aerial", "1", "1", "100", "10.0", "–"],
        ["grendel", "anchor_aerial", "2", "2", "180", "5.56", "1.50×"],
    ]


def test_a_link_is_told_where_it_is_not_the_usual_one(run):
    street = {"city": "anchor_street", "gaussians": 20_000_000}
    run.cell(scene=CITY, metrics=rate(100.0), strategy="grendel", ranks=2)
    assert "link" not in "".join(table(read([run.path]), present()))
    run.cell(scene=street, metrics=rate(50.0), strategy="grendel", ranks=2, link="host", workload="1" * 64)
    headings, found, _ = rows(run)
    assert [row[headings.index("link")] for row in found] == ["native", "host"]


def test_kernels_have_their_floor_and_their_tail_and_render_its_pictures(folder, run):
    over = [Measurement.of("step_over_floor", 2.0), Measurement.of("step_over_floor", 5.0, "p99")]
    run.cell(scene=CITY, scenario="kernels", metrics=rate(250.0, roofline_seconds=0.002), measured=over)
    headings, (row,), _ = rows(run)
    assert headings == ["scene", "ms a step", "floor, ms", "× floor", "p99 / median"]
    assert row == ["anchor_aerial", "4.00", "2.00", "2.00×", "2.50×"]
    render = folder("render")
    render.cell(scene=CITY, scenario="render", metrics={"views_per_second": 400.0, "render_seconds": 0.0025})
    assert rows(render)[:2] == (["scene", "views/s", "ms a picture"], [["anchor_aerial", "400", "2.50"]])


def test_a_small_scene_shows_the_host(run):
    run.cell(scene=CITY, metrics=rate(1250.0, host_seconds=0.00028))
    assert rows(run)[:2] == (
        ["scene", "views/s", "ms a step", "host ms"],
        [["anchor_aerial", "1,250", "0.800", "0.280"]],
    )


def test_scenes_that_do_not_fit_are_left_out_whole_and_so_are_named_variants(run):
    for scene in range(4):
        for strategy in ("single", "splaxel"):
            city = {**CITY, "seed": scene}
            run.cell(scene=city, metrics=rate(100.0 + scene), strategy=strategy, workload=f"{scene:064}")
    run.cell(scene=CITY, metrics=rate(900.0), name="history", batch=2, workload=f"{0:064}")
    _, found, _ = rows(run)
    assert len(found) == ROWS == 6
    assert [row[2] for row in found] == ["100", "100", "101", "101", "102", "102"]


def test_figures_of_other_code_say_so_below_and_those_of_the_present_code_do_not(run, folder):
    run.cell(scene=CITY, metrics=rate(100.0))
    assert rows(run)[2].endswith("commit fffffff. Stale: figures are of fffffff.")
    fresh = folder("fresh")
    fresh.cell(scene=CITY, metrics=rate(100.0), code=present().code_id("single"))
    assert "Stale" not in rows(fresh)[2]


def test_a_cell_that_starts_from_another_strategys_training_is_of_the_present_code(run):
    run.cell(
        scene=CITY, metrics=rate(9.0), code=present().code_id("gsplat", "single"), strategy="gsplat", from_="trained"
    )
    assert "Stale" not in rows(run)[2]


def test_nothing_measured_is_no_table(run):
    run.cell(status="failed")
    assert table(read([run.path]), present()) == ""
