"""Tables and galleries in Markdown files, written from committed records between marks that name them.

<!-- figures: reports/h200/anchor -->       what lies between the marks is written by `python -m harness readme`
<!-- end -->
<!-- figures: reports/h200/{anchor,tail} --> one table a folder that is there, each under its name
<!-- end -->
<!-- gallery: reports/cpu/quickstart -->    pictures of the first held-out view, one a strategy
<!-- end -->
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from harness.errors import UserError
from harness.evidence.figures import table
from harness.evidence.measured import MeasuredCell, read
from harness.evidence.trees import present
from harness.records.schema import RecordImage
from harness.report.quantities import decibels

_BLOCK = re.compile(r"(<!-- (figures|gallery): (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_MARK = re.compile(r"<!-- (figures|gallery)\b.*?-->")
_BRACES = re.compile(r"(.*)\{(.*)\}")


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

    tree = present()

    def block(match: re.Match[str]) -> str:
        found = {name: read([path]) for name, path in _folders(match[3], file.parent).items()}
        if match[2] == "figures":
            content = _figures({name: table(cells, tree) for name, cells in found.items()})
        else:
            content = _gallery([cell for cells in found.values() for cell in cells], file.parent)
        if not content:
            raise UserError(f"{match[2]}: {match[3]} has no record that could be shown", file)
        return f"{match[1]}{content}\n{match[5]}"

    return _BLOCK.sub(block, text)


def stale(file: Path) -> list[str]:
    """A sentence for each folder whose records were made by other code than the present one."""
    tree = present()
    found = []
    for match in _BLOCK.finditer(file.read_text(encoding="utf-8")):
        for name, path in _folders(match[3], file.parent).items():
            old = {cell.first.commit for cell in read([path]) if not tree.made(cell.first)}
            if old:
                found.append(f"{name} is stale: figures are of {', '.join(sorted(old))}")
    return found


def _folders(named: str, beside: Path) -> dict[str, Path]:
    """Folders by their names; of several in braces those that are there."""
    several = _BRACES.fullmatch(named)
    if several is None:
        return {named: beside / named}
    names = [several[1] + name for name in several[2].split(",")]
    return {name: beside / name for name in names if (beside / name).exists()}


def _figures(tables: dict[str, str]) -> str:
    """Tables by folder, those that have rows; of several each under its folder's name."""
    shown = {name: text for name, text in tables.items() if text}
    if len(tables) == 1:
        return "".join(shown.values())
    return "\n\n".join(f"[{Path(name).name}]({name}):\n\n{text}" for name, text in shown.items())


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
