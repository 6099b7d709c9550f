"""What a plan says of a machine: devices, kernels, engines, reasons to skip, predicted memory, found paths."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.evidence.alternation import why_not
from harness.suite import machine as machine_module
from harness.suite.machine import Machine, gpu_count
from harness.suite.plan import Plan, plan

SuiteFile = Callable[[str], Path]
SERVER = Machine(gpus=2, cpus=8, compiled=True, nvcc=True)


@pytest.fixture
def planned(suite_file: SuiteFile) -> Callable[..., Plan]:
    def of(settings: str, machine: Machine) -> Plan:
        return plan(suite_file(f"suite: 1\ndefaults: {{{settings}}}\n"), machine=machine)

    return of


Planner = Callable[..., Plan]
LINKED = replace(SERVER, peers=True)
NO_GPU = Machine(gpus=0, cpus=4, compiled=True, nvcc=False)


@pytest.mark.parametrize(
    ("machine", "device", "kernels"),
    [
        (NO_GPU, "cpu", "portable"),
        (SERVER, "cuda", "compiled"),
        (replace(SERVER, compiled=False), "cpu", "portable"),
        (replace(SERVER, nvcc=False), "cuda", "compiled"),
    ],
)
def test_auto_becomes_what_this_machine_and_version_compute_on(
    planned: Planner, machine: Machine, device: str, kernels: str
) -> None:
    cell = planned("ranks: 1", machine).cells[0].cell
    assert (cell.device, cell.kernels, cell.engine) == (device, kernels, "local")


@pytest.mark.usefixtures("more_strategies")
@pytest.mark.parametrize(
    ("settings", "machine", "engine"),
    [
        ("strategy: weaver, ranks: 2", SERVER, "nccl"),
        ("strategy: weaver, ranks: 2, device: cpu", SERVER, "gloo"),
        ("strategy: weaver, ranks: 8", NO_GPU, "virtual"),
        ("strategy: weaver, ranks: 1", NO_GPU, "gloo"),
        ("strategy: loom, ranks: 1", SERVER, "local"),
        ("strategy: loom, ranks: 8", NO_GPU, "gloo"),
        ("strategy: weaver, ranks: 2, engine: virtual", SERVER, "virtual"),
        ("strategy: weaver, ranks: 2", LINKED, "symmetric"),
        ("strategy: weaver, ranks: 2, link: 'paced:12'", LINKED, "symmetric"),
        ("strategy: weaver, ranks: 2, link: host", LINKED, "nccl"),
        ("strategy: weaver, ranks: 2", replace(LINKED, gpus=0), "gloo"),
    ],
)
def test_the_engine_is_the_strategys_best_that_fits(
    planned: Planner, settings: str, machine: Machine, engine: str
) -> None:
    assert planned(settings, machine).cells[0].cell.engine == engine


@pytest.mark.usefixtures("more_strategies")
@pytest.mark.parametrize(
    ("settings", "machine", "reason"),
    [
        ("ranks: 1", NO_GPU, None),
        ("strategy: weaver, ranks: 2", SERVER, None),
        ("ranks: 2", NO_GPU, "single computes on one place"),
        ("strategy: loom, ranks: 8", NO_GPU, "loom computes on at most 4 places"),
        ("engine: gloo", NO_GPU, "engine gloo: not offered by single"),
        ("strategy: loom, engine: local, ranks: 2", NO_GPU, "engine local: one rank only"),
        ("strategy: loom, engine: gloo, ranks: 1", NO_GPU, "engine gloo: several ranks only; one has engine local"),
        ("strategy: weaver, engine: nccl", NO_GPU, "engine nccl: needs a GPU a rank, device is cpu"),
        (
            "strategy: loom, ranks: 2",
            SERVER,
            "engine gloo: for CPUs only; several GPUs need nccl, which loom does not offer",
        ),
        ("strategy: weaver, ranks: 4", SERVER, "needs 4 GPUs, 2 present"),
        ("device: cuda", NO_GPU, "needs 1 GPU, 0 present"),
        ("strategy: weaver, ranks: 4, engine: virtual", SERVER, None),
        ("strategy: weaver, ranks: 2, engine: gloo", SERVER, "engine gloo: for CPUs only; several GPUs need nccl"),
        ("strategy: weaver, ranks: 2, link: host", SERVER, None),
        (
            "strategy: weaver, ranks: 2, engine: symmetric",
            SERVER,
            "engine symmetric: these GPUs do not reach each other's memory",
        ),
        (
            "strategy: weaver, ranks: 2, engine: symmetric, link: host",
            LINKED,
            "link host: not for ranks that write each other's memory",
        ),
        ("strategy: weaver, ranks: 2, link: host", NO_GPU, "link host: between GPUs only, engine is gloo"),
        ("strategy: weaver, ranks: 2, link: 'paced:12.5'", NO_GPU, None),
        (
            "device: cuda",
            replace(SERVER, compiled=False),
            "needs the compiled kernels, which this version does not have",
        ),
        ("device: cuda", replace(SERVER, nvcc=False), "needs nvcc"),
        ("device: cuda, kernels: portable", SERVER, "kernels portable on cuda: needs numba-cuda"),
        ("device: cuda, kernels: portable", replace(SERVER, nvcc=False, numba_cuda=True), None),
        ("kernels: compiled", NO_GPU, "kernels compiled: not available on cpu"),
        ("kernels: portable, precision: float64", NO_GPU, "kernels portable: precision float64 needs reference"),
        ("precision: float64", NO_GPU, None),
    ],
)
def test_what_cannot_run_here_says_why(planned: Planner, settings: str, machine: Machine, reason: str | None) -> None:
    assert planned(settings, machine).cells[0].skip == reason


def test_places_that_load_and_store_have_no_other_link_than_the_machines(planned: Planner) -> None:
    skip = planned("strategy: unified, ranks: 2, link: 'paced:12'", NO_GPU).cells[0].skip
    assert skip == "link paced:12: not for places that load and store each other's memory"


def test_a_strategy_may_compute_with_some_kernels_alone_on_gpus(planned: Planner) -> None:
    server = replace(SERVER, numba_cuda=True)
    skip = planned("strategy: unified, ranks: 2, device: cuda, kernels: portable", server).cells[0].skip
    assert skip == "kernels portable: unified computes with compiled on GPUs"
    assert planned("strategy: unified, ranks: 2", server).cells[0].skip is None
    assert planned("strategy: unified, ranks: 2, device: cpu, kernels: portable", server).cells[0].skip is None


def test_gpus_that_are_missing_are_not_modelled_unless_asked_for(planned: Planner) -> None:
    assert planned("strategy: grendel, ranks: 8", SERVER).cells[0].skip == "needs 8 GPUs, 2 present"
    assert planned("strategy: grendel, ranks: 8, engine: virtual", SERVER).cells[0].skip is None


def test_a_cell_whose_preparation_cannot_run_is_skipped_for_it(suite_file: SuiteFile) -> None:
    file = suite_file("suite: 1\nprepare: {trained: {kernels: compiled}}\ndefaults: {from: trained}\n")
    preparation, cell = plan(file, machine=NO_GPU).cells
    assert preparation.skip == "kernels compiled: not available on cpu"
    assert cell.skip == "its preparation 'trained' cannot run: kernels compiled: not available on cpu"


def test_memory_is_counted_from_gaussians_ranks_and_pixels(planned: Planner) -> None:
    one = planned("scene: {city: small_street, gaussians: 1000}, size: [100, 50], batch: 2", NO_GPU).cells[0]
    assert one.predicted_bytes == 1000 * (59 * 4 * 3 + 64) + 100 * 50 * 2 * 203
    four = planned("scene: {city: small_street, gaussians: 1000, tile: [2, 3]}, size: [100, 50], ranks: 4", NO_GPU)
    assert four.cells[0].predicted_bytes == 6000 * (59 * 4 * 3 + 64) // 4 + 100 * 50 * 203


def test_ranks_that_share_a_device_need_its_memory_together(planned: Planner) -> None:
    settings = "strategy: grendel, scene: {city: small_street, gaussians: 1000}, size: [100, 50], ranks: 4"
    alone, together = (planned(f"{settings}, engine: {engine}", NO_GPU).cells[0] for engine in ("gloo", "virtual"))
    assert alone.predicted_bytes == 250 * (59 * 4 * 3 + 64) + 100 * 50 * 203
    assert together.predicted_bytes == 4 * alone.predicted_bytes


def test_training_starts_with_the_citys_points(planned: Planner) -> None:
    cell = planned("scenario: train, scene: {city: small_aerial, points: 10, gaussians: 99}, size: [1, 1]", NO_GPU)
    assert cell.cells[0].predicted_bytes == 10 * (59 * 4 * 3 + 64) + 203


def _colmap(folder: Path, points: int, binary: bool) -> None:
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    if binary:
        (model / "points3D.bin").write_bytes(struct.pack("<Q", points) + b"rest")
    else:
        rows = "".join(f"{i} 0 0 0 0 0 0 0\n" for i in range(points))
        (model / "points3D.txt").write_text("# 3D point list\n#   Number of points: ?\n" + rows)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("limit", "expected"), [("", 12), (", gaussians: 5", 5)])
def test_photographs_start_with_the_models_points(
    planned: Planner, tmp_path: Path, binary: bool, limit: str, expected: int
) -> None:
    _colmap(tmp_path / "garden", 12, binary)
    cell = planned(f"scenario: train, scene: {{path: garden{limit}}}, size: [1, 1]", NO_GPU).cells[0]
    assert cell.predicted_bytes == expected * (59 * 4 * 3 + 64) + 203


@pytest.mark.parametrize("content", [b"", b"\x01\x02"])
def test_a_damaged_or_absent_count_leaves_memory_unknown(planned: Planner, tmp_path: Path, content: bytes) -> None:
    _colmap(tmp_path / "garden", 1, True)
    (tmp_path / "garden" / "sparse" / "0" / "points3D.bin").write_bytes(content)
    (tmp_path / "empty").mkdir()
    assert planned("scene: garden", NO_GPU).cells[0].predicted_bytes is None
    assert planned("scene: empty", NO_GPU).cells[0].predicted_bytes is None
    assert planned("scene: empty, size: null", NO_GPU).cells[0].predicted_bytes is None


def test_a_saved_model_counts_its_vertices(planned: Planner, tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(b"ply\nformat binary_little_endian 1.0\nelement vertex 21\nend_header\n\x00")
    cell = planned("scene: {city: small_street, model: a.ply}, size: [1, 1]", NO_GPU).cells[0]
    assert cell.predicted_bytes == 21 * (59 * 4 * 3 + 64) + 203


def test_a_cell_from_a_preparation_starts_with_its_gaussians(suite_file: SuiteFile) -> None:
    file = suite_file(
        "suite: 1\nprepare: {trained: {}}\n"
        "defaults: {from: trained, size: [1, 1], scene: {city: small_aerial, points: 3, gaussians: 500}}\n"
    )
    assert [p.predicted_bytes for p in plan(file, machine=NO_GPU).cells] == [3 * (59 * 4 * 3 + 64) + 203] * 2


def test_a_preparation_is_repeated_with_the_scene_that_starts_from_it(suite_file: SuiteFile) -> None:
    file = suite_file(
        "suite: 1\nprepare: {trained: {scene: {tile: [1, 1]}}}\n"
        "defaults: {from: trained, size: [1, 1], scene: {city: small_aerial, points: 3, tile: [2, 3]}}\n"
    )
    rows = [p.predicted_bytes for p in plan(file, machine=NO_GPU).cells]
    assert rows == [3 * count * (59 * 4 * 3 + 64) + 203 for count in (1, 6)]


def test_photographs_may_start_with_more_points_than_they_have(planned: Planner, tmp_path: Path) -> None:
    _colmap(tmp_path / "garden", 12, True)
    cell = planned("scenario: train, scene: {path: garden, points: 40}, size: [1, 1]", NO_GPU).cells[0]
    assert cell.predicted_bytes == 40 * (59 * 4 * 3 + 64) + 203


def test_an_optional_scene_that_is_missing_skips_its_cells_and_their_preparation(suite_file: SuiteFile) -> None:
    file = suite_file(
        "suite: 1\nprepare: {trained: {}}\n"
        "defaults: {from: trained, scene: {path: none/garden, optional: true}, size: [64, 48]}\n"
    )
    assert [p.skip for p in plan(file, machine=NO_GPU).cells] == ["scene none/garden is not there"] * 2


def test_an_optional_scene_that_is_there_runs_like_any_other(planned: Planner, tmp_path: Path) -> None:
    _colmap(tmp_path / "garden", 12, True)
    assert planned("scene: {path: garden, optional: true}", NO_GPU).cells[0].skip is None


def test_scene_paths_are_looked_for_here_and_then_beside_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suites" / "garden").mkdir(parents=True)
    (tmp_path / "suites" / "a.yaml").write_text("suite: 1\ndefaults: {scene: garden}\n")
    monkeypatch.chdir(tmp_path)
    beside = plan(Path("suites/a.yaml"), machine=NO_GPU).cells[0]
    assert beside.cell.scene.path == os.path.join("suites", "garden")
    (tmp_path / "garden").mkdir()
    here = plan(Path("suites/a.yaml"), machine=NO_GPU).cells[0]
    assert here.cell.scene.path == "garden"
    assert here.cell_id == beside.cell_id


def test_absolute_scene_paths_become_relative(tmp_path: Path, suite_file: SuiteFile) -> None:
    (tmp_path / "garden").mkdir()
    file = suite_file("suite: 1\n")
    assert plan(file, [f"scene={tmp_path}/garden"], machine=NO_GPU).cells[0].cell.scene.path == "garden"


class _Driver:
    """Stands in for pynvml: so many GPUs, or no driver."""

    class NVMLError(Exception):
        pass

    def __init__(self, count: int | None):
        self._count = count

    def nvmlInit(self) -> None:
        if self._count is None:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int | None:
        return self._count

    def nvmlShutdown(self) -> None:
        pass


@pytest.mark.parametrize(
    ("present", "visible", "expected"),
    [
        (None, None, 0),
        (0, None, 0),
        (4, None, 4),
        (4, "0,2", 2),
        (4, "", 0),
        (4, "-1", 0),
        (1, "0,1", 1),
        (4, "0,-1,2", 1),
    ],
)
def test_gpus_are_those_of_the_driver_that_cuda_sees(
    monkeypatch: pytest.MonkeyPatch, present: int | None, visible: str | None, expected: int
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", _Driver(present))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == expected


def test_nvcc_is_found_in_cuda_home_and_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # NVIDIA's wheels, where they are installed.
    assert not machine_module.this_machine().nvcc
    (tmp_path / "bin").mkdir()
    for where in (tmp_path / "nvcc", tmp_path / "bin" / "nvcc"):
        where.touch(mode=0o755)
    assert machine_module.this_machine().nvcc
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert machine_module.this_machine().nvcc


@pytest.mark.parametrize("name", ["quickstart", "scaling", "kernels", "tail", "small_scene", "virtual"])
@pytest.mark.parametrize("machine", [NO_GPU, replace(SERVER, gpus=8)])
def test_the_suites_of_this_repository_plan_everywhere(name: str, machine: Machine) -> None:
    made = plan(Path(__file__).parents[3] / "suites" / f"{name}.yaml", machine=machine)
    assert made.suite == name
    assert any(planned.skip is None for planned in made.cells)
    assert all(planned.predicted_bytes for planned in made.cells if planned.cell.size)


def test_the_quickstart_stays_small() -> None:
    made = plan(Path(__file__).parents[3] / "suites" / "quickstart.yaml", machine=NO_GPU)
    assert len(made.cells) <= 9
    assert {planned.cell.repeats for planned in made.cells} == {1}


def test_the_gate_of_one_gpu_runs_in_turns_and_nothing_moves_in_it() -> None:
    file = Path(__file__).parents[3] / "suites" / "regression_gpu.yaml"
    made = plan(file, machine=replace(SERVER, gpus=1))
    assert [why_not(planned) for planned in made.cells] == [None] * len(made.cells)
    shared = {planned.cell.strategy for planned in made.cells if planned.cell.ranks == 2}
    assert shared == {"grendel", "splaxel", "bytesplat"}, "bytes and collectives need more than one rank"
    assert {planned.cell.training.rate_scale for planned in made.cells} == {0.0}


def test_the_cost_curve_grows_by_copies_and_needs_a_gpu() -> None:
    file = Path(__file__).parents[3] / "suites" / "cost_curve.yaml"
    made = plan(file, machine=SERVER)
    copies = [planned.cell.scene.tile[0] * planned.cell.scene.tile[1] for planned in made.cells]
    assert copies == [1, 2, 4, 8]
    assert all(planned.skip is None for planned in made.cells)
    assert {planned.skip for planned in plan(file, machine=NO_GPU).cells} == {"needs 1 GPU, 0 present"}


def test_the_kernels_suite_tiles_a_trained_scene_to_20_million_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = Path(__file__).parents[3] / "suites" / "kernels.yaml"
    _colmap(tmp_path / "shared" / "data" / "aerial_lewis", 12, True)
    monkeypatch.chdir(tmp_path)
    made = plan(file, device="cuda", machine=SERVER)
    prepared = next(planned for planned in made.cells if planned.preparation)
    assert (prepared.cell.scene.points, prepared.cell.scene.tile, prepared.cell.size) == (300_000, (1, 1), None)
    tiled = [planned.cell for planned in made.cells if planned.cell.from_]
    assert {cell.strategy for cell in tiled} == {"single", "gsplat"}
    assert all(300_000 * cell.scene.tile[0] * cell.scene.tile[1] == 19_800_000 for cell in tiled)
