"""Which strategies exist: the built-in ones, and those of other packages (entry points `harness.strategies`)."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import entry_points

from strategies.bytesplat.info import INFO as BYTESPLAT
from strategies.grendel.info import INFO as GRENDEL
from strategies.gsplat_peer.info import INFO as GSPLAT
from strategies.info import BrokenPluginError, StrategyInfo
from strategies.single.info import INFO as SINGLE
from strategies.splaxel.info import INFO as SPLAXEL
from strategies.unified.info import INFO as UNIFIED

BUILT_IN = (SINGLE, GRENDEL, SPLAXEL, BYTESPLAT, UNIFIED, GSPLAT)
ENTRY_POINT_GROUP = "harness.strategies"


@cache
def strategies() -> dict[str, StrategyInfo]:
    """Every known strategy by name.

    BrokenPluginError for an entry point that loads no StrategyInfo, or one whose name is taken.
    """
    known = {info.name: info for info in BUILT_IN}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        place = f"entry point {entry.name} = {entry.value} of {ENTRY_POINT_GROUP}"
        try:
            info = entry.load()
        except Exception as error:
            raise BrokenPluginError(f"{place}: cannot be loaded ({type(error).__name__}: {error})") from error
        if not isinstance(info, StrategyInfo):
            raise BrokenPluginError(f"{place}: is of type {type(info).__name__}; expected a StrategyInfo")
        if info.name in known:
            raise BrokenPluginError(f"{place}: takes the name of strategy {info.name!r}; expected another")
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
