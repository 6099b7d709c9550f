"""Every scenario, run inside this process on a scene small enough for a unit test."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.errors import EXIT_OK
from harness.records.schema import REMARK, WorkerResult
from harness.runner import job, worker
from harness.scenes.ply import read_gaussians
from harness.suite.cell import Cell
from strategies.registry import strategy as strategy_info
from strategies.single.strategy import Single

SMALL: dict[str, Any] = {
    "suite": "test",
    "device": "cpu",
    "engine": "local",
    "kernels": "portable",
    "scene": {"city": "small_aerial", "gaussians": 300, "points": 300, "views": 9},
    "size": [40, 30],
    "images": 12,
    "evaluations": 2,
    "training": {"sh_every": 4},
    "stop": {"min_passes": 2, "noise": 10.0, "max_seconds": 5},
}


@pytest.fixture(autouse=True)
def without_a_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of these tests is this process, which no runner holds by a pipe."""
    monkeypatch.setattr(worker, "end_with_the_runner", lambda: None)


def result_of(folder: Path, preparation: bool = False, prepared: Path | None = None, **settings: Any) -> WorkerResult:
    """Run the cell on its ranks (one thread each) and read what it left."""
    cell = Cell.model_validate({**SMALL, **settings})
    folder.mkdir(exist_ok=True)
    described = {
        "cell": cell.model_dump(mode="json", by_alias=True),
        "preparation": preparation,
        "prepared": None if prepared is None else str(prepared),
    }
    (folder / "cell.json").write_text(json.dumps(described))
    assert worker.main(folder) == EXIT_OK
    assert (folder / "done").exists()
    return WorkerResult.model_validate_json((folder / "result.json").read_text())


def values(result: WorkerResult, metric: str) -> list[float]:
    return [m.value for m in result.measurements if m.metric == metric]


def samples(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "samples.parquet")


def test_what_a_strategy_remarks_on_how_it_ran_is_kept(tmp_path, monkeypatch):
    info = replace(strategy_info("grendel"), remark=lambda options, ranks: f"{options.codec} on {ranks}")
    monkeypatch.setattr("harness.runner.job.strategy_info", lambda name: info)
    result = result_of(tmp_path, scenario="throughput", strategy="grendel", ranks=2, engine="virtual")
    assert result.environment[REMARK] == "dense on 2"


def test_train_follows_loss_and_quality_and_keeps_pictures(tmp_path):
    result = result_of(tmp_path, scenario="train")
    assert result.status == "ok"
    psnr = {m.images_seen: m.value for m in result.measurements if m.metric == "psnr"}
    assert sorted(psnr) == [0, 6, 12]
    assert psnr[12] > psnr[0]
    assert len(samples(tmp_path).query("metric == 'loss'")) == 12
    assert {i.kind for i in result.images} == {"initial", "truth", "render", "difference"}
    assert all((tmp_path / i.file).stat().st_size > 0 for i in result.images)
    stages = {m.stage for m in result.measurements if m.metric == "stage_seconds"}
    assert {"project", "bin", "raster_forward", "loss", "raster_backward", "optimize"} <= stages
    assert not (tmp_path / "gaussians.ply").exists()


def test_train_on_two_ranks_equals_one_and_accounts_for_its_traffic(tmp_path):
    one = result_of(tmp_path / "one", scenario="train")
    two = result_of(tmp_path / "two", scenario="train", strategy="grendel", ranks=2, engine="virtual")
    assert values(two, "psnr") == pytest.approx(values(one, "psnr"), abs=0.01)
    assert values(two, "visible_gaussians") == pytest.approx(values(one, "visible_gaussians"), rel=0.01)
    sent = [m for m in two.measurements if m.metric == "payload_bytes" and m.stage == "exchange_forward"]
    assert {(m.place, m.peer) for m in sent} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert values(one, "payload_bytes") == []
    assert {m.place for m in two.measurements if m.metric == "peak_tensor_bytes"} == {0, 1}
    times = {m.source for m in two.measurements if m.metric in ("views_per_second", "stage_seconds")}
    assert times == {"modelled"}
    assert {m.source for m in one.measurements} == {"measured"}


def test_a_preparation_leaves_its_gaussians_and_another_cell_starts_from_them(tmp_path):
    prepared = tmp_path / "prepared"
    first = result_of(prepared, scenario="train", preparation=True)
    assert read_gaussians(prepared / "gaussians.ply").count == values(first, "gaussians_count")[0]
    after = result_of(tmp_path / "after", scenario="train", prepared=prepared)
    assert after.scene.workload_hash != first.scene.workload_hash, "the Gaussians are others"
    start, end = values(after, "psnr")[0], values(first, "psnr")[-1]
    # A PLY has no active SH degree: the new run starts again at degree 0.
    assert start == pytest.approx(end, abs=1.0)


def test_a_cell_tells_where_its_wall_time_went_phase_by_phase(tmp_path):
    began = time.perf_counter()
    result = result_of(tmp_path, scenario="throughput")
    whole = time.perf_counter() - began
    seconds = {m.stage: m.value for m in result.measurements if m.metric == "phase_seconds"}
    assert {"loading the scene", "setting up the strategy", "reading images", "warm-up", "passes"} <= seconds.keys()
    a_step = samples(tmp_path).query("series == 'passes' and not warmup").value.sum()  # One of each pass.
    assert a_step < seconds["passes"] < sum(seconds.values()) < whole


def test_warm_up_lasts_until_the_strategy_has_settled(tmp_path, monkeypatch):
    monkeypatch.setattr(Single, "visits_to_settle", property(lambda self: 4))
    assert result_of(tmp_path, scenario="throughput").status == "ok"
    passes = samples(tmp_path).query("series == 'passes'")
    assert passes["warmup"].tolist()[:5] == [True] * 4 + [False]
    assert passes["pass"].tolist() == list(range(len(passes)))


def test_ranks_of_one_process_open_the_scene_once(tmp_path, monkeypatch):
    opened, load = [], job.load_scene
    monkeypatch.setattr(job, "load_scene", lambda *arguments: opened.append(load(*arguments)) or opened[-1])
    result = result_of(tmp_path, scenario="throughput", strategy="grendel", ranks=4, engine="virtual")
    assert result.status == "ok"
    assert len(opened) == 1


@pytest.mark.parametrize("batch", [1, 3])
def test_throughput_keeps_the_workload_and_samples_whole_passes(tmp_path, batch):
    result = result_of(tmp_path, scenario="throughput", batch=batch)
    assert result.status == "ok"
    (rate,), (step,) = values(result, "views_per_second"), values(result, "step_seconds")
    assert rate == pytest.approx(batch / step)
    passes = samples(tmp_path).query("series == 'passes'")
    assert passes["warmup"].tolist()[:3] == [True, True, False]
    assert len(samples(tmp_path).query("series == 'stages'")) > 0


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("grendel", 2), ("splaxel", 3)])
def test_render_times_images_of_the_training_views_and_moves_nothing(tmp_path, monkeypatch, strategy, ranks):
    rendered, implementation = [], strategy_info(strategy).load()
    pictures = implementation.pictures

    def step(self, queue):
        raise AssertionError("trained while rendering")

    def watched(self, cameras):
        for camera, image in zip(cameras, pictures(self, cameras), strict=True):
            assert (image is None) == (self.ctx.world.rank > 0)
            rendered.append((self.ctx.world.rank, camera))
            yield image

    monkeypatch.setattr(implementation, "step", step)
    monkeypatch.setattr(implementation, "pictures", watched)
    engine = "local" if ranks == 1 else "virtual"
    result = result_of(tmp_path, scenario="render", strategy=strategy, ranks=ranks, engine=engine)
    assert result.status == "ok"
    (rate,), (seconds,) = values(result, "views_per_second"), values(result, "render_seconds")
    assert rate == pytest.approx(1 / seconds)
    assert values(result, "step_seconds") == values(result, "optimizer_steps_per_second") == []
    passes = samples(tmp_path).query("series == 'passes'")
    assert passes["warmup"].tolist()[:3] == [True, True, False]
    assert set(passes["metric"]) == {"render_seconds"}
    measured = passes[~passes["warmup"].astype(bool)]
    assert seconds == pytest.approx(measured["value"].median())
    for rank in range(ranks):
        own = [camera for of, camera in rendered if of == rank]
        views = result.scene.views
        assert own[:views] == own[views : 2 * views] == own[-views:]
        assert len(set(own)) == views == 7
    sent = [m for m in result.measurements if m.metric == "payload_bytes" and m.place != m.peer]
    assert bool(sent) == (ranks > 1)
    uneven = {m.stage: m.value for m in result.measurements if m.metric == "stage_imbalance"}
    assert uneven.keys() == ({"bin", "raster_forward", "region"} if ranks > 1 else set())
    assert all(1 <= ratio <= ranks for ratio in uneven.values())


def test_throughput_is_invalid_when_the_workload_moves(tmp_path):
    settings = {"scenario": "throughput", "training": {"rate_scale": 5e3}}
    result = result_of(tmp_path, **settings)
    assert result.status == "invalid"
    assert "tile instances moved by" in (result.reason or "")
    assert values(result, "views_per_second")


def test_kernels_times_every_operator_and_a_whole_step(tmp_path):
    result = result_of(tmp_path, scenario="kernels")
    operators = {m.stage for m in result.measurements if m.metric == "operator_seconds"}
    assert operators == {
        "project",
        "bin_splats",
        "raster_forward",
        "l1_ssim",
        "raster_backward",
        "project_backward",
        "adam_rows",
    }
    assert values(result, "step_seconds")


def test_updates_of_a_batch_of_one_equal_themselves(tmp_path):
    result = result_of(tmp_path, scenario="updates", batch=1)
    assert values(result, "update_cosine") == pytest.approx([1.0] * len(values(result, "update_cosine")))
    assert values(result, "second_moment_ratio") == pytest.approx([1.0] * len(values(result, "second_moment_ratio")))


def test_the_row_rule_keeps_closer_to_batch_one_than_no_rule(tmp_path):
    def length(rule: str, **where: Any) -> float:
        training = {"batch_rule": rule, "sh_every": 0, "optimizer": "visible"}
        folder = tmp_path / f"{rule}{where}"
        result = result_of(folder, scenario="updates", batch=4, images=24, training=training, **where)
        ratios = {m.stage: m.value for m in result.measurements if m.metric == "update_length_ratio"}
        return ratios["log_scale"]

    assert abs(length("rows") - 1) < abs(length("none") - 1)
    split = length("rows", strategy="grendel", ranks=2, engine="virtual")
    assert split == pytest.approx(length("rows"), rel=1e-3)
