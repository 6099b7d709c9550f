"""The report as files: complete, self-contained, escaped, repeatable."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from harness.errors import UserError
from harness.records.load import load
from harness.report.build import build_report

SCRIPT = "<script>alert(1)</script>"


class Links(HTMLParser):
    """Tags, what the page loads, and its visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            v or "" for k, v in attrs if k in ("src", "srcset", "poster", "data") or (tag == "link" and k == "href")
        ]
        self.loads += [v or "" for k, v in attrs if k in ("href", "xlink:href") and tag not in ("a", "link")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def test_report_leaves_every_file_and_no_other(mixed_report: Path):
    page = mixed_report
    assert page.name == "report.html"
    assert sorted(p.name for p in page.parent.iterdir()) == ["measurements.csv", "plots", "report.html", "report.md"]
    pngs = {p.name for p in (page.parent / "plots").glob("*.png")}
    drawn = {name.rpartition("-")[0] or name.removesuffix(".png") for name in pngs}
    assert drawn == {
        "throughput",
        "scaling",
        "factors",
        "stages",
        "traffic",
        "matrices",
        "growth",
        "cost",
        "kernels",
        "ablation",
        "batch-rules",
        "curves",
        "memory",
    }
    assert all((page.parent / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in pngs)


def test_page_loads_nothing_from_outside(mixed_report: Path):
    page = mixed_report
    links = parsed(page)
    assert links.loads, "pictures are embedded"
    assert all(load.startswith(("data:image/", "#")) for load in links.loads)
    assert links.tags.count("script") == 1, "the page's own, inline"
    style = page.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_markdown_shows_only_files_that_exist(mixed_report: Path):
    out = mixed_report.parent
    shown = re.findall(r"\]\((plots/[^)]+)\)", (out / "report.md").read_text(encoding="utf-8"))
    assert shown
    assert all((out / name).is_file() for name in shown)
    assert {Path(name).name for name in shown} == {p.name for p in (out / "plots").iterdir()}


def test_every_status_and_reason_is_told_when_cells_did_not_end_ok(mixed_report: Path):
    page = mixed_report
    for text in ("".join(parsed(page).texts), (page.parent / "report.md").read_text(encoding="utf-8")):
        for status in ("failed", "oom", "timeout", "invalid", "skipped"):
            assert status in text
        for reason in (
            "rank 1 ended",
            "out of memory",
            "ran past 60 s",
            "tile instances moved",
            "needs 4 GPUs, 0 present",
        ):
            assert reason in text
        assert "ValueError: 7" in text
        assert "20 of 25" in text


def test_empty_folder_gives_a_page_that_says_nothing_was_measured(tmp_path: Path):
    (tmp_path / "run").mkdir()
    page = build_report([tmp_path / "run"], tmp_path / "out")
    assert "Nothing was measured" in page.read_text(encoding="utf-8")
    assert "Nothing was measured" in (page.parent / "report.md").read_text(encoding="utf-8")
    assert list(pd.read_csv(page.parent / "measurements.csv").columns) == list(load(tmp_path / "run").columns)


def test_page_says_nothing_was_measured_when_all_cells_were_skipped(run, tmp_path: Path):
    run.add(status="skipped", reason="needs nvcc", strategy="single")
    text = "".join(parsed(build_report([run.folder], tmp_path / "out")).texts)
    assert "Nothing was measured" in text
    assert "needs nvcc" in text


def test_folder_that_does_not_exist_is_a_user_error(tmp_path: Path):
    with pytest.raises(UserError, match="no such folder"):
        build_report([tmp_path / "absent"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


HOSTILE = [f'">{SCRIPT}<img src=x onerror=alert(1)>', "$\\frac{ --> <!--", "a|b\n| c |"]


def test_names_from_records_stay_text_when_they_look_like_code(run, tmp_path: Path):
    for i, hostile in enumerate(HOSTILE):
        run.train("single", 1, name=hostile, suite=hostile, machine=HOSTILE[0], credit=hostile, seed=i)
    run.throughput("grendel", 2, name=HOSTILE[0], suite="s", machine=HOSTILE[0])
    run.add(status="failed", reason=HOSTILE[0], log_tail=[HOSTILE[2]], name=HOSTILE[1], machine=HOSTILE[2], suite="s")
    page = build_report([run.folder], tmp_path / "out")
    links = parsed(page)
    assert not {"iframe", "link"} & set(links.tags)
    assert links.tags.count("script") == 1, "the page's own"
    assert "x" not in links.loads
    text = "".join(links.texts)
    assert all(hostile.strip() in text for hostile in HOSTILE)
    markdown = (page.parent / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"<script|<img", markdown)
    table = next(part for part in markdown.split("\n\n") if part.startswith("| cell |"))
    unescaped_bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
    assert len(unescaped_bars) == 1, "a name must not add a column"


def test_rendering_again_gives_the_same_files_and_leaves_others_alone(run, tmp_path: Path):
    run.train("single", 1)
    run.throughput("grendel", 2, engine="virtual")
    run.add(status="failed", reason="rank 1 ended")
    out = tmp_path / "out"
    build_report([run.folder], out)
    (out / "notes.txt").write_text("mine")
    first = {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    build_report([run.folder], out)
    assert {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()} == first


def test_old_plots_go_when_the_new_report_has_none(run, new_run: Callable, tmp_path: Path):
    run.throughput()
    build_report([run.folder], tmp_path / "out")
    other = new_run("other")
    other.add(status="skipped", reason="needs nvcc")
    build_report([other.folder], tmp_path / "out")
    assert list((tmp_path / "out" / "plots").iterdir()) == []


def test_old_report_stays_whole_when_a_record_is_damaged(run, tmp_path: Path):
    folder = run.throughput()
    page = build_report([run.folder], tmp_path / "out")
    before = page.read_bytes()
    (folder / "samples.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="damaged"):
        build_report([run.folder], tmp_path / "out")
    assert page.read_bytes() == before
    assert not list(page.parent.glob(".report-*"))


def test_folders_are_merged_when_several_are_given(new_run: Callable, tmp_path: Path):
    one, two = new_run("one"), new_run("two")
    one.throughput("single", 1, suite="first")
    two.throughput("grendel", 2, suite="second")
    page = build_report([one.folder, two.folder], tmp_path / "out")
    text = "".join(parsed(page).texts)
    assert "first, second" in text
    assert "single · 1 rank" in text
    assert "grendel · 2 ranks" in text
    assert set(pd.read_csv(page.parent / "measurements.csv")["suite"]) == {"first", "second"}


def test_stand_in_scene_is_marked_on_the_page_and_in_titles(run, tmp_path: Path):
    run.throughput("single", 1, stand_in=True)
    page = build_report([run.folder], tmp_path / "out")
    assert 'class="banner"' in page.read_text(encoding="utf-8")
    markdown = (page.parent / "report.md").read_text(encoding="utf-8")
    assert "> **CPU-size scene.**" in markdown
    assert "batch 1 · CPU-size scene.** Throughput" in markdown


def test_ordinary_scene_is_not_marked_as_stand_in(run, tmp_path: Path):
    run.throughput("single", 1)
    assert "CPU-size" not in build_report([run.folder], tmp_path / "out").read_text(encoding="utf-8")


def test_modelled_values_are_hatched_and_explained(run, tmp_path: Path):
    run.throughput("single", 1)
    assert "hatched" not in build_report([run.folder], tmp_path / "out").read_text(encoding="utf-8")
    run.throughput("grendel", 4, engine="virtual")
    html = build_report([run.folder], tmp_path / "out").read_text(encoding="utf-8")
    assert "hatched bars are modelled" in html
    assert "took turns on one device" in html
    assert "<pattern" in html, "the hatch itself"


def test_report_survives_pictures_that_are_missing_damaged_or_outside(run, tmp_path: Path):
    folder = run.train("single", 1)
    (folder / "images" / "render.png").write_bytes(b"no picture")
    (folder / "images" / "truth.png").unlink()
    (tmp_path / "secret.png").write_bytes((folder / "images" / "initial.png").read_bytes())
    record = (folder / "record.json").read_text(encoding="utf-8")
    (folder / "record.json").write_text(record.replace("images/initial.png", "../../secret.png"), encoding="utf-8")
    page = build_report([run.folder], tmp_path / "out")
    links = parsed(page)
    assert links.tags.count("img") == 1, "the difference alone is left"
    assert "".join(links.texts).count("no picture") == 3
