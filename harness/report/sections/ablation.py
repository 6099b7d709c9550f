"""Ablation: what each mechanism changes, one at a time or step by step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report import palette
from harness.report.drawing import bars
from harness.report.frames import Results
from harness.report.parts import MOST_BARS, Plot, Section, Table, figure, groups, tabulated, text, to_draw
from harness.report.quantities import byte_unit, change, decibels, difference, memory, number, ranks

_BASE_NAMES = ("base", "as it stands")
"""Names of the case with which the others are compared; without one of them it is the first that ran."""

_LADDER = re.compile(r"^(?:(?P<ladder>.*): )?(?P<step>base|\+.*|all-.*)$")
"""Names that the suite gives to a ladder's points."""

_ALIKE = ["link", "device", "kernels", "precision", "threads", "start", "commit"]
"""A ladder's points agree in these; a case is compared with the base that agrees in the most of them."""

_GAIN, _LOSS = "#0173b2", "#de8f05"


@dataclass(frozen=True)
class Case:
    """rate: views/s. size: bytes a view. Not a number where nothing was measured."""

    name: str
    rate: float
    size: float
    psnr: float
    modelled: bool


@dataclass(frozen=True)
class Comparison:
    """Cases of one group, strategy and number of ranks, in the order they ran.

    against: position of the case that each is held against, its own for a base. climbs: whether that is the step
    before, as on a ladder.
    """

    title: str
    climbs: bool
    cases: list[Case]
    against: list[int]

    def base(self, position: int) -> Case | None:
        """The case that this one is held against; None for a base."""
        other = self.against[position]
        return None if other == position else self.cases[other]

    @property
    def modelled(self) -> bool:
        return any(case.modelled for case in self.cases)

    def first(self, most: int) -> Comparison:
        """The first cases, and what they are held against."""
        kept = sorted({*range(min(most, len(self.cases))), *self.against[:most]})
        places = {position: place for place, position in enumerate(kept)}
        against = [places.get(self.against[position], places[position]) for position in kept]
        return Comparison(self.title, self.climbs, [self.cases[position] for position in kept], against)


def comparisons(results: Results) -> list[Comparison]:
    """Ladders, then named cases, of every group, strategy and number of ranks that has at least two."""
    cells = results.cells
    cells = cells[(cells["status"] == "ok") & (cells["name"] != "") & cells["views_per_second"].notna()]
    found: list[Comparison] = []
    for title, of_title in groups(cells):
        for _, named in of_title.groupby(["strategy", "ranks"], sort=False):
            first = named.iloc[0]
            found += _of_cells(f"{title} · {first['strategy']} · {ranks(int(first['ranks']))}", named)
    return found


def _of_cells(title: str, named: pd.DataFrame) -> list[Comparison]:
    parts = named["name"].str.extract(_LADDER)
    steps = parts["step"].notna()
    # A lone `base` beside freely named cases is theirs.
    if not (parts["step"].dropna() != "base").any():
        steps[:] = False
    found = []
    ladders = named[steps].assign(case=parts["step"], ladder=parts["ladder"].fillna(""))
    for _, rows in ladders.groupby(["ladder", *_ALIKE], sort=False):
        name = rows["ladder"].iloc[0]
        ascending = [i for i, case in enumerate(rows["case"]) if not case.startswith("all-")]
        before = dict(zip(ascending, ascending[:1] + ascending[:-1], strict=True))
        against = [before.get(i, ascending[-1] if ascending else 0) for i in range(len(rows))]
        found.append(Comparison(f"{title} · {name}" if name else title, True, _cases(rows), against))
    cases = named[~steps]
    if len(cases):
        rows = cases.assign(case=cases["name"])
        found.append(Comparison(title, False, _cases(rows), _bases(rows)))
    return [comparison for comparison in found if len(comparison.cases) > 1]


def _cases(rows: pd.DataFrame) -> list[Case]:
    return [
        Case(
            str(row["case"]),
            float(row["views_per_second"]),
            float(row["bytes_a_view"]),
            float(row["psnr"]),
            bool(row["modelled"]),
        )
        for _, row in rows.iterrows()
    ]


def _bases(rows: pd.DataFrame) -> list[int]:
    """Position of the base of each row: of several the one most like it, its own where it is one."""
    settings = rows[_ALIKE].astype(str).to_numpy()
    bases = [i for i, name in enumerate(rows["case"]) if name in _BASE_NAMES] or [0]
    return [
        i if i in bases else max(bases, key=lambda b: int((settings[b] == settings[i]).sum())) for i in range(len(rows))
    ]


def section(results: Results) -> Section:
    """A plot and a table for each comparison."""
    found = Section("ablation", "Ablation")
    compared = comparisons(results)
    drawn = len(to_draw(compared))
    for i, comparison in enumerate(compared, start=1):
        if comparison.climbs:
            words = "Each step against the one before; all-… leaves one mechanism out of all."
        else:
            words = f"Each case against “{comparison.cases[comparison.against[0]].name}”."
        if comparison.modelled:
            words += " Rates in hollow, hatched bars are modelled."
        if i <= drawn:
            shown = comparison.first(MOST_BARS)
            if len(shown.cases) < len(comparison.cases):
                words += f" The first {len(shown.cases)} of {len(comparison.cases)}."
            found.parts.append(Plot(f"ablation-{i}", comparison.title, words, draw(shown)))
        found.parts += _table(comparison)
    return found


def _table(comparison: Comparison) -> list[Table]:
    mixed = comparison.modelled and not all(case.modelled for case in comparison.cases)
    rows = []
    for i, case in enumerate(comparison.cases):
        base = comparison.base(i)
        rows.append(
            [
                text(f"{case.name} (modelled)" if mixed and case.modelled else case.name),
                figure(case.rate, number),
                figure(_relative(case.rate, base.rate) if base else None, change),
                figure(case.size, memory),
                figure(_relative(case.size, base.size) if base else None, change),
                figure(case.psnr, decibels),
                figure(case.psnr - base.psnr if base else None, difference),
            ]
        )
    columns = ["case", "views/s", "change", "bytes a view", "change of bytes", "PSNR, dB", "change, dB"]
    return tabulated(columns, [("", rows)], summary=f"All values: {comparison.title}")


def _relative(value: float, base: float) -> float:
    return value / base - 1.0 if base else float("nan")


@dataclass(frozen=True)
class _Quantity:
    """What one panel shows. up: whether more is better."""

    of: Callable[[Case], float]
    shown: Callable[[float], str]
    title: str
    unit: str
    scale: float
    up: bool


def draw(comparison: Comparison) -> Figure:
    """views/s and bytes a view side by side: a waterfall for a ladder, changes against the base for cases."""
    largest = max((case.size for case in comparison.cases if case.size > 0), default=0.0)
    scale, unit = byte_unit(largest)
    quantities = [_Quantity(lambda case: case.rate, lambda v: f"{number(v)} views/s", "views/s", "views/s", 1.0, True)]
    if largest:
        title = "bytes a view"
        quantities.append(_Quantity(lambda case: case.size, memory, title, f"{unit} a view", scale, False))
    drawing, panels = bars([case.name for case in comparison.cases], panels=2)
    for panel, quantity in zip(panels, quantities, strict=False):
        (_waterfall if comparison.climbs else _changes)(panel, comparison, quantity)
    for empty in panels[len(quantities) :]:
        empty.set_visible(False)
    sns.despine(drawing, left=True)
    return drawing


def _changes(axes: Axes, comparison: Comparison, quantity: _Quantity) -> None:
    """Bars left and right of the base, in per cent of it."""
    low, high = 0.0, 0.0
    for row, case in enumerate(comparison.cases):
        base = comparison.base(row)
        if base is None:
            _label(axes, row, 0.0, f"base: {quantity.shown(quantity.of(case))}", True, palette.MUTED)
            continue
        value = _relative(quantity.of(case), quantity.of(base))
        if value != value:
            continue
        _bar(axes, row, 0.0, 100 * value, (value >= 0) == quantity.up, case.modelled and quantity.up)
        _label(axes, row, 100 * value, change(value), value >= 0)
        low, high = min(low, 100 * value), max(high, 100 * value)
    room = 0.3 * max(high - low, 1.0)
    axes.set_xlim(low - room, high + room)
    axes.axvline(0, color=palette.INK, lw=1.0)
    axes.set_xlabel(f"change of {quantity.title}, %")


def _waterfall(axes: Axes, comparison: Comparison, quantity: _Quantity) -> None:
    """The base from zero, then each step from the value that it is held against to its own."""
    highest = 0.0
    for row, case in enumerate(comparison.cases):
        base, value = comparison.base(row), quantity.of(case) / quantity.scale
        if value != value:
            continue
        hollow = case.modelled and quantity.up
        if base is None:
            _bar(axes, row, 0.0, value, True, hollow, palette.MUTED)
            _label(axes, row, value, number(value), True)
        else:
            start = quantity.of(base) / quantity.scale
            _bar(axes, row, start, value, (value >= start) == quantity.up, hollow)
            above = comparison.against[row]
            axes.plot([start, start], [above + 0.33, row + 0.33], color=palette.MUTED, lw=0.8, ls=(0, (2, 2)))
            words = f"{number(value)} ({change(_relative(value, start))})"
            _label(axes, row, max(start, value), words, True)
        highest = max(highest, value)
    axes.set_xlim(0, 1.4 * highest or 1.0)
    axes.set_xlabel(quantity.unit)


def _bar(axes: Axes, row: int, start: float, end: float, gain: bool, hollow: bool, colour: str | None = None) -> None:
    """From start to end, in the colour of gains or losses; hollow and hatched where it is modelled."""
    colour = colour or (_GAIN if gain else _LOSS)
    fill: dict[str, Any] = {"facecolor": "none", "hatch": "////"} if hollow else {"facecolor": colour}
    axes.barh(row, end - start, left=start, height=0.66, edgecolor=colour, lw=1.0, **fill)


def _label(axes: Axes, row: int, end: float, words: str, right: bool, colour: str = palette.INK) -> None:
    """Words beside a bar's end, on its right or its left."""
    offset, side = (6, "left") if right else (-6, "right")
    axes.annotate(words, (end, row), (offset, 0), textcoords="offset points", va="center", ha=side, color=colour)
