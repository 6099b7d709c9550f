"""Truth, render, difference and initial pictures of held-out views, small enough to be part of the page."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from harness.records.schema import Record, RecordImage
from harness.report.frames import Results
from harness.report.quantities import NONE, decibels

_WIDTH = 320
"""Most pixels a picture is wide in the report; the record keeps the whole."""

AMPLIFIED = 4
"""Differences are shown so many times as bright: most are a few grey levels, black to the eye."""

_CELLS = 12
"""Most cells of one group whose pictures are shown."""


@dataclass(frozen=True)
class Picture:
    """A JPEG. width, height: of the picture shown. name: its file in the folder of plots, by content."""

    jpeg: bytes
    width: int
    height: int

    @property
    def name(self) -> str:
        return f"view-{hashlib.sha256(self.jpeg).hexdigest()[:12]}.jpg"

    @property
    def url(self) -> str:
        return "data:image/jpeg;base64," + base64.b64encode(self.jpeg).decode("ascii")


@dataclass(frozen=True)
class CellPictures:
    """What one cell made of a view. psnr: of that view, dB, as text."""

    label: str
    render: Picture | None
    difference: Picture | None
    psnr: str


@dataclass
class ViewPictures:
    """One held-out view: the photograph, what training started from, and what each cell made of it."""

    title: str
    view: str
    credit: str
    truth: Picture | None = None
    initial: Picture | None = None
    initial_psnr: str = NONE
    cells: list[CellPictures] = field(default_factory=list)
    left_out: int = 0


def read_picture(folder: Path, image: RecordImage) -> Picture | None:
    """The record's picture, at most 320 pixels wide; None when its file is missing, damaged or outside the record."""
    path = (folder / image.file).resolve()
    if not path.is_relative_to(folder.resolve()):
        return None
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return None
    if picture.width > _WIDTH:
        height = max(1, round(picture.height * _WIDTH / picture.width))
        picture = picture.resize((_WIDTH, height), Image.Resampling.LANCZOS)
    if image.kind == "difference":
        picture = picture.point(lambda level: min(255, AMPLIFIED * level))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=88)
    return Picture(out.getvalue(), picture.width, picture.height)


def views(results: Results) -> list[ViewPictures]:
    """Every view that has pictures, by group, with the cells in the report's order."""
    found: dict[tuple[str, int], ViewPictures] = {}
    for cell, number in results.first_ok().items():
        folder, record = results.records[number]
        row = results.cells.loc[cell]
        for view, images in _by_view(record).items():
            _add(found, (str(row["title"]), view), str(row["label"]), folder, images)
    return [found[key] for key in found]


def _by_view(record: Record) -> dict[int, dict[str, RecordImage]]:
    """The record's last picture of each kind, by view."""
    by_view: dict[int, dict[str, RecordImage]] = {}
    for image in sorted(record.result.images if record.result else (), key=lambda i: (i.view, i.images_seen or 0)):
        by_view.setdefault(image.view, {})[image.kind] = image
    return by_view


def _add(
    found: dict[tuple[str, int], ViewPictures],
    key: tuple[str, int],
    label: str,
    folder: Path,
    images: dict[str, RecordImage],
) -> None:
    any_image = next(iter(images.values()))
    view = found.setdefault(key, ViewPictures(key[0], any_image.view_name or f"view {key[1]}", any_image.credit))
    if len(view.cells) >= _CELLS:
        view.left_out += 1
        return
    if view.truth is None and "truth" in images:
        view.truth = read_picture(folder, images["truth"])
    if view.initial is None and "initial" in images:
        view.initial = read_picture(folder, images["initial"])
        view.initial_psnr = decibels(images["initial"].psnr)
    render, difference = (
        read_picture(folder, images[kind]) if kind in images else None for kind in ("render", "difference")
    )
    if render or difference:
        psnr = images["render"].psnr if "render" in images else None
        view.cells.append(CellPictures(label, render, difference, decibels(psnr)))
