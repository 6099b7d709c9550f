"""The real runner and real workers in processes of their own, with a strategy that fails when asked to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.records.schema import Record
from harness.records.store import records

PLUGIN = Path(__file__).parent / "plugin"
DEFAULTS = """\
suite: 1
name: survival
defaults:
  scenario: train
  device: cpu
  kernels: reference
  strategy: faulty
  scene: {city: small_street, gaussians: 40, points: 20, views: 4}
  size: [16, 12]
  images: 3
  evaluations: 1
  repeats: 1
  timeout: 60
cases:
"""


class Project:
    """A folder with a suite of the cases given as YAML, in which runners are started."""

    def __init__(self, folder: Path, cases: str, pythonpath: str):
        self.folder, self.out = folder, folder / "out"
        # Before what this process itself may have been given by its path, as an uninstalled library.
        path = os.pathsep.join(filter(None, (pythonpath, os.environ.get("PYTHONPATH"))))
        self.environment = {**os.environ, "PYTHONPATH": path, "SPLAT_HARNESS_CACHE": str(folder / "cache")}
        (folder / "s.yaml").write_text(DEFAULTS + cases)

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
            text, _ = runner.communicate(timeout=250)
        return runner.returncode, text

    def records(self) -> dict[str, Record]:
        """By name of the cell."""
        return {str(record.cell["name"]): record for _, record in records(self.out)}

    def processes(self) -> list[int]:
        """Processes of this project by their environment, whoever their parent: runners, torchrun and ranks."""
        if not Path("/proc/self/environ").exists():
            pytest.skip("needs /proc to look at processes")
        entry = f"SPLAT_HARNESS_CACHE={self.environment['SPLAT_HARNESS_CACHE']}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if entry in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def ends(self, seconds: float = 30.0) -> bool:
        """Whether all its processes end within so many seconds."""
        return eventually(lambda: not self.processes(), seconds)


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., bool]:
    """Whether a condition comes true within some seconds."""
    return eventually


@pytest.fixture(scope="module")
def project(
    tmp_path_factory: pytest.TempPathFactory, registered: Callable[[Path, str, Path], str]
) -> Callable[[str], Project]:
    """Makes a project of the cases given as YAML."""

    def make(cases: str) -> Project:
        folder = tmp_path_factory.mktemp("project")
        return Project(folder, cases, registered(folder / "site", "faulty = faulty_info:INFO", PLUGIN))

    return make
