"""The suite of scaling on GPUs: what is required comes first, and every row has what it is divided by."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from harness.suite.cell import Cell
from harness.suite.feasibility import resolve, skip_reason
from harness.suite.machine import Machine
from harness.suite.plan import Planned, plan
from strategies.gsplat_peer import info as peer
from strategies.registry import strategy

PHOTOGRAPHS = "shared/data/aerial_lewis"
FILE = Path(__file__).parents[3] / "suites" / "scaling.yaml"
pytestmark = pytest.mark.usefixtures("photographs")


def machine(gpus: int) -> Machine:
    return Machine(gpus=gpus, cpus=16, compiled=True, nvcc=True)


def planned(gpus: int, monkeypatch: pytest.MonkeyPatch) -> list[Planned]:
    monkeypatch.setattr(peer, "version", lambda name: peer.VERSION)
    made = plan(FILE, machine=machine(gpus))
    return [one for one in made.cells if not one.preparation]


def scene(cell: Cell) -> tuple[str | None, int | None]:
    return cell.scene.city or cell.scene.path, cell.scene.gaussians


def test_required_cells_are_first_and_all_others_have_one_repeat(monkeypatch):
    cells = [one.cell for one in planned(2, monkeypatch)]
    required = [cell for cell in cells if cell.repeats == 3]
    assert cells[: len(required)] == required
    assert {cell.repeats for cell in cells} == {1, 3}
    assert {scene(cell) for cell in required} == {("anchor_aerial", 20_000_000), ("anchor_street", 20_000_000)}
    assert {cell.link for cell in required} == {"native"}
    assert {(c.strategy, c.ranks) for c in required} == {("single", 1)} | {
        (name, 2) for name in ("grendel", "splaxel", "bytesplat", "unified", "gsplat")
    }
    assert {cell.options.get("packed", False) for cell in required if cell.strategy == "gsplat"} == {False, True}


def test_every_row_has_one_of_single_at_its_scene_and_batch(monkeypatch):
    cells = [one.cell for one in planned(8, monkeypatch)]
    single = {(scene(cell), cell.batch) for cell in cells if cell.strategy == "single"}
    assert {(scene(cell), cell.batch) for cell in cells} == single


def test_with_enough_gpus_no_batch_is_refused_and_every_link_and_rank_count_runs(monkeypatch):
    cells = planned(8, monkeypatch)
    of_peers = [one for one in cells if one.cell.strategy in ("grendel", "gsplat")]
    assert {one.skip for one in of_peers} == {None}
    assert {one.cell.ranks for one in of_peers} == {1, 2, 4, 8}
    assert {one.cell.link for one in of_peers} == {"native", "host", "paced:12"}


def test_the_product_is_complete_but_for_what_no_machine_could_run(monkeypatch):
    timed = [one for one in planned(8, monkeypatch) if one.cell.scenario == "throughput"]
    assert {one.skip for one in timed} == {None}
    found = {(one.cell.strategy, one.cell.ranks, scene(one.cell), one.cell.link) for one in timed}
    strategies = ("single", "grendel", "splaxel", "bytesplat", "unified", "gsplat")
    cities = product(("anchor_aerial", "anchor_street"), (5_000_000, 20_000_000))
    wanted, refused = set(), set()
    for name, ranks, where, link in product(
        strategies, (1, 2, 4, 8), (*cities, (PHOTOGRAPHS, None)), ("native", "host", "paced:12")
    ):
        info = strategy(name)
        cell = resolve(Cell(suite="a", strategy=name, ranks=ranks, batch=8, link=link), info, machine(8))
        if reason := skip_reason(cell, info, machine(8)):
            refused.add((name, reason))
        elif ranks > 1 or link == "native":  # One place has no link: its figure serves all of them.
            wanted.add((name, ranks, where, link))
    assert wanted <= found
    assert {where for _, _, where, _ in found - wanted} == {
        ("anchor_aerial", 80_000_000),
        ("anchor_street", 80_000_000),
    }
    loads = "not for places that load and store each other's memory"
    assert refused == {("single", "single computes on one place")} | {
        ("unified", f"link {link}: {loads}") for link in ("host", "paced:12")
    }


def test_every_strategy_but_the_peer_trains_equal_images_to_be_held_to_single(monkeypatch):
    trained = [one.cell for one in planned(2, monkeypatch) if one.cell.scenario == "train"]
    several = ("grendel", "splaxel", "bytesplat", "unified")
    assert [(cell.strategy, cell.ranks) for cell in trained] == [("single", 1), *((name, 2) for name in several)]
    assert {cell.repeats for cell in trained} == {1}
    alike = {"strategy": "", "ranks": 0, "engine": ""}
    (same,) = {cell.model_copy(update=alike).model_dump_json() for cell in trained}
    assert '"options":{}' in same


def test_what_needs_more_gpus_than_there_are_is_a_row_with_that_reason(monkeypatch):
    skips = {one.skip for one in planned(2, monkeypatch) if one.cell.strategy == "grendel" and one.cell.ranks > 2}
    assert skips == {"needs 4 GPUs, 2 present", "needs 8 GPUs, 2 present"}


def test_on_a_cpu_it_stays_small(laptop):
    made = plan(FILE, machine=laptop)
    assert len(made.cells) == 30
    assert {one.cell.scene.stand_in for one in made.cells} == {True}
    assert {one.cell.repeats for one in made.cells} == {1}
