"""A library that stands in for NVIDIA's, so that the real bindings are tested where there is no GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def stand_in_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libnvidia-ml.so.1 that answers from a file."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stand_in.c")
    command = [compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def with_stand_in(stand_in_library: Path, tmp_path: Path) -> Program:
    """Runs Python with that library; `answers` are its lines: (gpu, field, scope, type, return code, value)."""

    def run(*words: str, answers: list[tuple[int, ...]], **environment: str) -> subprocess.CompletedProcess[str]:
        state = tmp_path / "answers"
        state.write_text("".join(" ".join(map(str, line)) + "\n" for line in answers))
        return subprocess.run(
            [sys.executable, *words],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(stand_in_library),
                "NVML_STAND_IN": str(state),
                "PYTHONPATH": str(ROOT),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
