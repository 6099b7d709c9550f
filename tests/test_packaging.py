"""The wheel holds all that running needs, and a foreign package of the same name is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, far from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    # setuptools leaves build/ and egg-info in the source tree: build from a copy of what is packaged.
    source = folder / "source"
    tracked = [p for p in CHECKOUT.rglob("*") if p.is_file() and p.relative_to(CHECKOUT).parts[0] in PACKAGED]
    for file in tracked:
        if "__pycache__" not in file.parts:
            copy = source / file.relative_to(CHECKOUT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    subprocess.run([*build, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    return site


PACKAGED = ("harness", "strategies", "cuda_src", "pyproject.toml", "README.md", "LICENSE")


def run(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280)


def test_an_installed_wheel_plans_and_runs_a_suite_of_the_checkout(installed, tmp_path):
    suite = str(CHECKOUT / "suites" / "quickstart.yaml")
    plan = run(installed, tmp_path, "plan", suite)
    assert plan.returncode == 0, plan.stderr
    assert "single" in plan.stdout
    small = ["--set", "images=6", "--set", "size=[32, 24]", "--set", "scene.points=200", "--set", "evaluations=1"]
    ran = run(installed, tmp_path, "run", suite, "--only", "strategy=single", "--out", "out", *small)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert Path(ran.stdout.strip().splitlines()[-1]).name == "report.html"
    assert list((tmp_path / "out" / "cells").glob("*/record.json"))


def test_a_foreign_package_that_shadows_ours_is_refused(installed, tmp_path):
    foreign = tmp_path / "strategies"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    plan = run(tmp_path / "nothing", tmp_path, "plan", str(CHECKOUT / "suites" / "quickstart.yaml"))
    assert plan.returncode == 2
    assert "strategies" in plan.stderr
    assert "Traceback" not in plan.stderr
