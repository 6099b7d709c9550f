"""The report in a real browser: it says nothing on the console, fits, shows its pictures, and its tables sort."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr"
)
WIDTHS = (1280, 390)

WATCH = """
window.problems = [];
addEventListener("error", (event) => window.problems.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => window.problems.push(event.violatedDirective));
"""

PROBE = """
addEventListener("load", async () => {
  await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
  const table = document.querySelector("#cells table");
  const heading = [...table.tHead.rows[0].cells].find((cell) => cell.textContent === "views/s");
  const column = heading.cellIndex;
  const entries = (body) => [...body.rows].slice(1);
  const rates = () => [...table.tBodies].map((body) => entries(body).map((row) => row.cells[column].dataset.key));
  const sorted = [];
  for (let i = 0; i < 2; i++) {
    heading.querySelector("button").click();
    sorted.push({ order: heading.getAttribute("aria-sort"), rates: rates() });
  }
  const name = table.tHead.rows[0].cells[0];
  name.querySelector("button").click();
  const names = [...table.tBodies].map((body) => entries(body).map((row) => row.cells[0].textContent.trim()));
  const slider = document.querySelector(".slider input");
  slider.value = 80;
  slider.dispatchEvent(new Event("input"));
  slider.focus();
  const focused = document.activeElement === slider;
  const over = document.querySelector(".slider .over");
  const select = document.querySelector(".slider select");
  select.selectedIndex = select.options.length - 1;
  select.dispatchEvent(new Event("change"));
  parent.postMessage({
    width: innerWidth,
    scrollWidth: document.documentElement.scrollWidth,
    images: [...document.images].map((image) => image.naturalWidth),
    groups: [...table.tBodies].map((body) => body.rows[0].classList.contains("group")),
    sorted, names, focused,
    label: slider.getAttribute("aria-label"),
    clip: getComputedStyle(over).clipPath,
    chosen: over.alt,
    problems: window.problems,
  }, "*");
});
"""


@pytest.fixture(scope="module")
def opened(mixed_report: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """What the page says of itself at each width, and what the browser wrote on its console.

    A window is never narrower than 500 pixels, a frame is: the page is opened in one frame for each width.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser found, looked for {', '.join(BROWSERS)}")
    folder = tmp_path_factory.mktemp("browser")
    (folder / "page.html").write_text(_probed(mixed_report.read_text(encoding="utf-8")), encoding="utf-8")
    frames = "".join(
        f'<iframe src="page.html" style="width: {w}px; height: 900px; border: 0"></iframe>' for w in WIDTHS
    )
    (folder / "frames.html").write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><pre id="told"></pre>{frames}'
        "<script>const told = [];addEventListener('message', (event) => { told.push(event.data);"
        "document.getElementById('told').textContent = JSON.stringify(told); });</script>",
        encoding="utf-8",
    )
    page, said = _shown(browser, folder)
    told = re.search(r'<pre id="told">(.*?)</pre>', page, re.DOTALL)
    assert told, said[-2000:]
    assert told[1], f"the page's scripts did not run: {said[-2000:]}"
    console = [line for line in said.splitlines() if ":CONSOLE" in line]
    return {found["width"]: found for found in json.loads(unescape(told[1]))}, console


def _shown(browser: str, folder: Path) -> tuple[str, str]:
    """The frames' page as it stands once its scripts ran, and the browser's log.

    Tried twice: a browser that starts on a busy machine may hang.
    """
    for attempt in ("first", "second"):
        command = [browser, *FLAGS.split(), f"--user-data-dir={folder / attempt}", "--virtual-time-budget=20000"]
        process = subprocess.Popen(
            [*command, "--dump-dom", (folder / "frames.html").as_uri()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            page, said = process.communicate(timeout=100)
            assert process.returncode == 0, said[-2000:]
            return page, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    pytest.fail(f"{browser} did not end within 100 s, twice")


def _probed(html: str) -> str:
    """The page with two scripts of ours, which its policy is told to let run."""
    for script, before in ((WATCH, "<style>"), (PROBE, "</body>")):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        html = html.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
        html = html.replace(before, f"<script>{script}</script>{before}", 1)
    return html


def test_page_reports_no_error_on_the_console(opened):
    pages, console = opened
    assert console == []
    assert [page["problems"] for page in pages.values()] == [[], []]


@pytest.mark.parametrize("width", WIDTHS)
def test_page_needs_no_horizontal_scrolling(opened, width: int):
    page = opened[0][width]
    assert page["scrollWidth"] <= page["width"]


def test_every_image_loads(opened):
    for page in opened[0].values():
        assert len(page["images"]) >= 8
        assert all(width > 0 for width in page["images"])


def test_tables_sort_numbers_both_ways_within_their_groups_and_leave_absent_ones_last(opened):
    page = opened[0][1280]
    assert all(page["groups"]), "a group's title stays its first row"
    assert [found["order"] for found in page["sorted"]] == ["descending", "ascending"]
    for found, falling in zip(page["sorted"], (True, False), strict=True):
        assert any(len(rates) > 2 for rates in found["rates"])
        for rates in found["rates"]:
            present = [float(rate) for rate in rates if rate is not None]
            assert present == sorted(present, reverse=falling)
            assert rates[len(present) :] == [None] * (len(rates) - len(present))


def test_tables_sort_texts_from_the_first_letter(opened):
    for names in opened[0][1280]["names"]:
        assert names == sorted(names, key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def test_slider_moves_its_edge_takes_the_focus_and_compares_the_chosen_cell(opened):
    page = opened[0][390]
    assert page["focused"]
    assert page["label"].startswith("From truth")
    assert "80%" in page["clip"]
    assert page["chosen"].startswith("grendel · 2 ranks · a name as long")
