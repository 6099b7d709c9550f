"""Section `Kernels`: operators beside their floors, the step beside their sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records.schema import Measurement
from harness.report import frames
from harness.report.build import build_report
from harness.report.sections.kernels import operators, steps

AT_ONCE = ("project", "bin_splats", "raster_forward", "l1_ssim", "raster_backward", "project_backward_adam")
BESIDE = ("project_backward", "adam_rows")
SCENE = {"city": "anchor_aerial", "gaussians": 5_000_000}
of = Measurement.of


def measured(names: tuple[str, ...], dram: bool = True) -> list[Measurement]:
    """Operator i takes i ms, half of it the floor, which is that of its i GB but for the rasters.

    The profiled view has half the work: it moves as much as it must and half again, and issues 300 M instructions."""
    found = [of("roofline_seconds", 0.0105, "mean"), of("copy_bandwidth", 2e12), of("issue_rate", 9.24e11)]
    for i, name in enumerate(names, start=1):
        found.append(of("operator_seconds", i * 1e-3, "mean", stage=name))
        found.append(of("roofline_seconds", i * 0.5e-3, "mean", stage=name))
        found.append(of("compulsory_bytes", i * (2e8 if "raster" in name else 1e9), "mean", stage=name))
        if dram:
            found.append(of("kernel_seconds", i * 0.5e-3, "last", stage=name))
            found.append(of("dram_bytes", i * 0.75e9, "last", stage=name))
            found.append(of("dram_over_compulsory", 1.5, "last", stage=name))
            found.append(of("warp_instructions", i * 3e8, "last", stage=name))
    counts = {"visible_gaussians": 3.4e6, "tile_instances": 6.6e6, "blended_pairs": 7e7, "active_lanes": 5.4}
    return found + [of(metric, value, "mean") for metric, value in counts.items()]


def single_steps(over: dict[int, float]) -> list[dict]:
    """Three steps of each view, the middle one `over` times a floor of 10 ms."""
    rows = []
    for view, factor in over.items():
        rows.append({"series": "tail", "index": view, "metric": "roofline_seconds", "value": 0.01, "unit": "s"})
        for number, step in enumerate((0.5, factor, 99.0)):
            row = {"series": "tail", "index": view, "metric": "step_seconds", "value": step * 0.01, "unit": "s"}
            rows.append(row | {"pass": number})
    return rows


def kernels(run, names=(*AT_ONCE, *BESIDE), step=0.0252, dram=True, samples=None, **cell) -> None:
    cell = {"scenario": "kernels", "kernels": "compiled", "suite": "kernels", "scene": SCENE} | cell
    run.add([*measured(names, dram), of("step_seconds", step)], samples=samples, **cell)


def report(run, tmp_path: Path) -> str:
    text = (build_report([run.folder], tmp_path / "out").parent / "report.md").read_text(encoding="utf-8")
    assert "## Operators" not in text
    return text.split("## Kernels")[1].split("\n## ")[0]


def test_a_row_has_time_and_floor_and_which_side_of_the_floor_decides(run, tmp_path):
    kernels(run)
    text = report(run, tmp_path)
    assert "| operator | ms | floor | over floor | bound by | must move |" in text
    assert "| bin\\_splats | 2.00 | 1.00 | 2.00× | bytes | 2.00 GB |" in text
    assert "| raster\\_backward | 5.00 | 2.50 | 2.00× | issue | 1.00 GB |" in text
    assert "| whole step | ms | floor | over floor (goal 1.6) |" in text
    assert "**bin_splats:** 32 B of each record" in text
    assert "| single · 1 rank | 25.2 | 10.5 | 2.40× |" in text
    assert "| blended pairs | 70,000,000 |" in text
    assert "| pixels of 32 that blend | 5.40 |" in text
    assert "**copy bandwidth:** 2,000 GB/s" in text
    assert "**issue rate:** 924 G warp instructions/s" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("|")) <= 80


def test_the_sum_is_of_the_steps_operators_and_the_others_stand_in_brackets(run, tmp_path):
    kernels(run)
    frame = operators(frames.read([run.folder]))
    assert list(frame["stage"]) == [*AT_ONCE, *BESIDE]
    assert list(frame["in_step"]) == [True] * 6 + [False] * 2
    text = report(run, tmp_path)
    assert "| sum | 21.0 | 10.5 | 2.00× | – | 14.6 GB |" in text
    assert "| (adam\\_rows) | 8.00 | 4.00 |" in text


def test_what_the_profiler_counted_is_divided_by_what_it_counted_of_the_same_view(run, tmp_path):
    kernels(run)
    text = report(run, tmp_path)
    assert "| profiled, one view | ms | DRAM | over must | GB/s | instructions | of issue |" in text
    assert "| bin\\_splats | 1.00 | 1.50 GB | 1.50× | 1,500 | 600 M | 65 % |" in text
    assert "| sum | 10.5 | 15.8 GB | 1.50× | 1,500 | 6,300 M | 65 % |" in text
    assert "| (adam\\_rows) | 4.00 | 6.00 GB |" in text


def test_a_back_end_that_moves_rows_in_two_has_both_in_its_sum(run, tmp_path):
    kernels(run, names=(*AT_ONCE[:-1], *BESIDE), dram=False)
    text = report(run, tmp_path)
    assert "| sum | 28.0 | 14.0 | 2.00× | – | 21.6 GB |" in text
    assert "DRAM" not in text, "without a profiler no rate is made up"
    assert "(" not in text.split("| operator |")[1].split("| whole step |")[0]


def test_a_peer_without_operators_has_its_step_beside(run, tmp_path):
    kernels(run)
    peer = {"strategy": "gsplat", "scenario": "kernels", "suite": "kernels", "scene": SCENE, "kernels": "compiled"}
    run.add([of("step_seconds", 0.0756), of("views_per_second", 13.2)], **peer)
    found = steps(frames.read([run.folder]))
    assert list(found["step"]) == [0.0252, 0.0756]
    assert found["floor"].isna().tolist() == [False, True]
    assert "| gsplat · 1 rank | 75.6 |" in report(run, tmp_path)


def test_slow_views_are_told_by_the_median_step_of_each_over_its_floor(run, tmp_path):
    kernels(run, samples=single_steps(dict.fromkeys(range(100), 1.5) | {100: 6.0}))
    found = steps(frames.read([run.folder]))
    assert found["over_median"].iloc[0] == pytest.approx(1.5)
    assert found["over_p99"].iloc[0] == pytest.approx(1.5)
    kernels(run, samples=single_steps({0: 1.5, 1: 1.5, 2: 6.0}), scene={**SCENE, "city": "anchor_street"})
    slow = steps(frames.read([run.folder])).set_index("title").iloc[1]
    assert slow["over_p99"] == pytest.approx(1.5 + 0.98 * 4.5)
    assert "| p50 | p99 | p99 / p50 (goal 3) |" in report(run, tmp_path)


def test_records_without_floors_show_times_alone(run, tmp_path):
    run.kernels("reference", 0.01)
    run.kernels("portable", 0.001)
    text = report(run, tmp_path)
    assert "**single · 1 rank · reference**" in text
    assert "| operator | ms |\n" in text
    assert "| bin\\_splats | 20.0 |" in text
    assert "A tick marks" not in text


def test_why_nothing_was_profiled_is_told(run, tmp_path):
    kernels(run, dram=False)
    folder = next(run.folder.iterdir())
    file = folder / "record.json"
    file.write_text(file.read_text().replace('"nccl": null', '"nccl": null, "dram_bytes": "ncu is not installed"'))
    assert "**DRAM bytes:** not measured: ncu is not installed" in report(run, tmp_path)
