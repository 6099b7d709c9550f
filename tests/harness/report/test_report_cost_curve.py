"""Cost curve: scenes that grow around the same views, what of a step grows with them, and what is no curve."""

from __future__ import annotations

from harness.records.schema import Measurement
from harness.report import drawing, frames
from harness.report.build import build_report
from harness.report.sections import cost_curve
from harness.report.sections.cost_curve import curves

of = Measurement.of


def grown(run, copies: int, visible: float = 1e6, step: float = 0.008, **keys) -> None:
    scene = {"city": "anchor_aerial", "gaussians": 20_000_000 * copies, "tile": [1, copies], "tile_views": "once"}
    measurements = [
        of("step_seconds", step),
        of("views_per_second", 1 / step),
        of("stage_seconds", 2e-4 * copies, stage="project"),
        of("stage_seconds", 6e-3, stage="raster_forward"),
        of("stage_seconds", 3e-3 + 3e-5 * copies, stage="optimize"),
        of("visible_gaussians", visible, "mean"),
        of("tile_instances", 2e6, "mean"),
    ]
    run.add(measurements, **{"scenario": "throughput", "kernels": "compiled", "scene": scene} | keys)


def test_scenes_that_grow_around_the_same_views_are_a_curve(run, tmp_path):
    for copies in (4, 1, 2, 8):
        grown(run, copies, step=0.008 + 2e-4 * copies)
    frame = curves(frames.read([run.folder]))
    assert list(frame["gaussians"]) == [20_000_000 * copies for copies in (1, 2, 4, 8)]
    assert frame["curve"].nunique() == 1
    text = (build_report([run.folder], tmp_path / "out").parent / "report.md").read_text(encoding="utf-8")
    assert "| 160,000,000 | 1,000,000 | 2,000,000 | 9.60 | 1.17× | 1.60 | 8.00× | 9.24 | 1.02× |" in text
    assert (tmp_path / "out" / "plots" / "cost-1.png").exists()


def test_scenes_whose_views_see_more_as_they_grow_are_none(run):
    for copies in (1, 2, 4):
        grown(run, copies, visible=1e6 * (1 + 0.05 * copies))
    results = frames.read([run.folder])
    assert curves(results).empty
    (part,) = cost_curve.section(results).parts
    assert part.lines == [
        (
            "anchor_aerial · single · 1 rank",
            "no curve: visible Gaussians differ by 13.4% from 20,000,000 to 80,000,000 Gaussians, expected at most 2%.",
        )
    ]


def test_sizes_of_one_city_that_are_no_repetitions_need_no_excuse(run):
    for millions in (1, 5, 20):
        grown(run, 1, visible=1e5 * millions, scene={"city": "anchor_aerial", "gaussians": millions * 1_000_000})
    assert cost_curve.section(frames.read([run.folder])).parts == []


def test_without_timed_stages_a_curve_has_steps_alone(run):
    for copies in (1, 2, 4):
        scene = {"city": "anchor_aerial", "gaussians": 20_000_000 * copies, "tile": [1, copies], "tile_views": "once"}
        seen = [of("visible_gaussians", 1e6, "mean"), of("step_seconds", 0.008), of("views_per_second", 125.0)]
        run.add(seen, scenario="throughput", scene=scene)
    with drawing.style():
        *_, table = cost_curve.section(frames.read([run.folder])).parts
    assert table.columns == ["Gaussians", "visible", "ms a step", "over first"]


def test_two_sizes_are_no_curve_and_strategies_have_their_own(run):
    for copies in (1, 2, 4):
        grown(run, copies)
    for copies in (1, 2):
        grown(run, copies, strategy="gsplat")
    assert set(curves(frames.read([run.folder]))["strategy"]) == {"single"}
