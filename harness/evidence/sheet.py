"""One table as people and programs want it: for the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.evidence.forms import Format
from harness.report.markdown import cell as markdown_cell
from harness.report.quantities import NONE

WIDTH = 80
"""Columns that every table fits into."""

COLOURS = {"faster": "green", "slower": "red", "changed": "red", "missing": "red", "not ok": "red"}
COLOURS |= {"ambiguous": "yellow", "stale": "yellow", "new": "red", "no data": "yellow", "not": "red"}


@dataclass(frozen=True)
class Sheet:
    """title: a line above. columns: headings; those in `right` hold figures. rows: texts, as many as columns.

    under: a column that a terminal has no room for: its text stands below that of the first. below: sentences under the
    table. data: what programs are given, one mapping a row, and `facts` beside them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
    under: str = ""
    below: Sequence[str] = ()
    data: Sequence[Mapping[str, Any]] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def write(self, kind: Format, console: Console) -> None:
        """Onto the console, in that form."""
        if kind is Format.terminal:
            console.width = min(console.width, WIDTH)
            console.print(self._table())
            for line in self.below:
                console.print(escape(line), highlight=False)
        else:
            print(self.text(kind), file=console.file)

    def text(self, kind: Format) -> str:
        """As Markdown, CSV or JSON."""
        if kind is Format.markdown:
            return self.markdown()
        if kind is Format.csv:
            return self._csv()
        return json.dumps({**self.facts, "rows": list(self.data)}, indent=1, ensure_ascii=False)

    def markdown(self) -> str:
        aligned = ["--:" if heading in self.right else "---" for heading in self.columns]
        lines = [list(self.columns), aligned, *([str(markdown_cell(text)) for text in row] for row in self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        below = "".join(f"\n\n{markdown_cell(line)}" for line in self.below)
        return f"**{markdown_cell(self.title)}**\n\n{table}{below}"

    def _csv(self) -> str:
        text = io.StringIO()
        headings = list(dict.fromkeys(key for row in self.data for key in row))
        writer = csv.DictWriter(text, headings, lineterminator="\n")
        writer.writeheader()
        for row in self.data:
            flat = {k: "; ".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()}
            writer.writerow(flat)
        return text.getvalue().rstrip("\n")

    def _table(self) -> Table:
        table = Table(
            title=escape(self.title),
            title_justify="left",
            title_style="bold",
            box=None,
            padding=(0, 2, 0, 0),
            expand=bool(self.under),  # What stands under the first column has its width.
        )
        beside = [place for place, heading in enumerate(self.columns) if heading != self.under and self._says(place)]
        for place in beside:
            heading = self.columns[place]
            table.add_column(
                heading,
                justify="right" if heading in self.right else "left",
                overflow="fold",
                ratio=1 if self.under and place == 0 else None,
            )
        for row in self.rows:
            first, *others = (self._coloured(row[place]) for place in beside)
            text = row[self.columns.index(self.under)] if self.under else ""
            about = Padding(Text(text, style="dim"), (0, 0, 0, 2))
            table.add_row(Group(Text.from_markup(first), about) if text else first, *others)
        return table

    def _says(self, place: int) -> bool:
        """Whether a column of figures has any."""
        return self.columns[place] not in self.right or not self.rows or any(row[place] != NONE for row in self.rows)

    @staticmethod
    def _coloured(text: str) -> str:
        colour = COLOURS.get(text)
        return f"[{colour}]{escape(text)}[/{colour}]" if colour else escape(text)
