"""Which place holds which rows of the one table.

Rows are numbered through one address range of 236 B a row. A row belongs to the place that holds its first byte; the
row at the border of two stripes spans both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strategies.unified.info import ROW_BYTES, UnifiedOptions


@dataclass(frozen=True)
class Span:
    """Rows offset <= row < offset + count of the table."""

    offset: int
    count: int


def spans_of(options: UnifiedOptions, count: int, place: int, places: int) -> tuple[Span, ...]:
    """The place's part of a table of `count` rows, ascending; without empty spans.

    `round_robin`: stripe k of the address range lies on place k modulo places. `striped`: one contiguous part.
    """
    if options.placement == "striped":
        borders = [(count * place // places, count * (place + 1) // places)]
    else:
        stripes = -(-count * ROW_BYTES // options.stripe_bytes)
        borders = [
            (_first_row(k, options.stripe_bytes), min(count, _first_row(k + 1, options.stripe_bytes)))
            for k in range(place, stripes, places)
        ]
    return tuple(Span(lo, hi - lo) for lo, hi in borders if hi > lo)


def rows_of(spans: tuple[Span, ...]) -> torch.Tensor:
    """Every row of the spans, [n] int64 ascending on the CPU."""
    empty = torch.empty(0, dtype=torch.int64)
    return torch.cat([empty, *(torch.arange(s.offset, s.offset + s.count) for s in spans)])


def _first_row(stripe: int, stripe_bytes: int) -> int:
    """The first row whose first byte lies in the stripe."""
    return -(-stripe * stripe_bytes // ROW_BYTES)
