"""Frames of the report hold the records' values, and name cells so that they can be told apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from harness.records.schema import Measurement
from harness.report import frames
from harness.report.build import build_report
from harness.report.labels import scene_name
from harness.report.overview import findings
from harness.report.quantities import decibels, memory, milliseconds, number
from harness.report.sections.quality import loss, quality
from harness.report.sections.stages import stages
from harness.report.sections.throughput import throughput


def of(metric: str, value: float, statistic: str = "median", **keys) -> Measurement:
    return Measurement.of(metric, value, statistic, **keys)


def table_rows(markdown: str) -> dict[str, list[str]]:
    """Rows of the table of cells by their first column."""
    found = {}
    for line in markdown.split("## What ran where")[1].split("<details>")[0].splitlines():
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) > 2:
            found[cells[0]] = cells
    return found


def test_numbers_in_the_table_are_the_records(run, tmp_path: Path):
    run.add(
        [
            of("views_per_second", 12.345),
            of("step_seconds", 0.081),
            of("psnr", 11.0, "mean", images_seen=0),
            of("psnr", 17.5, "mean", images_seen=300),
            of("peak_memory_bytes", 400e6, "max", place=0),
            of("peak_memory_bytes", 512e6, "max", place=1),
        ],
        strategy="single",
        scenario="train",
    )
    run.add([of("views_per_second", 24.69)], strategy="grendel", ranks=2, scenario="train")
    rows = table_rows((build_report([run.folder], tmp_path / "out").parent / "report.md").read_text(encoding="utf-8"))
    header = rows["cell"]
    single = dict(zip(header, rows["single · 1 rank"], strict=True))
    assert single["views/s"] == number(12.345) == "12.3"
    assert single["ms a step"] == milliseconds(0.081) == "81.0"
    assert single["PSNR, dB"] == decibels(17.5) == "17.50"
    assert single["peak memory"] == memory(512e6) == "512 MB", "of several places the fullest"
    grendel = dict(zip(header, rows["grendel · 2 ranks"], strict=True))
    assert grendel["× single"] == "2.00×"
    assert grendel["PSNR, dB"] == "–"


def test_repeats_make_one_row_with_their_median(run):
    for repeat, rate in enumerate((10.0, 30.0, 12.0)):
        run.add([of("views_per_second", rate)], repeat=repeat)
    results = frames.read([run.folder])
    assert list(results.cells["views_per_second"]) == [12.0]
    assert list(results.cells["repeats"]) == [3]
    assert sorted(throughput(results)["value"]) == [10.0, 12.0, 30.0]


def test_failed_repeat_is_shown_and_its_values_are_not(run):
    run.add([of("views_per_second", 10.0)], repeat=0)
    run.add([of("views_per_second", 99.0)], repeat=1, status="invalid", reason="throttled")
    cell = frames.read([run.folder]).cells.iloc[0]
    assert (cell["status"], cell["reason"]) == ("invalid", "throttled")
    assert cell["views_per_second"] == 10.0
    assert (cell["repeats_ok"], cell["repeats"]) == (1, 2)


def test_newest_code_and_newest_attempt_are_kept(run):
    run.add([of("views_per_second", 1.0)], code_id="old", repeat=0)
    run.add([of("views_per_second", 2.0)], code_id="old", repeat=1)
    run.add(status="failed", reason="broke", code_id="new", repeat=0)
    run.add([of("views_per_second", 3.0)], code_id="new", repeat=0)
    results = frames.read([run.folder])
    assert list(results.cells["views_per_second"]) == [3.0]
    assert list(results.cells["status"]) == ["ok"]
    assert results.superseded == 3


def test_equal_cells_of_two_machines_are_two_rows_in_two_groups(run):
    run.throughput("single", 1, machine="2x NVIDIA H200")
    run.throughput("single", 1, machine="CPU, Model X, 2 cores")
    cells = frames.read([run.folder]).cells
    assert len(cells) == 2
    assert cells["title"].nunique() == 2


def test_modelled_value_is_preferred_and_marked(run):
    modelled = Measurement.of("views_per_second", 20.0, source="modelled")
    run.add([of("views_per_second", 5.0), modelled], ranks=4, strategy="grendel", engine="virtual")
    results = frames.read([run.folder])
    assert list(results.cells["views_per_second"]) == [20.0]
    assert list(results.cells["modelled"]) == [True]
    assert list(throughput(results)["modelled"]) == [True]


def test_published_values_are_no_measurements_of_ours(run):
    run.add([Measurement.of("views_per_second", 38.0, source="published"), of("step_seconds", 0.1)])
    assert frames.read([run.folder]).cells["views_per_second"].isna().all()


def test_stages_keep_the_order_in_which_they_ran_and_take_the_slowest_place(run):
    order = ["project", "bin", "raster_forward+loss", "exchange_forward", "optimize"]
    run.add(
        [of("stage_seconds", 0.001 * (i + p), "mean", stage=s, place=p) for i, s in enumerate(order) for p in (0, 1)]
    )
    found = stages(frames.read([run.folder]))
    assert list(found["stage"]) == order
    assert list(found["value"]) == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005])


def test_speedup_needs_one_unambiguous_single(run):
    run.throughput("single", 1, threads=1)
    run.throughput("grendel", 2, speed=2.0)
    assert frames.read([run.folder]).cells["speedup"].notna().all()
    run.throughput("single", 1, threads=2)
    assert frames.read([run.folder]).cells["speedup"].isna().all()


def test_speedup_is_over_the_single_of_the_same_training(run):
    run.throughput("single", 1)
    run.throughput("single", 1, speed=3.0, name="history", training={"occlusion": "history"})
    run.throughput("grendel", 2, speed=2.0)
    cells = frames.read([run.folder]).cells
    assert dict(zip(cells["label"], cells["speedup"], strict=True)) == pytest.approx(
        {"single · 1 rank": 1.0, "single · 1 rank · history": 1.0, "grendel · 2 ranks": 2.0}, rel=0.01
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([{"options": {}}, {"options": {"codec": "bitmap"}}], ["defaults", "codec bitmap"]),
        ([{"link": "native"}, {"link": "host"}], ["native", "host"]),
        ([{"seed": 0}, {"seed": 7}], ["seed 0", "seed 7"]),
        ([{"training": {}}, {"training": {"footprint": "square"}}], ["usual training", "footprint square"]),
        ([{"name": "plain"}, {"name": "fused"}], ["plain", "fused"]),
    ],
)
def test_labels_name_the_field_in_which_cells_differ(run, fields, expected):
    for keys in fields:
        run.throughput("grendel", 2, **keys)
    labels = list(frames.read([run.folder]).cells["label"])
    assert labels == [f"grendel · 2 ranks · {text}" for text in expected]


def test_a_case_named_after_its_strategy_is_not_called_so_twice(run):
    run.throughput("grendel", 2, name="grendel")
    run.throughput("grendel", 2, name="off", options={"balance": "off"})
    assert list(frames.read([run.folder]).cells["label"]) == ["grendel · 2 ranks", "grendel · 2 ranks · off"]


def test_labels_are_unique_when_only_an_unnamed_field_differs(run):
    run.throughput("grendel", 2, timeout=60.0)
    run.throughput("grendel", 2, timeout=90.0)
    assert frames.read([run.folder]).cells["label"].nunique() == 2


def test_skipped_cell_joins_the_group_of_its_scene(run):
    run.throughput("single", 1, stand_in=True)
    run.add(
        status="skipped", reason="needs 4 GPUs", strategy="grendel", ranks=4, scenario="throughput", size=(320, 180)
    )
    assert frames.read([run.folder]).cells["title"].nunique() == 1


def test_report_order_is_strategy_then_ranks(run):
    for strategy, ranks in (("splaxel", 2), ("grendel", 4), ("zebra", 1), ("grendel", 2), ("single", 1)):
        run.throughput(strategy, ranks)
    cells = frames.read([run.folder]).cells
    assert list(zip(cells["strategy"], cells["ranks"], strict=True)) == [
        ("single", 1),
        ("grendel", 2),
        ("grendel", 4),
        ("splaxel", 2),
        ("zebra", 1),
    ]


def test_noise_is_of_measured_passes_and_leaves_warm_up_out(run):
    samples = [
        {"series": "passes", "pass": i, "warmup": i < 2, "metric": "step_seconds", "value": v, "unit": "s"}
        for i, v in enumerate((9.0, 5.0, 1.0, 1.0, 1.0))
    ]
    run.add([of("step_seconds", 1.0)], samples)
    assert list(frames.read([run.folder]).cells["noise"]) == [0.0]


def test_findings_name_the_fastest_its_gain_and_the_best_quality(run):
    run.train("single", 1, speed=1.0, psnr=18.5)
    run.train("grendel", 2, speed=1.5, psnr=18.25)
    found = findings(frames.read([run.folder]).cells)
    assert [f.figure for f in found] == [number(1.5 / 0.179) + " views/s", "1.50×", "18.50 dB", "2 of 2"]
    assert "grendel · 2 ranks" in found[0].text
    assert "single · 1 rank after 300 images; 11.25 dB before" in found[2].text


def test_findings_say_that_single_is_fastest_when_it_is(run):
    run.throughput("single", 1, speed=1.0)
    run.throughput("grendel", 2, speed=0.5)
    found = findings(frames.read([run.folder]).cells)
    assert "single · 1 rank is fastest" in found[0].text
    assert "grendel · 2 ranks" in found[1].text
    assert found[1].figure in ("0.49×", "0.50×", "0.51×")


def test_empty_folder_gives_empty_frames(new_run: Callable):
    empty = new_run("empty")
    empty.folder.mkdir()
    results = frames.read([empty.folder])
    assert results.cells.empty
    assert isinstance(results.measurements, pd.DataFrame)


def test_city_is_named_by_preset_and_tiling_and_photographs_by_themselves():
    assert scene_name({"city": "small_aerial", "tile": [1, 1]}, "city small_aerial 20,000 Gaussians") == "small_aerial"
    assert scene_name({"city": "big_street", "tile": [2, 3]}, None) == "big_street tiled 2 × 3"
    assert scene_name({"path": "data/garden"}, None) == "garden"
    assert scene_name({"path": "data/garden"}, "Garden") == "Garden"


def test_curves_are_of_the_first_repeat_and_the_mean_of_repeats(run):
    run.train("single", 1, psnr=18.0, repeat=0)
    run.train("single", 1, psnr=20.0, repeat=1)
    results = frames.read([run.folder])
    training, held_out = loss(results), quality(results)
    assert list(training["images_seen"]) == list(range(1, 301))
    assert list(held_out["images_seen"]) == [0, 100, 200, 300]
    assert held_out["value"].iloc[-1] == pytest.approx(19.0)
