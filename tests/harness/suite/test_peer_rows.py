"""The suites that compare with the package gsplat: each of its rows stands beside one of `single` on the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.suite.machine import Machine
from harness.suite.plan import plan
from strategies.gsplat_peer import info as peer

SUITES = Path(__file__).parents[3] / "suites"
GPU = Machine(gpus=1, cpus=16, compiled=True, nvcc=True)


def rows(suite: str, machine: Machine):
    """The suite's planned cells by strategy."""
    cells = plan(SUITES / f"{suite}.yaml", machine=machine).cells
    return {name: [p for p in cells if p.cell.strategy == name] for name in {p.cell.strategy for p in cells}}


@pytest.mark.parametrize(("suite", "scenario"), [("anchor", "throughput"), ("render", "render")])
def test_on_a_gpu_every_row_of_single_has_one_of_gsplat_that_differs_in_nothing_else(monkeypatch, suite, scenario):
    monkeypatch.setattr(peer, "version", lambda name: peer.VERSION)
    found = rows(suite, GPU)
    assert all(p.skip is None for cells in found.values() for p in cells)

    def work(planned):
        return planned.cell.model_copy(update={"strategy": "", "options": {}, "name": None, "repeats": 3})

    plain = [work(p) for p in found["gsplat"] if not p.cell.options]
    assert plain == [work(p) for p in found["single"]]
    assert len(plain) == 4
    assert {cell.scenario for cell in plain} == {scenario}
    varied = [p for p in found["gsplat"] if p.cell.options]
    assert varied
    assert all(work(p) in plain for p in varied), "another way to call gsplat, on one of the same scenes"


def test_without_the_package_its_rows_are_skipped_and_say_how_to_get_it(monkeypatch):
    def absent(name: str) -> str:
        raise peer.PackageNotFoundError(name)

    monkeypatch.setattr(peer, "version", absent)
    found = rows("render", GPU)
    assert {p.skip for p in found["single"]} == {None}
    (reason,) = {p.skip for p in found["gsplat"]}
    assert "splat-harness[peer]" in reason


@pytest.mark.parametrize("suite", ["anchor", "render"])
def test_on_a_cpu_the_peer_is_left_out(laptop, suite):
    assert "gsplat" not in rows(suite, laptop)
