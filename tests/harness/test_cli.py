"""The command line: exit codes, one sentence for every mistake, and no torch where none is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import harness
from harness import cli
from harness.errors import UserError
from harness.origin import check_origin
from strategies.info import BrokenPluginError

ROOT = Path(__file__).parents[2]
SUITE = "suite: 1\ndefaults: {device: cpu}\naxes: {strategy: [single], ranks: [1, 2]}\n"
Invoke = Callable[..., Any]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command in a directory that holds `s.yaml`."""
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SUITE)
    return lambda *words: CliRunner().invoke(cli.app, [str(word) for word in words])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls that reach the runner, whose outcome is exit code 3 with a report."""
    from harness.runner import run

    calls: list[dict[str, Any]] = []

    def run_suite(plan: Any, out: Path, **keywords: Any) -> Any:
        calls.append({"plan": plan, "out": out, **keywords})
        return SimpleNamespace(exit_code=3, report=out / "report" / "report.html")

    monkeypatch.setattr(run, "run_suite", run_suite)
    return calls


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "suites/quickstart.yaml"],
        ["plan", "suites/scaling.yaml", "--json"],
        ["list", "strategies"],
        ["list", "metrics"],
        ["--help"],
    ],
)
def test_planning_and_listing_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom harness import cli\n"
        f"sys.argv = ['harness', *{words!r}]\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'pandas', 'matplotlib', 'numba', 'scipy', 'cv2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_no_suite_and_no_torch() -> None:
    code = "import sys, harness; assert not {'torch', 'yaml', 'pydantic'} & set(sys.modules); harness.run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_plan_lists_every_cell_with_memory_and_reason(invoke: Invoke) -> None:
    result = invoke("plan", "s.yaml")
    assert result.exit_code == 0
    assert "MiB" in result.stdout
    assert "skipped 1: single computes on one place" in result.stdout
    assert "2 cells, of which 1 run here, 3 with repeats" in result.stdout


def test_plan_as_json_is_one_object_for_programs(invoke: Invoke) -> None:
    plan = json.loads(invoke("plan", "s.yaml", "--json", "--set", "batch=3", "--only", "ranks=2").stdout)
    (cell,) = plan["cells"]
    assert (plan["suite"], plan["device"], cell["cell"]["batch"], cell["cell"]["ranks"]) == ("s", "cpu", 3, 2)
    assert cell["skip"] == "single computes on one place"
    assert cell["predicted_bytes"] > 0


def test_deterministic_is_a_key_of_every_cell(invoke: Invoke, runs: list[dict[str, Any]]) -> None:
    cells = json.loads(invoke("plan", "s.yaml", "--deterministic", "--json").stdout)["cells"]
    assert {cell["cell"]["deterministic"] for cell in cells} == {True}
    invoke("run", "s.yaml", "--deterministic")
    assert runs[0]["plan"].overrides == ("deterministic=true",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "no.yaml"], "error: no.yaml: no such file; expected a suite in YAML\n"),
        (["run", "no.yaml"], "error: no.yaml: no such file; expected a suite in YAML\n"),
        (["plan", "s.yaml", "--set", "rank=2"], "error: --set rank=2: rank: unknown key; did you mean 'ranks'?\n"),
        (["plan", "s.yaml", "--only", "ranks=9"], "error: --only ranks=9: ranks: matches none of 2 cells, which have "),
        (["run", "s.yaml", "--budget", "soon"], "error: --budget: value 'soon'; expected a time above zero"),
        (["run", "s.yaml", "--budget", "0m"], "error: --budget: value '0m'; expected a time above zero"),
        (["run", "s.yaml", "--out", "s.yaml"], "error: s.yaml: is a file; expected a folder for the records\n"),
        (["show", "abc", "--out", "nowhere"], "error: nowhere: no such folder"),
        (["report", "nowhere"], "error: nowhere: no such folder; expected one with records\n"),
        (["list", "options"], "error: list options: NAME is missing; expected a strategy\n"),
        (["list", "options", "singel"], "error: list options: NAME has the value 'singel'; did you mean 'single'?\n"),
        (["list", "presets", "x"], "error: list presets: NAME has the value 'x'; expected none\n"),
        (["scene", "info", "small_aeriel"], "error: SPEC: value 'small_aeriel' is no folder and no preset"),
        (["scene", "info", "{city: 3}"], "error: SPEC: scene.city: value 3; expected text\n"),
        (["scene", "info", "{city: small_aerial, view: 3}"], "error: SPEC: scene.view: unknown key; did you mean"),
        (["scene", "info", "small_aerial", "--size", "big"], "error: --size: value 'big'; expected width x height"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_exit_code_2(invoke: Invoke, words: list[str], message: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "words",
    [["plam"], ["plan"], ["plan", "s.yaml", "--devise", "cpu"], ["run", "s.yaml", "--device", "gpu"], ["list", "x"]],
)
def test_wrong_usage_is_exit_code_2(invoke: Invoke, words: list[str]) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_run_hands_its_options_on_and_ends_with_report_and_exit_code(
    invoke: Invoke, runs: list[dict[str, Any]]
) -> None:
    result = invoke(
        *("run", "s.yaml", "--set", "batch=2", "--only", "ranks=1"),
        *("--out", "o", "--fresh", "--budget", "1.5m", "--device", "cpu"),
    )  # fmt: skip
    assert result.exit_code == 3
    assert result.stdout.splitlines()[-1] == str(Path("o", "report", "report.html"))
    (call,) = runs
    assert (call["out"], call["fresh"], call["retry_failed"], call["budget_seconds"]) == (Path("o"), True, False, 90.0)
    assert [(p.cell.batch, p.cell.ranks) for p in call["plan"].cells] == [(2, 1)]
    assert call["plan"].overrides == ("batch=2", "device=cpu")


def test_runs_go_to_results_runs_by_default(invoke: Invoke, runs: list[dict[str, Any]]) -> None:
    invoke("run", "s.yaml", "--retry-failed")
    assert (runs[0]["out"], runs[0]["retry_failed"], runs[0]["budget_seconds"]) == (Path("results/runs/s"), True, None)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (UserError("no", "f", 3), 2), (BrokenPluginError("no"), 2)]
)
def test_what_ends_a_command_decides_its_exit_code(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def raises(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("harness.api.run_plan", raises)
    assert invoke("run", "s.yaml").exit_code == code


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("8m", 480), ("1.5h", 5400), ("120", 120)])
def test_budgets_are_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    assert cli.budget_seconds(text) == seconds


@pytest.mark.usefixtures("invoke")
def test_run_from_python_does_what_the_command_does(runs: list[dict[str, Any]]) -> None:
    outcome = harness.run("s.yaml", set={"batch": 2, "size": [64, 48]}, only={"ranks": 1}, out="o", fresh=True)
    assert outcome.exit_code == 3
    (planned,) = runs[0]["plan"].cells
    assert (planned.cell.batch, planned.cell.size, planned.cell.ranks) == (2, (64, 48), 1)
    harness.run("s.yaml", set=["batch=3"], only="ranks=1")
    assert runs[1]["plan"].cells[0].cell.batch == 3
    assert runs[1]["out"] == Path("results/runs/s")
    with pytest.raises(UserError, match="rank: unknown key"):
        harness.run("s.yaml", set={"rank": 2})


def test_scene_info_prints_the_scene_and_draws_it(invoke: Invoke) -> None:
    result = invoke(
        "scene", "info", "{city: small_aerial, gaussians: 500, views: 2}", "--size", "32x24", "--plot", "p.png"
    )
    assert result.exit_code == 0, result.output
    assert "visible share" in result.stdout
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["strategies", "scenarios", "presets", "metrics"])
def test_list_knows_its_kinds(invoke: Invoke, kind: str) -> None:
    expected = {"strategies": "single", "scenarios": "throughput", "presets": "small_street", "metrics": "psnr"}
    result = invoke("list", kind)
    assert result.exit_code == 0
    assert expected[kind] in result.stdout


def test_list_options_names_a_strategys_options(invoke: Invoke) -> None:
    assert "morton_blocks" in invoke("list", "options", "grendel").stdout
    assert invoke("list", "options", "single").stdout == "single has no options\n"


@pytest.mark.parametrize("name", ["strategies", "cuda_src"])
def test_a_foreign_package_that_shadows_ours_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from harness.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, "list", "metrics"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: package {name!r} of {tmp_path / name} shadows the one beside harness")


def test_our_own_packages_are_accepted() -> None:
    check_origin()
