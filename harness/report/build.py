"""`report`: from folders of records to report.html, report.md, measurements.csv and plots/."""

from __future__ import annotations

import csv
import gc
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from harness.records.load import rows_of
from harness.records.schema import COLUMNS, Record
from harness.report import drawing, frames
from harness.report.html import render_html
from harness.report.markdown import render_markdown
from harness.report.page import Page, compose

HTML, MARKDOWN, TABLE, PLOTS = "report.html", "report.md", "measurements.csv", "plots"


def build_report(folders: list[Path], out: Path) -> Path:
    """Write the report of all records at or below the folders into `out`; returns the path of report.html.

    Equal records give equal files. Everything is written beside `out` first and moved into it at the end, so that a
    reader never finds half a report; what else lies in `out` stays. UserError for a folder that does not exist or a
    damaged record; without any record the page says that nothing was measured.
    """
    results = frames.read(folders)
    # The records stay to the end: without this, each full collection among the artists of plots visits all of them.
    gc.freeze()
    out.mkdir(parents=True, exist_ok=True)
    # Inside `out`, since a rename is atomic only within one file system.
    fresh = Path(tempfile.mkdtemp(prefix=".report-", dir=out))
    try:
        with drawing.style():
            page = compose(results)
            (fresh / HTML).write_text(render_html(page), encoding="utf-8")
            _write_plots(page, fresh / PLOTS)
        (fresh / MARKDOWN).write_text(render_markdown(page), encoding="utf-8")
        _write_table(results.every, fresh / TABLE)
        _move(fresh, out)
    finally:
        gc.unfreeze()
        shutil.rmtree(fresh, ignore_errors=True)
    return out / HTML


def _write_table(every: Iterable[Record], path: Path) -> None:
    """All measurements, as `load` has them, row by row: the whole table takes more memory than the records."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows_of(every))


def _write_plots(page: Page, folder: Path) -> None:
    folder.mkdir()
    for plot in page.plots:
        drawing.write_png(plot.figure, folder / f"{plot.name}.png")
    for view in page.views:
        shown = [view.truth, view.initial, *(p for c in view.cells for p in (c.render, c.difference))]
        for picture in shown:
            if picture:
                (folder / picture.name).write_bytes(picture.jpeg)


def _move(fresh: Path, out: Path) -> None:
    """The folder of plots first and the page last: a page that can be read has everything it shows."""
    old = out / PLOTS
    if old.exists():
        old.rename(fresh / "replaced")
    (fresh / PLOTS).rename(old)
    for name in (TABLE, MARKDOWN, HTML):
        (fresh / name).replace(out / name)
