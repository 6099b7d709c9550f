"""From a Figure to what the report holds: a PNG for Markdown, an SVG that takes the page's colours."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
import seaborn as sns
from markupsafe import Markup, escape
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from harness.report.palette import GRID, INK, MUTED

WIDTH = 9.5
"""Inches; at 72 SVG points an inch about the width of the page's text."""

_DPI = 110

_ROW = 0.36
"""Inches a bar takes, its gap included."""

_BOX, LINE = 1.1, 3.2
"""Lengths of a legend's handles, in its letters: of a coloured box, of a line with its dashes and mark."""

_STYLE: Any = {
    "font.size": 10,
    "font.family": "sans-serif",
    "text.color": INK,
    "text.hinting": "none",  # a quarter of the time that a plot takes
    "text.parse_math": False,  # names come from files; a dollar sign is a dollar sign
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.linewidth": 1.0,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "xtick.bottom": False,
    "ytick.left": False,
    "hatch.linewidth": 1.6,
    "legend.fontsize": 9.5,
    "axes.labelsize": 9.5,
    "svg.fonttype": "none",  # text stays text: small, selectable, in the page's font
}


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure; figures are made and written inside."""
    with sns.axes_style("whitegrid"), mpl.rc_context(_STYLE):
        yield


def bars(labels: Sequence[str], key: Sequence[str] = (), panels: int = 1) -> tuple[Figure, Any]:
    """A figure for horizontal bars, the first label at the top, and its Axes (several panels: an array that shares y).

    key: texts of the legend that will stand above.
    """
    above = 0.27 * -(-len(key) // _abreast(key, _BOX)) if key else 0.0
    figure = Figure(figsize=(WIDTH, 0.75 + above + _ROW * len(labels)), layout="constrained")
    found = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    for axes in found:
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    names = [textwrap.fill(label, 44, max_lines=2, placeholder=" …") for label in labels]
    found[0].set_yticks(range(len(labels)), names)
    return figure, found[0] if panels == 1 else found


def legend(figure: Figure, handles: Sequence[Artist], length: float = _BOX) -> None:
    """The legend above everything, in as many columns as its texts leave room for. length: of a handle."""
    texts = [textwrap.shorten(str(handle.get_label()), 90, placeholder=" …") for handle in handles]
    figure.legend(
        handles=handles,
        labels=texts,
        loc="outside upper left",
        ncols=_abreast(texts, length),
        frameon=False,
        columnspacing=1.4,
        handlelength=length,
    )


def _abreast(texts: Sequence[str], length: float) -> int:
    """Columns of a legend: its width holds about 118 letters."""
    return max(1, min(6, int(118 / (max(map(len, texts)) + 2 + 2.6 * length))))


def stacked(
    axes: Axes, row: int, left: float, sizes: Sequence[float], colours: Sequence[str], hatched: bool = False
) -> None:
    """Parts of one bar from `left` on, as one artist: with an artist a part, many bars take seconds to draw."""
    starts = accumulate(sizes, initial=left)
    style: dict[str, Any] = {"edgecolor": "white", "hatch": "////"} if hatched else {}
    axes.broken_barh(list(zip(starts, sizes, strict=False)), (row - 0.33, 0.66), facecolors=colours, lw=0, **style)


def beside(axes: Axes, text: str, right: float, row: float) -> None:
    """A bar's figure, right of its end."""
    axes.annotate(text, (right, row), (7, 0), textcoords="offset points", va="center", color=INK)


def write_png(figure: Figure, path: Path) -> None:
    """On white, whatever the page's colours. The canvas is called directly: savefig would draw everything twice."""
    figure.set_facecolor("white")
    figure.set_dpi(_DPI)
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def svg(figure: Figure, name: str, description: str) -> Markup:
    """Inline SVG, the same for the same figure. name: unique in the page. description: read out instead of it."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(text, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    figure.set_layout_engine("none")  # It stays as it is now laid out; doing so takes longer than drawing.
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for colour, variable in ((INK, "ink"), (MUTED, "muted"), (GRID, "grid")):
        body = body.replace(colour, f"var(--{variable})")
    body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", body)
    opening = f'<svg role="img" aria-label="{escape(description)}"'
    return Markup(body.replace("<svg", opening, 1))
