"""The real runner and real workers in processes of their own, with a strategy that fails when asked to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLUGIN = Path(__file__).parent / "plugin"
SCENE = "{city: small_street, gaussians: 40, points: 20, views: 4}"
DEFAULTS = f"""\
suite: 1
name: survival
defaults:
  scenario: train
  device: cpu
  kernels: reference
  strategy: faulty
  scene: {SCENE}
  size: [16, 12]
  images: 3
  evaluations: 1
  repeats: 1
  timeout: 60
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to look at processes")


def registered(place: Path, entry: str, folder: Path) -> str:
    """PYTHONPATH on which the entry point `entry` of harness.strategies and the modules in `folder` are found."""
    distribution = place / "made_up-1.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text(f"[harness.strategies]\n{entry}\n")
    return os.pathsep.join(str(path) for path in (ROOT, place, folder))


class Project:
    """A folder with a suite, in which runners are started."""

    def __init__(self, folder: Path, cells: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.out = folder / "out"
        self.environment = {
            **os.environ,
            "PYTHONPATH": registered(folder / "site", "faulty = faulty_info:INFO", PLUGIN),
            "SPLAT_HARNESS_CACHE": str(folder / "cache"),
        }
        (folder / "s.yaml").write_text(DEFAULTS + cells)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A runner of the suite; words: further arguments of `run`."""
        command = [sys.executable, "-m", "harness", "run", "s.yaml", "--out", str(self.out), *words]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and output of a runner that is left in peace."""
        with self.start(*words) as runner:
            text, _ = runner.communicate(timeout=200)
        return runner.returncode, text

    def processes(self) -> list[int]:
        """Processes that belong to this folder, by their environment: runners, torchrun and ranks."""
        entry = f"SPLAT_HARNESS_CACHE={self.environment['SPLAT_HARNESS_CACHE']}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if entry in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
        return found


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Project]:
    """A project of the cells given as YAML, below tmp_path."""
    return lambda cells: Project(tmp_path / "project", cells)
