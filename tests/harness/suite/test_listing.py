"""What people read of plans and options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from harness.suite.listing import memory_text, plan_table, strategy_options, things_table
from harness.suite.machine import Machine
from harness.suite.plan import plan


def printed(*renderables: RenderableType) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable)
    return capture.get()


def test_the_table_shows_what_tells_cells_apart_and_its_head_what_they_share(
    suite_file: Callable[[str], Path], laptop: Machine
) -> None:
    file = suite_file(
        "suite: 1\ndefaults: {size: [64, 48]}\naxes: {training.footprint: [ellipse, square], batch: [1, 2]}\n"
    )
    head, columns, *rows = printed(*plan_table(plan(file, machine=laptop))).splitlines()
    assert head == (
        "s on cpu: scenario throughput, strategy single, ranks 1, scene small_street, size 64x48, kernels portable"
    )
    assert columns.split() == ["cell", "settings", "memory", "here"]
    settings = [row.split("  ")[1] for row in rows[:4]]
    assert settings == [f"batch={b} · footprint={f}" for f in ("ellipse", "square") for b in (1, 2)]


def test_preparations_are_marked_and_counted_apart(suite_file: Callable[[str], Path], laptop: Machine) -> None:
    file = suite_file("suite: 1\nprepare: {trained: {}}\ndefaults: {from: trained, repeats: 2}\n")
    text = printed(*plan_table(plan(file, machine=laptop)))
    assert "prepares" in text
    assert text.splitlines()[-1] == "1 cells, of which 1 run here, 2 with repeats, after 1 to prepare"


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "unknown"), (512, "512 B"), (1536, "1.5 KiB"), (80 * 2**30, "80 GiB"), (3 * 2**50, "3,072 TiB")],
)
def test_memory_is_shown_in_powers_of_1024(count: int | None, text: str) -> None:
    assert memory_text(count) == text


@pytest.mark.usefixtures("more_strategies")
def test_options_are_listed_with_type_and_default() -> None:
    options = strategy_options("weaver")
    heading, *rows = [line.split() for line in printed(things_table(options)).splitlines()]
    assert heading == ["option", "type", "default"]
    assert [option["default"] for option in options] == ["dense", "separate", False, 0.5]
    assert rows == [
        ["codec", "dense", "|", "bitmap", "dense"],
        ["raster", "separate", "|", "fused", "separate"],
        ["prune", "bool", "false"],
        ["share", "float", "0.5"],
    ]
