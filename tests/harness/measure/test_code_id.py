"""The code's hash changes with what can change a result, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import harness.measure.code_id as subject
from harness.measure.code_id import STARTS_ONLY, code_id
from strategies.info import Options, StrategyInfo

ROOT = Path(subject.__file__).parents[2]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the sources, and a second strategy `other` beside `single`."""
    for package in ("harness", "strategies", "cuda_src"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (tmp_path / "strategies/other").mkdir()
    (tmp_path / "strategies/other/strategy.py").write_text("a = 1\n")
    single = StrategyInfo("single", "", Options, "strategies.single.strategy:Single")
    other = StrategyInfo("other", "", Options, "strategies.other.strategy:Other")
    monkeypatch.setattr(subject, "BUILT_IN", (single, other))
    return tmp_path


def edited(tree, file):
    """The ids of `single` before and after a line is added to the file."""
    subject._hash.cache_clear()
    before = code_id("single", root=tree)
    with (tree / file).open("a") as text:
        text.write("\n# an edit\n")
    subject._hash.cache_clear()
    return before, code_id("single", root=tree)


@pytest.mark.parametrize(
    "file",
    [
        "cuda_src/operators.py",
        "strategies/base.py",
        "strategies/training/config.py",
        "strategies/single/info.py",
        "harness/runner/worker.py",
        "harness/runner/scenario_train.py",
        "harness/scenes/scene.py",
        "harness/measure/statistics.py",
    ],
)
def test_an_edit_of_what_runs_in_a_cell_changes_the_id(tree, file):
    before, after = edited(tree, file)
    assert before != after
    assert len(after) == 12


@pytest.mark.parametrize(
    "file",
    [
        "harness/suite/plan.py",
        "harness/records/load.py",
        "harness/runner/run.py",
        "strategies/registry.py",
        "strategies/other/strategy.py",
        "cuda_src/README.md",
    ],
)
def test_an_edit_elsewhere_does_not(tree, file):
    before, after = edited(tree, file)
    assert before == after


def test_a_strategy_that_another_imports_belongs_to_it(tree):
    (tree / "strategies/single/parts.py").write_text("from strategies.other.strategy import a\n")
    before, after = edited(tree, "strategies/other/strategy.py")
    assert before != after


def test_a_cell_that_starts_from_anothers_gaussians_depends_on_both(tree):
    assert code_id("single", "other", root=tree) == code_id("other", "single", root=tree)
    assert code_id("single", "other", root=tree) != code_id("single", root=tree)


def test_what_only_starts_workers_is_never_imported_by_one():
    inside = [path for path in (ROOT / "harness/runner").glob("*.py") if path.name not in STARTS_ONLY]
    assert {path.name for path in inside} >= {"worker.py", "job.py"}
    for path in inside:
        for module in STARTS_ONLY:
            assert f"harness.runner.{module.removesuffix('.py')}" not in path.read_text(), path


def test_every_file_that_only_starts_workers_exists():
    assert {name for name in STARTS_ONLY if (ROOT / "harness/runner" / name).exists()} == STARTS_ONLY


def test_a_strategy_of_another_package_is_its_modules_folder(tmp_path, monkeypatch):
    package = tmp_path / "plugin_of_test"
    (package / "far").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    (package / "far/strategy.py").write_text("a = 1\n")
    (package / "elsewhere.py").write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    info = StrategyInfo("far", "", Options, "plugin_of_test.far.strategy:Far")
    monkeypatch.setattr(subject, "strategy", lambda name: info)

    def ids():
        subject._hash.cache_clear()
        return code_id("far")

    first = ids()
    (package / "elsewhere.py").write_text("a = 2\n")
    assert ids() == first
    (package / "far/strategy.py").write_text("a = 2\n")
    assert ids() != first


def test_an_unknown_strategy_is_refused():
    with pytest.raises(KeyError, match="unknown strategy 'nobody'"):
        code_id("nobody")
