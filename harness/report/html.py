"""The page: one HTML file that needs nothing beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.report import drawing
from harness.report.page import Page
from harness.report.parts import Plot


def environment() -> Environment:
    """Templates of the report; everything that comes from records is escaped, in Markdown too."""
    templates = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["by"] = _by
    return templates


def _by(rows: Iterable[Any], attribute: str) -> Iterator[tuple[Any, list[Any]]]:
    """Neighbouring rows with an equal attribute, in the order they have; Jinja's own `groupby` would sort them."""
    return ((key, list(group)) for key, group in groupby(rows, attrgetter(attribute)))


def render_html(page: Page) -> str:
    """The whole page; call inside drawing.style, since it draws the plots."""

    def inline(plot: Plot) -> Markup:
        return drawing.svg(plot.figure, plot.name, f"{plot.title}. {plot.description}")

    templates = environment()
    templates.filters["inline"] = inline
    script = templates.loader.get_source(templates, "report.js")[0]  # type: ignore[union-attr]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    # The page's own policy: nothing is loaded from anywhere, and no script runs but this one.
    return templates.get_template("report.html.j2").render(
        page=page, script=Markup(script), script_hash=f"sha256-{digest}"
    )
