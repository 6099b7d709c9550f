"""Tables and galleries that Markdown files take from records."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UserError
from harness.evidence.readme import written

CHECKOUT = Path(__file__).parents[3]
RATES = {"views_per_second": 250.0, "step_seconds": 0.004}


@pytest.fixture
def page(tmp_path, folder):
    """A page with one block of figures of the folder `run`, which has two cells."""
    run = folder("run")
    for gaussians in (20_000, 3_000):
        scene = {"city": "small_street", "gaussians": gaussians}
        run.cell([1.0, 1.0], metrics=RATES, scene=scene, workload=f"{gaussians:064}")
    run.cell(strategy="grendel", status="failed", reason="no such colour")
    file = tmp_path / "PAGE.md"
    file.write_text("Before.\n\n<!-- figures: run -->\nold\n<!-- end -->\n\nAfter.\n")
    return file


def test_a_block_becomes_the_table_of_its_records_and_the_rest_stays(page):
    assert written(page).splitlines() == [
        "Before.",
        "",
        "<!-- figures: run -->",
        "| scene | Gaussians | views/s | ms a step |",
        "|---|---|---|---|",
        "| small_street | 20,000 | 250 | 4.00 |",
        "| small_street | 3,000 | 250 | 4.00 |",
        "",
        "Strategy single, size 64 × 48, ranks 1, batch 1, machine machine e, repeats 2, commit fffffff. 1 of 3 cells "
        "have no figures (failed: no such colour). Stale: figures are of fffffff.",
        "<!-- end -->",
        "",
        "After.",
    ]


def test_the_command_writes_once_and_check_says_when_it_is_out_of_date(page):
    def command(*words):
        done = CliRunner().invoke(app, ["readme", str(page), *words])
        assert f"run is stale: figures are of {'f' * 12}" in done.output
        return done.exit_code

    assert command("--check") == 1
    assert command() == 0
    assert command("--check") == 0
    written_once = page.read_text()
    assert command() == 0
    assert page.read_text() == written_once


def test_of_folders_in_braces_those_that_are_there_have_a_table_each(page, folder):
    folder("other").cell(metrics=RATES)
    folder("empty").cell(status="failed")
    page.write_text("<!-- figures: {run,later,other,empty} -->\n<!-- end -->\n")
    text = written(page)
    assert [line for line in text.splitlines() if line.startswith("[")] == ["[run](run):", "[other](other):"]
    assert text.count("\n|---|") == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!-- figures: run -->\n", "a block has no end"),
        ("<!-- figures: nowhere -->\n<!-- end -->\n", "no such folder"),
        ("<!-- figures: {no,where} -->\n<!-- end -->\n", "has no record that could be shown"),
        ("<!-- gallery: run -->\n<!-- end -->\n", "gallery: run has no record that could be shown"),
    ],
)
def test_a_block_that_cannot_be_written_is_named(page, text, complaint):
    page.write_text(text)
    with pytest.raises(UserError, match=complaint):
        written(page)
    assert page.read_text() == text


def test_the_page_that_people_read_first_shows_the_committed_records():
    """`python -m harness readme` brings it up to date."""
    page = CHECKOUT / "README.md"
    assert written(page) == page.read_text(encoding="utf-8")
