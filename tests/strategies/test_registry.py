"""Strategies of other packages: found by their entry points, refused in one sentence."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from strategies import registry
from strategies.info import BrokenPluginError, Options, StrategyInfo

OTHER = StrategyInfo("other", "made up", Options, "nowhere:Other")
TAKEN = StrategyInfo("single", "made up", Options, "nowhere:Other")
NO_INFO = 3


@pytest.fixture
def strategies_with(monkeypatch):
    """All strategies, where one package names this object of this module, or another."""

    def find(value):
        entry = EntryPoint("other", value, registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
        return registry.strategies.__wrapped__()

    return find


def here(name, monkeypatch):
    """The entry point's value for an object of this module."""
    monkeypatch.setitem(sys.modules, "made_up_plugin", sys.modules[__name__])
    return f"made_up_plugin:{name}"


def test_a_strategy_of_another_package_stands_beside_the_built_in_ones(strategies_with, monkeypatch):
    known = strategies_with(here("OTHER", monkeypatch))
    assert known["other"] is OTHER
    assert "single" in known


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NO_INFO", "is of type int; expected a StrategyInfo"),
        ("TAKEN", "takes the name of strategy 'single'; expected another"),
        ("ABSENT", "cannot be loaded (AttributeError: "),
    ],
)
def test_an_entry_point_that_brings_no_strategy_is_refused_by_name(strategies_with, monkeypatch, value, reason):
    with pytest.raises(BrokenPluginError) as caught:
        strategies_with(here(value, monkeypatch))
    place = f"entry point other = made_up_plugin:{value} of harness.strategies: "
    assert str(caught.value).startswith(place + reason)


def test_a_module_that_is_not_there_is_named(strategies_with):
    with pytest.raises(BrokenPluginError, match=r"cannot be loaded \(ModuleNotFoundError: .*'made_up_absent'"):
        strategies_with("made_up_absent:INFO")
