"""What all commands have in common: JSON for programs, and 80 columns for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.main import get_command
from typer.testing import CliRunner

from harness import cli

ROOT = Path(__file__).parents[2]
SUITES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "suites").glob("*.yaml"))
SCENE = "{city: small_aerial, gaussians: 500, views: 2}"
IS_JSON_ALWAYS = {"schema"}

Invoke = Callable[..., Any]


def commands(group: Any, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield (*above, name), command


COMMANDS = dict(commands(get_command(cli.app)))


@pytest.fixture
def invoke_here(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """As `invoke`, beside what is committed; for commands that write nothing."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: CliRunner().invoke(cli.app, list(words))


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command in a fresh folder, on a terminal of 80 columns as far as it can tell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: CliRunner().invoke(cli.app, [str(word) for word in words])


def test_every_command_has_a_form_for_programs() -> None:
    without = {
        words
        for words, command in COMMANDS.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == {(name,) for name in IS_JSON_ALWAYS}


PRINTED = [
    *(["list", kind] for kind in ("strategies", "scenarios", "presets", "metrics")),
    ["list", "options", "bytesplat"],
    *(["plan", suite] for suite in SUITES),
    ["doctor"],
    ["scene", "info", SCENE, "--size", "32x24"],
    ["claims", "reports/cpu/claims"],
    ["history", "reports/cpu/scaling", "reports/cpu/quickstart"],
    ["compare", "reports/cpu/ablation_bytesplat", "reports/cpu/ablation_bytesplat", "--by", "options.codec"],
    ["compare", "reports/cpu/scaling", "reports/cpu/scaling", "--by", "strategy"],
    ["regress", "--baseline", "cpu", "--of", "results/baselines/cpu"],
    ["show", "single", "--out", "results/baselines/cpu"],
]
"""Commands that print of what is committed; exit codes are theirs."""


@pytest.mark.parametrize("words", PRINTED, ids=" ".join)
def test_what_a_command_prints_fits_80_columns_and_cuts_no_word_off(invoke_here: Invoke, words: list[str]) -> None:
    result = invoke_here(*words)
    assert "Traceback" not in result.output
    assert result.stdout
    assert [line for line in result.output.splitlines() if cell_len(line.rstrip()) > 80] == []
    assert "…" not in result.stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_80_columns(invoke: Invoke, words: tuple[str, ...]) -> None:
    result = invoke(*words, "--help")
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if cell_len(line.rstrip()) > 80] == []


@pytest.mark.parametrize("words", PRINTED, ids=" ".join)
def test_the_form_for_programs_is_one_json_document(invoke_here: Invoke, words: list[str]) -> None:
    assert json.loads(invoke_here(*words, "--json").stdout)


def test_lists_for_programs_hold_values_and_not_words(invoke: Invoke) -> None:
    (street, *_) = json.loads(invoke("list", "presets", "--json").stdout)["presets"]
    assert street == {
        "preset": "small_street",
        "cameras": "street",
        "Gaussians": 20000,
        "points": 4000,
        "views": 32,
        "size": [320, 240],
    }
    assert json.loads(invoke("list", "options", "single", "--json").stdout) == {"options": []}
    options = json.loads(invoke("list", "options", "grendel", "--json").stdout)["options"]
    assert {"option": "min_opacity", "type": "float", "default": 0.0} in options


def test_a_scene_for_programs_has_counts_bounds_and_the_plot(invoke: Invoke) -> None:
    scene = json.loads(invoke("scene", "info", SCENE, "--size", "32x24", "--plot", "p.png", "--json").stdout)
    assert (scene["gaussians"], scene["width"], scene["height"], scene["plot"]) == (500, 32, 24, "p.png")
    assert [len(corner) for corner in scene["bounds"]] == [3, 3]
    assert set(scene["drawing"]["list_lengths"]) == {"p50", "p90", "p99", "p100"}
    assert Path("p.png").exists()


def test_a_run_for_programs_says_how_each_cell_ended_and_keeps_progress_off_its_output(invoke: Invoke) -> None:
    Path("s.yaml").write_text("suite: 1\ndefaults: {device: cpu, strategy: single, ranks: 2}\n")
    result = invoke("run", "s.yaml", "--out", "o", "--json")
    outcome = json.loads(result.stdout)
    assert result.exit_code == outcome["exit_code"] == 4
    (record,) = outcome["records"]
    assert (record["status"], record["reason"]) == ("skipped", "single computes on one place")
    assert Path(record["folder"], "record.json").exists()
    assert Path(outcome["report"]).exists()
    again = json.loads(invoke("report", "o", "--out", "r", "--json").stdout)
    assert {kind: Path(path).exists() for kind, path in again.items()} == dict.fromkeys(
        ("report", "markdown", "table", "plots"), True
    )


def test_readme_for_programs_says_what_it_would_write(invoke: Invoke) -> None:
    Path("p.md").write_text("nothing marked\n")
    result = json.loads(invoke("readme", "p.md", "--check", "--json").stdout)
    assert result == {"file": "p.md", "out_of_date": False, "written": False, "stale": []}


def test_a_new_strategy_for_programs_is_its_folder(invoke: Invoke) -> None:
    folder = Path(json.loads(invoke("new", "strategy", "weft", "--json").stdout)["folder"])
    assert (folder / "pyproject.toml").exists()
