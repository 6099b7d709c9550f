"""`new strategy` writes a package that works at once: it is found, runs, is measured and is exact."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli
from harness.records.schema import Record
from harness.records.store import records


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package that the command has written."""
    parent = tmp_path_factory.mktemp("written")
    done = CliRunner().invoke(cli.app, ["new", "strategy", "made_up", "--out", str(parent)])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{parent / 'made_up'}\n"
    return parent / "made_up"


@pytest.fixture(scope="module")
def environment(package: Path, registered: Callable[[Path, str, Path], str]) -> dict[str, str]:
    """That of a process in which the package is installed, with the entry point that its pyproject.toml names."""
    lines = (package / "pyproject.toml").read_text().splitlines()
    entry = lines[lines.index('[project.entry-points."harness.strategies"]') + 1].replace('"', "")
    return {**os.environ, "PYTHONPATH": registered(package.parent / "site", entry, package), "OMP_NUM_THREADS": "1"}


def measured(package: Path, environment: dict[str, str]) -> list[Record]:
    """Records of the package's own suite, made small."""
    settings = ["engine=virtual", "kernels=reference", "images=4", "size=[32, 24]", "evaluations=1"]
    settings += ["scene.points=100", "scene.views=8"]
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "harness", "run", "suite.yaml", "--only", "strategy=made_up", "--out", "out"]
    done = subprocess.run([*command, *sets], cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [record for _, record in records(package / "out")]


def test_the_written_strategy_is_measured_on_one_and_two_ranks_alike(
    package: Path, environment: dict[str, str]
) -> None:
    alone, together = sorted(measured(package, environment), key=lambda record: record.cell["ranks"])
    assert (alone.cell["ranks"], together.cell["ranks"]) == (1, 2)
    values = [
        {m.metric: m.value for m in record.result.measurements if m.stage is None} for record in (alone, together)
    ]
    for metric in ("loss", "psnr", "visible_gaussians", "gaussians_count"):
        assert values[0][metric] == pytest.approx(values[1][metric], rel=1e-4), metric
    traffic = {
        (m.place, m.peer): m.value
        for m in together.result.measurements
        if m.metric == "payload_bytes" and m.stage == "exchange"
    }
    assert traffic[0, 1] > 0
    assert traffic[1, 0] > 0
    assert {m.stage for m in together.result.measurements if m.metric == "stage_seconds"} >= {"exchange", "optimize"}


def test_the_written_test_holds_it_against_single(package: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("3d", "NAME has the value '3d'; expected a to z, digits and '_'"),
        ("../up", "NAME has the value '../up'; expected a to z, digits and '_'"),
        ("class", "NAME has the value 'class'; expected a to z, digits and '_'"),
        ("json", "NAME has the value 'json', which a strategy or module has already; expected another"),
        ("grendel", "NAME has the value 'grendel', which a strategy or module has already; expected another"),
        ("made_up", "made_up: exists already; expected a new folder"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("made_up").mkdir()
    done = CliRunner().invoke(cli.app, ["new", "strategy", name])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {message}")
    assert [path.name for path in tmp_path.rglob("*")] == ["made_up"]
