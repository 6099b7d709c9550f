"""What a report is made of, before it becomes HTML or Markdown: sections of plots, tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from harness.report.quantities import NONE

T = TypeVar("T")

MOST_GROUPS = 6
"""Most groups of cells a section draws; the others are in its tables, or in measurements.csv."""

FEW_GROUPS = 3
"""As many it draws where there are more than that: such a page is read by its tables."""

MOST_BARS = 20
"""Most cells that a plot of bars draws: more are no longer read, only scrolled."""

MOST_LINES = 12
"""Most lines that a plot draws: as many as colours, marks and dashes tell apart."""

_FOLDED_ROWS = 14
"""A table with more rows than this is folded until a reader asks for it."""


@dataclass(frozen=True)
class Plot:
    """name: of its file, without ending. description: the caption, also read out in place of the picture."""

    name: str
    title: str
    description: str
    figure: Figure
    kind: ClassVar[str] = "plot"


@dataclass(frozen=True)
class Value:
    """A table's entry: what is read, and the number its column is sorted by (none sorts last)."""

    text: str
    key: float | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """The first column names the row, the others are figures.

    bodies: (title, rows), such as one for each group of cells. summary: of a table that is folded when it is long.
    """

    title: str
    columns: list[str]
    bodies: list[tuple[str, list[list[Value]]]]
    summary: str = ""
    kind: ClassVar[str] = "table"

    @property
    def rows(self) -> list[list[Value]]:
        return [row for _, rows in self.bodies for row in rows]

    def numeric(self, column: int) -> bool:
        """Whether the column holds figures: at least one entry has a number."""
        return any(row[column].key is not None for row in self.rows)

    @property
    def folded(self) -> bool:
        return bool(self.summary) and len(self.rows) > _FOLDED_ROWS


@dataclass(frozen=True)
class Lines:
    """Plain sentences under a title, each with what it is about."""

    title: str
    lines: list[tuple[str, str]]
    kind: ClassVar[str] = "lines"


@dataclass
class Section:
    """A heading and what stands below it. name: its anchor. intro: one or two sentences, or empty."""

    name: str
    title: str
    intro: str = ""
    parts: list[Plot | Table | Lines] = field(default_factory=list)

    @property
    def plots(self) -> list[Plot]:
        return [part for part in self.parts if isinstance(part, Plot)]


def text(value: object) -> Value:
    """An entry that is no number."""
    return Value(str(value))


def figure(value: float | None, shown: Callable[[float | None], str]) -> Value:
    """An entry that is a number, as `shown` writes it."""
    absent = value is None or pd.isna(value)
    return Value(NONE if absent else shown(value), None if absent else float(value))  # type: ignore[arg-type]


def groups(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(title, rows) of each group of cells, in the report's order."""
    return [(str(title), group) for title, group in frame.groupby("title", sort=False)] if len(frame) else []


def some(rows: pd.DataFrame, by: str, most: int) -> tuple[pd.DataFrame, str]:
    """The rows of at most so many values of the column `by`, and a sentence that says so, empty where these are all.

    They are taken from each strategy and number of ranks in turn, so that none is left out for having come last.
    """
    firsts = rows.drop_duplicates(by)
    if len(firsts) <= most:
        return rows, ""
    turn = firsts.groupby(["strategy", "ranks"], sort=False).cumcount().sort_values(kind="stable")
    kept = firsts.loc[turn.index[:most], by]
    return rows[rows[by].isin(kept)], f" {most} of {len(firsts)}, some of each strategy and number of ranks."


def to_draw(titled: Iterable[T]) -> list[T]:
    """Those of the groups that a section draws: all, or the first few of many."""
    found = list(titled)
    return found if len(found) <= MOST_GROUPS else found[:FEW_GROUPS]


def drawn(
    name: str,
    titled: Iterable[tuple[str, pd.DataFrame]],
    describe: Callable[[pd.DataFrame], str],
    draw: Callable[[pd.DataFrame], Figure],
    by: str = "label",
    most: int = MOST_BARS,
) -> list[Plot]:
    """A plot of each of the first groups, named `name-1`, `name-2`, ...; by, most: of what it draws at most so many."""
    found = []
    for number, (title, rows) in enumerate(to_draw(titled), start=1):
        shown, left_out = some(rows, by, most)
        found.append(Plot(f"{name}-{number}", title, describe(shown) + left_out, draw(shown)))
    return found


def tabulated(
    columns: list[str], bodies: list[tuple[str, list[list[Value]]]], title: str = "", summary: str = ""
) -> list[Table]:
    """The table without the columns in which no row has a value; none at all without rows.

    A single body's title becomes the table's own.
    """
    bodies = [(name, rows) for name, rows in bodies if rows]
    rows = [row for _, found in bodies for row in found]
    kept = [i for i in range(len(columns)) if any(row[i].text != NONE for row in rows)]
    shown = [(name, [[row[i] for i in kept] for row in found]) for name, found in bodies]
    if len(shown) == 1 and not title:
        title, shown = shown[0][0], [("", shown[0][1])]
    return [Table(title, [columns[i] for i in kept], shown, summary)] if rows else []
