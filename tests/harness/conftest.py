"""Strategies of other packages, as an installation would bring them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _registered(site: Path, entry: str, modules: Path) -> str:
    distribution = site / "made_up-1.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text(f"[harness.strategies]\n{entry}\n")
    return os.pathsep.join(str(path) for path in (ROOT, site, modules))


@pytest.fixture(scope="session")
def registered() -> Callable[[Path, str, Path], str]:
    """From a new folder, an entry point of `harness.strategies` and the folder of its modules to a PYTHONPATH."""
    return _registered
