"""Scaling, ablation, growth and batch rules: each figure is the ratio of the right two cells."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.records.schema import Measurement
from harness.report import drawing, frames
from harness.report.overview import verdicts
from harness.report.sections import ablation, growth, mechanisms, scaling
from harness.report.sections.ablation import comparisons
from harness.report.sections.batch_rules import updates
from harness.report.sections.growth import lines
from harness.report.sections.scaling import efficiency


def rate(value: float, **keys) -> list[Measurement]:
    return [Measurement.of("views_per_second", value, **keys)]


def table_of(section) -> dict[str, list[str]]:
    """Rows of a section's only table, by their first entry."""
    (table,) = [part for part in section.parts if part.kind == "table"]
    return {row[0].text: [entry.text for entry in row[1:]] for row in table.rows}


def test_efficiency_divides_by_the_same_strategy_on_one_rank_and_by_single(run):
    run.add(rate(10.0))
    run.add(rate(8.0), strategy="grendel", ranks=1)
    run.add(rate(24.0, source="modelled"), strategy="grendel", ranks=4, engine="virtual")
    found = efficiency(frames.read([run.folder])).set_index("ranks")
    assert list(found.index) == [1, 4], "single ran on one rank count alone"
    assert found.loc[4, "own"] == pytest.approx(24 / (4 * 8))
    assert found.loc[4, "over_single"] == pytest.approx(24 / (4 * 10))
    assert list(found["modelled"]) == [False, True]


def test_efficiency_is_absent_without_a_figure_on_one_rank(run):
    for ranks in (2, 4):
        run.add(rate(5.0 * ranks), strategy="grendel", ranks=ranks)
    found = efficiency(frames.read([run.folder]))
    assert found["own"].isna().all()
    rows = table_of(scaling.section(frames.read([run.folder])))
    assert rows["grendel · 4 ranks"] == ["4", "20.0"], "columns without any value are left out"


def test_efficiency_keeps_settings_apart(run):
    for ranks in (1, 2):
        run.add(rate(10.0 * ranks), strategy="grendel", ranks=ranks)
        run.add(rate(4.0 * ranks), strategy="grendel", ranks=ranks, options={"codec": "bitmap"})
    found = efficiency(frames.read([run.folder]))
    assert set(found["own"]) == {1.0}
    assert set(found["variant"]) == {"defaults", "codec bitmap"}


def test_named_case_joins_the_line_of_its_settings(run):
    for ranks, name in ((1, None), (2, "as it stands"), (4, None)):
        run.add(rate(10.0 * ranks), strategy="grendel", ranks=ranks, name=name)
    run.add(rate(9.0), strategy="grendel", ranks=2, name="unit row", options={"unit": "row"})
    found = efficiency(frames.read([run.folder]))
    assert list(found["ranks"]) == [1, 2, 4]
    assert found["series"].nunique() == 1


def test_scaling_is_drawn_from_three_rank_counts_on(run):
    for ranks in (1, 2):
        run.add(rate(5.0 * ranks), strategy="grendel", ranks=ranks)
    with drawing.style():
        assert scaling.section(frames.read([run.folder])).plots == []
        run.add(rate(19.0), strategy="grendel", ranks=4)
        (plot,) = scaling.section(frames.read([run.folder])).plots
    assert plot.name == "scaling-1"
    assert len(plot.figure.axes) == 2, "views/s and efficiency"


def test_cases_are_held_against_the_one_named_as_it_stands_wherever_it_ran(run):
    for name, value in (("unit row", 8.0), ("as it stands", 10.0), ("halo none", 12.0)):
        run.add(rate(value), strategy="grendel", ranks=2, name=name)
    run.add(rate(99.0), strategy="grendel", ranks=2)
    (found,) = comparisons(frames.read([run.folder]))
    assert [case.name for case in found.cases] == ["unit row", "as it stands", "halo none"]
    assert found.against == [1, 1, 1]
    assert not found.climbs
    with drawing.style():
        assert table_of(ablation.section(frames.read([run.folder])))["halo none"] == ["12.0", "+20 %"]


def test_cases_are_held_against_the_first_that_ran_when_none_is_the_base(run):
    for name in ("zebra", "ant", "bee"):
        run.add(rate(10.0), name=name)
    (found,) = comparisons(frames.read([run.folder]))
    assert [case.name for case in found.cases] == ["zebra", "ant", "bee"], "in the order they ran"
    assert found.against == [0, 0, 0]


def test_cases_of_other_ranks_strategies_or_scenes_are_not_compared(run):
    run.add(rate(10.0), name="one", strategy="grendel", ranks=2)
    run.add(rate(10.0), name="two", strategy="grendel", ranks=4)
    run.add(rate(10.0), name="three", strategy="splaxel", ranks=2)
    run.add(rate(10.0), name="four", strategy="grendel", ranks=2, size=(64, 64))
    assert comparisons(frames.read([run.folder])) == []


def test_ladder_climbs_from_step_to_step_and_leaving_one_out_is_held_against_all(run):
    for name, value in (("base", 10.0), ("+codec=bitmap", 15.0), ("+prune=hardware", 18.0), ("all-codec", 9.0)):
        run.add(rate(value), strategy="bytesplat", ranks=2, name=name)
    (found,) = comparisons(frames.read([run.folder]))
    assert found.climbs
    assert found.against == [0, 0, 1, 2]
    with drawing.style():
        rows = table_of(ablation.section(frames.read([run.folder])))
    assert [row[1] for row in rows.values()] == ["–", "+50 %", "+20 %", "−50 %"]


def test_named_ladders_and_links_are_ladders_of_their_own(run):
    for link in ("native", "host"):
        for name in ("paper: base", "paper: +codec=bitmap"):
            run.add(rate(10.0), strategy="bytesplat", ranks=2, name=name, link=link)
    found = comparisons(frames.read([run.folder]))
    assert [[case.name for case in comparison.cases] for comparison in found] == [["base", "+codec=bitmap"]] * 2
    assert all(comparison.title.endswith("paper") for comparison in found)


def test_growth_follows_gaussians_with_all_else_equal_and_fits_its_exponent(run):
    for gaussians in (10_000, 20_000, 40_000):
        scene = {"city": "big_street", "gaussians": gaussians}
        run.throughput("grendel", 2, traffic=(gaussians / 10_000) ** 0.5 * 1e3, scene=scene)
    run.throughput("grendel", 2, scene={"city": "small_street", "gaussians": 80_000})
    results = frames.read([run.folder])
    found = lines(results, "gaussians")
    assert list(found["gaussians"]) == [10_000, 20_000, 40_000]
    assert lines(results, "ranks").empty
    with drawing.style():
        section = growth.section(results)
    assert table_of(section)["grendel · 2 ranks"][-1] == "0.50"
    assert [plot.name for plot in section.plots] == ["growth-1"]


def test_updates_are_told_by_rule_batch_and_parameter_group(run):
    run.updates("rows", 4, 0.98)
    run.updates("none", 16, 0.91)
    found = updates(frames.read([run.folder])).set_index(["rule", "batch", "group"])
    assert found.loc[("rows", 4, "mean"), "update_cosine"] == pytest.approx(0.98)
    assert found.loc[("none", 16, "opacity"), "update_cosine"] == pytest.approx(0.81)
    assert set(found["second_moment_ratio"]) == {1.1}


def test_counts_of_a_strategy_are_shown_whatever_they_are_called(run):
    share = Measurement.of("zero_gradient_share", 0.125, "mean")
    removed = Measurement(metric="removed_pixels", value=1234.0, unit="1", statistic="mean", stage="mask")
    run.add([*rate(3.0), share, removed, Measurement.of("visible_gaussians", 10.0, "mean")], strategy="splaxel")
    section = mechanisms.section(frames.read([run.folder]))
    once, by_stage = section.parts
    assert (once.summary, once.columns) == ("All counts", ["cell", "zero gradient share"])
    assert [entry.text for entry in once.rows[0]] == ["splaxel · 1 rank", "12 %"]
    assert (by_stage.title, by_stage.columns) == ("Removed pixels", ["cell", "mask"])
    assert [entry.text for entry in by_stage.rows[0]] == ["splaxel · 1 rank", "1,234"]
    assert "zero gradient share: records whose gradient is exactly zero" in section.intro


def test_verdict_tells_who_wins_limited_by_what_and_at_what_quality(run):
    of = Measurement.of
    run.add([*rate(10.0), of("psnr", 18.5, "mean", images_seen=9)], scenario="train")
    measured = [
        *rate(15.0),
        of("step_seconds", 0.1, "mean"),
        of("stage_seconds", 0.02, "mean", stage="bin"),
        of("stage_seconds", 0.06, "mean", stage="raster_backward"),
        of("exposed_seconds", 0.025, "mean", stage="exchange_forward"),
        of("payload_bytes", 300.0, "mean", stage="exchange_forward", place=0, peer=1),
        of("payload_bytes", 100.0, "mean", stage="exchange_forward", place=1, peer=0),
        of("psnr", 18.0, "mean", images_seen=9),
    ]
    run.add(measured, scenario="train", strategy="grendel", ranks=2)
    run.add([*rate(12.0), of("psnr", 18.7, "mean", images_seen=9)], scenario="train", strategy="splaxel", ranks=2)
    (found,) = verdicts(frames.read([run.folder]))
    (about_one, one), (about_two, two) = found.lines
    assert (about_one, about_two) == ("1 rank", "2 ranks")
    assert one == "single, the only one, reaches 10.0 views/s. Its PSNR is 18.50 dB."
    assert two == (
        "grendel is fastest of 2, 15.0 views/s, 1.50× single on one rank, +25 % over splaxel. "
        "Its largest stage is raster_backward (75 %); waiting for the exchange takes up to 25 % of a step; "
        "the place that sends most sends 1.50× the mean. Its PSNR is 18.00 dB; splaxel reaches 18.70 dB."
    )


@pytest.mark.parametrize(("speed", "in_doubt"), [(1.001, True), (1.2, False)])
def test_verdict_says_when_a_lead_is_within_the_noise(run, speed: float, in_doubt: bool):
    run.throughput("grendel", 2, speed=1.0)
    run.throughput("splaxel", 2, speed=speed)
    ((_, text),) = verdicts(frames.read([run.folder]))[0].lines
    assert ("within the noise" in text) == in_doubt


def test_runs_of_two_commits_are_both_kept_labelled_and_compared_within_their_commit(new_run: Callable):
    old, new = new_run("old"), new_run("new")
    for run, commit, factor in ((old, "aaaaaaa11111", 1.0), (new, "bbbbbbb22222+changes", 2.0)):
        run.add(rate(10.0 * factor), commit=commit, code_id=commit[:4])
        run.add(rate(30.0 * factor), commit=commit, code_id=commit[:4], strategy="grendel", ranks=4)
    cells = frames.read([old.folder, new.folder]).cells
    assert list(cells["label"]) == [
        "single · 1 rank · commit aaaaaaa",
        "single · 1 rank · commit bbbbbbb+changes",
        "grendel · 4 ranks · commit aaaaaaa",
        "grendel · 4 ranks · commit bbbbbbb+changes",
    ]
    assert list(cells["speedup"]) == [1.0, 1.0, 3.0, 3.0]


def test_same_code_in_two_folders_is_one_cell_by_its_newest_record(new_run: Callable):
    old, new = new_run("old"), new_run("new")
    old.add(rate(10.0))
    new.add(rate(99.0))
    new.add(rate(11.0))
    results = frames.read([old.folder, new.folder])
    assert list(results.cells["views_per_second"]) == [11.0]
    assert results.superseded == 2
