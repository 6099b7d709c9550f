"""Which strategies exist: the built-in ones, and those of other packages (entry points `harness.strategies`)."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import entry_points

from strategies.grendel.info import INFO as GRENDEL
from strategies.info import StrategyInfo
from strategies.single.info import INFO as SINGLE
from strategies.unified.info import INFO as UNIFIED

BUILT_IN = (SINGLE, GRENDEL, UNIFIED)
ENTRY_POINT_GROUP = "harness.strategies"


@cache
def strategies() -> dict[str, StrategyInfo]:
    """Every known strategy by name. An entry point must load a StrategyInfo and may not take a built-in's name."""
    known = {info.name: info for info in BUILT_IN}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        info = entry.load()
        if not isinstance(info, StrategyInfo):
            raise TypeError(f"entry point {entry.name} ({entry.value}) is no StrategyInfo but {type(info).__name__}")
        if info.name in known:
            raise ValueError(f"entry point {entry.name} ({entry.value}) takes the name of strategy {info.name!r}")
        known[info.name] = info
    return known


def strategy(name: str) -> StrategyInfo:
    """The strategy of that name, or a KeyError that names the nearest known one."""
    known = strategies()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise KeyError(f"unknown strategy {name!r}{hint} Known: {', '.join(known)}")
    return known[name]
