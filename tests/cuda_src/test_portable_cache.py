"""Where compiled kernels are kept, and that an edited source is compiled anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_src
from cuda_src.cache import CACHE_VARIABLE, cache_directory

ONE_ADAM_STEP = """
import torch
from cuda_src.operators import KernelSet, adam_rows
p, m, v = torch.zeros(1, 59), torch.zeros(1, 59), torch.zeros(1, 59)
rows, views = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int32)
adam_rows(KernelSet("portable"), p, m, v, rows, torch.ones(1, 59), views, torch.ones(59), 1)
print(p[0, 0].item())
"""


def adam_step(checkout: Path, cache: Path) -> float:
    environment = {**os.environ, "PYTHONPATH": str(checkout), CACHE_VARIABLE: str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ONE_ADAM_STEP], cwd=checkout, env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def compiled(cache: Path) -> set[str]:
    return {str(p.relative_to(cache)) for p in cache.rglob("*.nbc")}


def test_an_edited_scalar_function_is_compiled_anew_and_an_unedited_one_is_found(tmp_path):
    checkout, cache = tmp_path / "checkout", tmp_path / "cache"
    shutil.copytree(Path(cuda_src.__file__).parent, checkout / "cuda_src", ignore=shutil.ignore_patterns("__pycache__"))
    assert adam_step(checkout, cache) == pytest.approx(-1.0)
    first = compiled(cache)
    assert first

    assert adam_step(checkout, cache) == pytest.approx(-1.0)
    assert compiled(cache) == first

    # The loop that calls it stands in another file, which does not change.
    scalars = checkout / "cuda_src" / "portable" / "scalar_adam.py"
    source = scalars.read_text()
    edited = source.replace("return parameter - rate *", "return parameter - TWO * rate *")
    edited = edited.replace("import ZERO,", "import TWO, ZERO,")
    assert edited.count("TWO") == 2
    scalars.write_text(edited)
    assert adam_step(checkout, cache) == pytest.approx(-2.0)
    assert compiled(cache) > first


def test_the_named_folder_comes_before_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "named"))
    assert cache_directory("numba") == tmp_path / "named" / "numba"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_directory("numba") == tmp_path / "user" / "splat-harness" / "numba"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory("builds") == tmp_path / "home" / ".cache" / "splat-harness" / "builds"


def test_a_folder_that_cannot_be_written_gives_a_temporary_one(tmp_path, monkeypatch):
    taken = tmp_path / "file"
    taken.write_text("no folder can be made below a file")
    monkeypatch.setenv(CACHE_VARIABLE, str(taken))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_directory("numba")
    assert folder.is_dir()
    assert folder.parent == tmp_path
