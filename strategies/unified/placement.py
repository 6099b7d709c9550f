"""Which place holds which rows of the one table.

Rows are numbered through one address range of 236 B a row. A row belongs to the place that holds its first byte; the
row at the border of two stripes spans both. Kernels on GPUs write the sectors that neighbouring rows share: there 32
rows that they handle together belong to the place that holds the first byte of them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cuda_src.layout import GROUP
from strategies.unified.info import MEBIBYTE, ROW_BYTES, UnifiedOptions


@dataclass(frozen=True)
class Ground:
    """What the memory of places asks of a layout. granule: stripes are multiples of so many bytes. together: so many
    rows, counted from row 0, belong to one place."""

    granule: int
    together: int


HOST = Ground(1, 1)
GPUS = Ground(2 * MEBIBYTE, GROUP)


@dataclass(frozen=True)
class Stripe:
    """Bytes begin <= b < end of the table, which lie on a place."""

    begin: int
    end: int
    place: int


@dataclass(frozen=True)
class Span:
    """Rows offset <= row < offset + count of the table."""

    offset: int
    count: int


def stripes_of(options: UnifiedOptions, count: int, places: int, ground: Ground = HOST) -> tuple[Stripe, ...]:
    """The address range of a table of `count` rows, stripe after stripe without gaps; none is empty.

    `round_robin`: stripe k lies on place k modulo places. `striped`, `managed`: one contiguous part a place.
    """
    size = _up(count * ROW_BYTES, ground.granule)
    if options.placement == "round_robin":
        of_place = [(k, k % places) for k in range(-(-size // options.stripe_bytes))]
        borders = [k * options.stripe_bytes for k, _ in of_place] + [size]
    else:
        of_place = [(place, place) for place in range(places)]
        borders = [min(size, _up(count * k // places * ROW_BYTES, ground.granule)) for k in range(places)] + [size]
    stripes = (Stripe(borders[k], borders[k + 1], place) for k, place in of_place)
    return tuple(stripe for stripe in stripes if stripe.end > stripe.begin)


def spans_of(options: UnifiedOptions, count: int, place: int, places: int, ground: Ground = HOST) -> tuple[Span, ...]:
    """The place's part of a table of `count` rows, ascending; without empty spans."""
    unit = ground.together * ROW_BYTES

    def first_row(byte: int) -> int:
        """The first row of the first rows that stay together whose first byte lies there or behind."""
        return min(count, -(-byte // unit) * ground.together)

    stripes = (stripe for stripe in stripes_of(options, count, places, ground) if stripe.place == place)
    borders = ((first_row(stripe.begin), first_row(stripe.end)) for stripe in stripes)
    return tuple(Span(lo, hi - lo) for lo, hi in borders if hi > lo)


def rows_of(spans: tuple[Span, ...]) -> torch.Tensor:
    """Every row of the spans, [n] int64 ascending on the CPU."""
    empty = torch.empty(0, dtype=torch.int64)
    return torch.cat([empty, *(torch.arange(s.offset, s.offset + s.count) for s in spans)])


def _up(size: int, granule: int) -> int:
    return -(-size // granule) * granule
