"""The same report as Markdown, with its plots beside it."""

from __future__ import annotations

import re
from functools import lru_cache

from markupsafe import Markup, escape

from harness.report.html import environment
from harness.report.page import Page


def render_markdown(page: Page) -> str:
    """GitHub-flavoured Markdown; pictures are referenced in `plots/`."""
    templates = environment()
    templates.filters["cell"] = cell
    text = templates.get_template("report.md.j2").render(page=page)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def cell(text: object) -> Markup:
    """Text that stays text in a table: HTML escaped, and neither a bar nor a line break ends its cell."""
    return _escaped(str(text))


@lru_cache(maxsize=4096)  # The entries of a table are much the same.
def _escaped(text: str) -> Markup:
    plain = re.sub(r"\s+", " ", text).strip()
    return Markup(re.sub(r"([\\`*_\[\]|])", r"\\\1", str(escape(plain))))
