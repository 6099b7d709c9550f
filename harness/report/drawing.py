"""From a Figure to what the report holds: a PNG for Markdown, an SVG that takes the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import seaborn as sns
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from harness.report.palette import GRID, INK, MUTED

_DPI = 110

_STYLE: Any = {
    "font.size": 10,
    "font.family": "sans-serif",
    "text.color": INK,
    "text.parse_math": False,  # names come from files; a dollar sign is a dollar sign
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


def write_png(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=_DPI, facecolor="white", metadata={"Software": None})


def svg(figure: Figure, name: str, description: str) -> Markup:
    """Inline SVG, the same for the same figure. name: unique in the page. description: read out instead of it."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for colour, variable in ((INK, "ink"), (MUTED, "muted"), (GRID, "grid")):
        body = body.replace(colour, f"var(--{variable})")
    body = re.sub(r'(id="|"#|url\(#)', rf"\g<1>{name}-", body)
    opening = f'<svg role="img" aria-label="{escape(description)}"'
    return Markup(body.replace("<svg", opening, 1))
