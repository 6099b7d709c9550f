"""Whatever a file holds, the answer is a plan or one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.suite.machine import Machine
from harness.suite.plan import plan

WHOLE_GRAMMAR = """\
suite: 1
name: whole
defaults: {scenario: throughput, device: auto, scene: {city: small_street, gaussians: 5e6}, size: [32, 18]}
prepare: {trained: {scenario: train, strategy: single, images: 7}}
axes:
  strategy: [single, weaver]
  ranks: [1, 2]
cases:
  - {name: fused, strategy: weaver, options: {raster: fused}, from: trained}
ladder: {strategy: weaver, steps: [{raster: fused}, {codec: bitmap}], also: leave_one_out, axes: {ranks: [2]}}
exclude: [{strategy: single, ranks: [2]}]
by_device: {cpu: {defaults: {size: [8, 8]}, axes: {ranks: [1, 2]}}}
stop: {noise: 0.01, min_passes: 10, max_seconds: 60}
"""
TOKENS = (
    "",
    "-",
    "[",
    "{",
    "}",
    ":",
    "null",
    "1",
    "2",
    "1e3",
    "x",
    "true",
    "- ",
    "\n",
    " ",
    "#",
    "'",
    "single",
    "trained",
)


@pytest.mark.usefixtures("more_strategies")
def test_the_whole_grammar_plans(suite_file: Callable[[str], Path], laptop: Machine) -> None:
    made = plan(suite_file(WHOLE_GRAMMAR), machine=laptop)
    assert [(p.cell.name, p.cell.strategy, p.cell.ranks) for p in made.cells] == [
        ("trained", "single", 1),
        (None, "single", 1),
        (None, "weaver", 1),
        ("base", "weaver", 2),
        ("fused", "weaver", 1),
        ("+raster=fused = all-codec", "weaver", 2),
        ("+codec=bitmap", "weaver", 2),
        ("all-raster", "weaver", 2),
    ]


@pytest.mark.usefixtures("more_strategies")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(WHOLE_GRAMMAR)), st.integers(0, 12), st.sampled_from(TOKENS)),
        min_size=1,
        max_size=3,
    )
)
def test_damaged_suites_end_in_a_plan_or_one_sentence(
    suite_file: Callable[[str], Path], laptop: Machine, edits: list[tuple[int, int, str]]
) -> None:
    text = WHOLE_GRAMMAR
    for start, length, token in edits:
        text = text[:start] + token + text[start + length :]
    file = suite_file(text)
    try:
        made = plan(file, machine=laptop)
    except UserError as error:
        message = str(error)
        assert message.startswith("s.yaml")
        assert "\n" not in message
        return
    assert made.cells
