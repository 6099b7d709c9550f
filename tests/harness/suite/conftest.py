"""Suites written on the spot, machines that are not this one, and two strategies with options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from harness.suite.machine import Machine
from strategies import registry
from strategies.info import Options, StrategyInfo

LAPTOP = Machine(gpus=0, cpus=2, compiled=False, nvcc=False)


class WeaverOptions(Options):
    codec: Literal["dense", "bitmap"] = "dense"
    raster: Literal["separate", "fused"] = "separate"
    prune: bool = False
    share: float = 0.5


class LoomOptions(Options):
    halo: int = 10


@pytest.fixture
def more_strategies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`weaver` and `loom` beside `single`, and no other."""
    single = registry.strategy("single")
    engines = "symmetric", "nccl", "gloo", "virtual"
    weaver = StrategyInfo("weaver", "for tests", WeaverOptions, "nowhere:Weaver", engines=engines)
    loom = StrategyInfo("loom", "for tests", LoomOptions, "nowhere:Loom", engines=("local", "gloo"), max_ranks=4)
    monkeypatch.setattr(registry, "BUILT_IN", (single, weaver, loom))
    registry.strategies.cache_clear()
    yield
    registry.strategies.cache_clear()


@pytest.fixture
def suite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes a suite `s.yaml` into an empty current directory; its path is relative to it."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        Path("s.yaml").write_text(text, encoding="utf-8")
        return Path("s.yaml")

    return write


@pytest.fixture
def laptop() -> Machine:
    """Two cores, no GPU."""
    return LAPTOP


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of photographs that suites of ours name is there, as far as a plan looks."""
    (tmp_path / "shared" / "data" / "aerial_lewis").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
