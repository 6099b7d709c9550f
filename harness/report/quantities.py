"""Numbers as people read them: three digits that matter, thousands apart, milliseconds and gigabytes."""

from __future__ import annotations

import math
from numbers import Real

NONE = "–"
"""What a table shows where nothing was measured."""


def _absent(value: object) -> bool:
    return not isinstance(value, Real) or math.isnan(value)


def number(value: float | None) -> str:
    """Three significant digits at least, never exponents between 0.001 and a trillion: 0.0123, 1.23, 12.3, 12,345."""
    if value is None or _absent(value):
        return NONE
    size = abs(value)
    if size == 0:
        return "0"
    if not math.isfinite(value):
        return "inf" if value > 0 else "−inf"
    if size < 1e-3 or size >= 1e12:
        return f"{value:.2e}"
    # From the rounded value, so that 9.996 becomes 10.0 and not 10.00.
    decimals = max(0, 2 - math.floor(math.log10(float(f"{size:.2e}"))))
    return f"{value:,.{decimals}f}"


def count(value: float | None) -> str:
    """A whole number with thousands apart: 1,234,567."""
    return NONE if value is None or _absent(value) else f"{round(value):,}"


def millions(value: float | None) -> str:
    """A large count: 227 M."""
    return NONE if value is None or _absent(value) else f"{number(value / 1e6)} M"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, without the unit."""
    return NONE if seconds is None or _absent(seconds) else number(seconds * 1e3)


def duration(seconds: float | None) -> str:
    """Wall time: 8.2 s, 3 min 05 s, 2 h 10 min."""
    if seconds is None or _absent(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def memory(size: float | None) -> str:
    """Bytes in decimal units: 812 B, 12.3 MB, 1.23 GB."""
    if size is None or _absent(size):
        return NONE
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * scale:
            return f"{number(size / scale)} {unit}"
    return f"{count(size)} B"


def byte_unit(largest: float) -> tuple[float, str]:
    """Bytes that the unit of an axis holds, and the unit, for values up to `largest`."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next(((scale, unit) for scale, unit in units if largest >= scale), (1.0, "B"))


def decibels(value: float | None) -> str:
    """Two decimals: differences of a hundredth are the smallest worth a look."""
    return NONE if value is None or _absent(value) else f"{value:.2f}"


def ratio(value: float | None) -> str:
    """A factor: 1.62×."""
    return NONE if value is None or _absent(value) else f"{value:.2f}×"


def ranks(value: int) -> str:
    return "1 rank" if value == 1 else f"{value} ranks"


def percent(value: float | None) -> str:
    """A share: 97 %, 0.4 %."""
    if value is None or _absent(value):
        return NONE
    return f"{100 * value:.0f} %" if abs(value) >= 0.0995 or value == 0 else f"{100 * value:.1f} %"


def change(value: float | None) -> str:
    """A relative change with its sign: +12 %, −3.4 %, 0 %."""
    if value is None or _absent(value):
        return NONE
    shown = percent(abs(value))
    return "0 %" if float(shown[:-2]) == 0 else f"{'+' if value > 0 else '−'}{shown}"


def difference(value: float | None) -> str:
    """A difference with its sign and two decimals: +0.12, −3.40, 0.00."""
    if value is None or _absent(value):
        return NONE
    shown = f"{abs(value):.2f}"
    return shown if float(shown) == 0 else f"{'+' if value > 0 else '−'}{shown}"
