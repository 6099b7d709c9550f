"""The suites that compare with the package gsplat: each of its rows stands beside one of `single` on the same work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.scenes.scene import HOLD_OUT
from harness.suite.cell import Cell
from harness.suite.machine import Machine
from harness.suite.plan import plan
from strategies.gsplat_peer import info as peer
from strategies.training.config import Training

SUITES = Path(__file__).parents[3] / "suites"
GPU = Machine(gpus=1, cpus=16, compiled=True, nvcc=True)


pytestmark = pytest.mark.usefixtures("photographs")


def rows(suite: str, machine: Machine):
    """The suite's planned cells by strategy."""
    cells = plan(SUITES / f"{suite}.yaml", machine=machine).cells
    return {name: [p for p in cells if p.cell.strategy == name] for name in {p.cell.strategy for p in cells}}


@pytest.mark.parametrize(("suite", "scenario"), [("anchor", "throughput"), ("render", "render")])
def test_on_a_gpu_every_row_of_single_has_one_of_gsplat_that_differs_in_nothing_else(monkeypatch, suite, scenario):
    monkeypatch.setattr(peer, "version", lambda name: peer.VERSION)
    found = rows(suite, GPU)
    alone = [p for cells in found.values() for p in cells if p.cell.ranks == 1 and not p.preparation]
    assert all(p.skip is None for p in alone)

    def work(planned):
        return planned.cell.model_copy(update={"strategy": "", "options": {}, "name": None, "repeats": 3})

    usual = [p for p in found["single"] if p in alone and p.cell.batch == 1 and p.cell.training == Training()]
    plain = [work(p) for p in found["gsplat"] if p.cell.options == {"harmonics": "joined"}]
    assert plain == [work(p) for p in usual]
    assert {cell.scenario for cell in plain} == {scenario}
    sizes = [gaussians(cell) for cell in plain]
    assert sizes == [20e6, 20e6, 19.8e6, 5e6, 5e6, 4.8e6], "what matters most is first"
    assert min(training_views(cell) for cell in plain) >= 128
    assert [p.cell.repeats for p in usual] == [3, 3, 1, 1, 1, 1]
    varied = [p for p in found["gsplat"] if p.cell.options != {"harmonics": "joined"}]
    assert {} in [p.cell.options for p in varied], "as its trainer holds them"
    assert all(work(p) in plain for p in varied), "another way to call gsplat, on one of the same scenes"


def gaussians(cell: Cell) -> int:
    """Of a city, or of copies of a scene that is prepared with 300,000."""
    return cell.scene.gaussians or 300_000 * cell.scene.tile[0] * cell.scene.tile[1]


def training_views(cell: Cell) -> int:
    assert cell.scene.views is not None
    views = cell.scene.views * cell.scene.tile[0] * cell.scene.tile[1]
    return views - -(-views // HOLD_OUT)


def test_the_anchor_also_has_more_views_a_step_and_occlusion_history(monkeypatch):
    monkeypatch.setattr(peer, "version", lambda name: peer.VERSION)
    extra = [p.cell for p in rows("anchor", GPU)["single"] if p.cell.batch > 1 or p.cell.training != Training()]
    assert [(c.scene.city, c.batch, c.training.occlusion) for c in extra] == [
        ("anchor_aerial", 2, "off"),
        ("anchor_aerial", 4, "off"),
        ("anchor_aerial", 1, "history"),
        ("anchor_street", 1, "history"),
    ]
    assert {(c.scene.gaussians, c.repeats) for c in extra} == {(20_000_000, 1)}


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_every_strategy_renders_on_as_many_gpus_as_there_are(monkeypatch, gpus):
    monkeypatch.setattr(peer, "version", lambda name: peer.VERSION)
    found = rows("render", replace(GPU, gpus=gpus))
    able = {(name, p.cell.ranks) for name, cells in found.items() for p in cells if p.cell.ranks > 1 and not p.skip}
    several = ("grendel", "splaxel", "bytesplat", "unified")
    assert able == {(name, ranks) for name in several for ranks in (2, 4, 8) if ranks <= gpus}
    alone = {(p.cell.scene, p.cell.batch) for p in found["single"]}
    assert all((p.cell.scene, p.cell.batch) in alone for name in several for p in found[name])


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
