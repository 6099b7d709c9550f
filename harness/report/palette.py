"""One fixed colour a strategy and a stage, told apart by colour-blind readers, and the stages' order in a step.

Hues are seaborn's `colorblind` palette (after Okabe and Ito, Color Universal Design).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

INK, MUTED, GRID = "#1b1f24", "#5b6470", "#d9dde3"
"""Colours of text, secondary text and lines in plots; the page replaces them by its own for light and dark."""

_STRATEGIES = {
    "single": "#949494",
    "grendel": "#0173b2",
    "splaxel": "#de8f05",
    "bytesplat": "#029e73",
    "unified": "#cc78bc",
    "gsplat": "#ca9161",
}
_OTHERS = ("#d55e00", "#56b4e9", "#fbafe4", "#ece133")

STAGES = {
    "project": "#0173b2",
    "exchange_boundary": "#b5651d",
    "exchange_forward": "#d55e00",
    "bin": "#56b4e9",
    "raster_forward": "#029e73",
    "compose": "#ece133",
    "exchange_loss": "#e8a06b",
    "loss": "#cc78bc",
    "raster_backward": "#7fcfb5",
    "exchange_backward": "#de8f05",
    "project_backward": "#7fb5dc",
    "optimize": "#949494",
    "densify": "#ca9161",
    "migrate": "#8c5a2b",
    "rebalance": "#fbafe4",
    "balance": "#fbafe4",
    "repartition": "#e377a8",
    "regions": "#b9c3cf",
    "masks": "#9b7fc9",
    "participation": "#5f6f84",
    "prune": "#a8423f",
    "occlusion": "#c7b98b",
    "statistics": "#d0d5db",
}
"""Stages of a step in pipeline order. A backward stage is a lighter shade of its forward one; exchange is warm.

Last, what strategies do beside a step. No two that one strategy has are told apart by hue alone: they stand in order.
"""

SERIES = ("#0173b2", "#de8f05", "#029e73", "#cc78bc", "#949494", "#56b4e9", "#ca9161")
"""Colours of lines that are no strategies."""

MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


def strategy_order(strategy: str) -> tuple[int, str]:
    """Sorts built-in strategies as the documentation names them, others after them by name."""
    known = list(_STRATEGIES)
    return (known.index(strategy) if strategy in known else len(known), strategy)


def strategy_colour(strategy: str) -> str:
    """The same in every report; a strategy from outside gets one by its name."""
    return _STRATEGIES.get(strategy) or _OTHERS[zlib.crc32(strategy.encode()) % len(_OTHERS)]


def line_colours(strategies: Sequence[str]) -> list[str]:
    """A colour a line: its strategy's, or one of its own where all are of one strategy."""
    if len(strategies) > 1 and len(set(strategies)) == 1:
        return [SERIES[i % len(SERIES)] for i in range(len(strategies))]
    return [strategy_colour(strategy) for strategy in strategies]


def stage_order(stage: str) -> tuple[int, str]:
    """Place in the pipeline; fused stages (`a+b`) stand where their first one does, unknown ones last."""
    known = list(STAGES)
    first = stage.split("+")[0]
    return (known.index(first) if first in known else len(known), stage)


def stage_colour(stage: str) -> str:
    """The stage's colour; a fused stage has that of its first."""
    first = stage.split("+")[0]
    return STAGES.get(first) or _OTHERS[zlib.crc32(stage.encode()) % len(_OTHERS)]
