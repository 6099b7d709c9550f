"""Tables and galleries in Markdown files, written from committed records between marks that name them.

<!-- figures: reports/h200/anchor -->       what lies between the marks is written by `python -m harness readme`
<!-- end -->
<!-- gallery: reports/cpu/quickstart -->    pictures of the first held-out view, one a strategy
<!-- end -->
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.evidence.comparison import TIMES
from harness.evidence.measured import MeasuredCell, read
from harness.evidence.trees import present
from harness.measure.statistics import median
from harness.records.schema import RecordImage
from harness.report.labels import size
from harness.report.quantities import count, decibels, milliseconds, number

_BLOCK = re.compile(r"(<!-- (figures|gallery): (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_MARK = re.compile(r"<!-- (figures|gallery)\b.*?-->")


def written(file: Path) -> str:
    """The file's text with every block as its records have it now.

    UserError for a mark without an end, for a folder that is not there, or one whose records show nothing of the kind.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror}); expected a Markdown file", file) from None
    if len(_MARK.findall(text)) != len(_BLOCK.findall(text)):
        raise UserError("a block has no end; expected <!-- end --> after each mark", file)

    def block(match: re.Match[str]) -> str:
        kind, folder = match[2], file.parent / match[3]
        cells = read([folder])
        content = _figures(cells) if kind == "figures" else _gallery(cells, file.parent)
        if not content:
            raise UserError(f"{kind}: {match[3]} has no record that could be shown", file)
        return f"{match[1]}{content}\n{match[5]}"

    return _BLOCK.sub(block, text)


def stale(file: Path) -> list[str]:
    """A sentence for each block whose records were made by other code than the present one."""
    tree = present()
    found = []
    for match in _BLOCK.finditer(file.read_text(encoding="utf-8")):
        old = {
            cell.first.commit
            for cell in read([file.parent / match[3]])
            if tree.code_id(cell.settings["strategy"]) != cell.first.code_id
        }
        if old:
            found.append(f"{match[3]} is stale: figures are of {', '.join(sorted(old))}")
    return found


def _figures(cells: list[MeasuredCell]) -> str:
    """A row a cell with a rate: fixed columns, and what else tells the cells apart; equal values go below."""
    rows = []
    for cell in cells:
        rates, steps = cell.values("views_per_second"), cell.values(TIMES.get(cell.settings["scenario"], ""))
        if rates:
            about = _about(cell) | {"views/s": number(median(rates)), "ms a step": milliseconds(median(steps))}
            rows.append(about | {"repeats": str(len(rates)), "commit": cell.first.commit})
    if not rows:
        return ""
    common = {key: value for key, value in rows[0].items() if all(row[key] == value for row in rows)}
    keep = [key for key in rows[0] if key not in common or key in ("strategy", "views/s", "ms a step")]
    below = ", ".join(f"{key} {value}" for key, value in common.items() if key not in keep and value)
    rows.sort(key=lambda row: [_order(row[key]) for key in keep if key not in ("views/s", "ms a step")])
    table = [f"| {' | '.join(keep)} |", f"|{'|'.join('---' for _ in keep)}|"]
    table += [f"| {' | '.join(row[key] for key in keep)} |" for row in rows]
    return "\n".join([*table, *(["", below[0].upper() + below[1:] + "."] if below else [])])


def _about(cell: MeasuredCell) -> dict[str, str]:
    settings: Mapping[str, Any] = cell.settings
    scene, pixels = settings["scene"], settings["size"]
    options = " ".join(f"{key}={value}" for key, value in settings["options"].items())
    return {
        "strategy": str(settings["strategy"]),
        "settings": str(settings["name"] or options),
        "scene": str(scene.get("city") or Path(scene.get("path") or "").name),
        "Gaussians": count(scene.get("gaussians") or scene.get("points")),
        "size": size(*pixels) if pixels else "",
        "ranks": str(settings["ranks"]),
        "batch": str(settings["batch"]),
        "machine": cell.first.machine,
    }


def _order(text: str) -> tuple[float, str]:
    """Numbers by size, other texts by letters."""
    plain = text.replace(",", "")
    return (float(plain), "") if re.fullmatch(r"\d+(\.\d+)?", plain) else (0.0, text)


def _gallery(cells: list[MeasuredCell], beside: Path) -> str:
    """The truth of the first held-out view, and each strategy's last picture of it, on its most ranks."""
    truth: Path | None = None
    shown: dict[str, tuple[Path, RecordImage]] = {}
    for cell in sorted(cells, key=lambda cell: -cell.settings["ranks"]):
        folder, record = cell.repeats[0]
        images = record.result.images if record.result and record.status == "ok" else []
        view = min((image.view for image in images), default=0)
        for image in images:
            if image.view == view and image.kind == "truth" and truth is None:
                truth = folder / image.file
            if image.view == view and image.kind == "render":
                shown.setdefault(str(cell.settings["strategy"]), (folder / image.file, image))
    if truth is None or not shown:
        return ""

    def picture(path: Path, text: str) -> str:
        return f"![{text}]({Path(os.path.relpath(path, beside)).as_posix()})"

    headings = ["truth", *(f"{name}, {decibels(image.psnr)} dB" for name, (_, image) in shown.items())]
    pictures = [picture(truth, "truth"), *(picture(path, name) for name, (path, _) in shown.items())]
    return "\n".join(
        [f"| {' | '.join(headings)} |", f"|{'|'.join('---' for _ in headings)}|", f"| {' | '.join(pictures)} |"]
    )
