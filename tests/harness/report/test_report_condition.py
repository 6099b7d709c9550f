"""Condition of the GPUs: energy a view, clocks, how busy they were, and what disturbed them."""

from __future__ import annotations

import pytest

from harness.records.schema import Measurement
from harness.report import frames
from harness.report.sections import condition

of = Measurement.of
PASSES = [
    {"series": "passes", "pass": i, "warmup": i < 2, "metric": "step_seconds", "value": 0.01, "unit": "s"}
    for i in range(12)
]


def watched(joules: float, clocks: tuple[float, ...]) -> list[Measurement]:
    found = [of("energy_joules", joules, "sum"), of("views_per_second", 100.0)]
    for place, clock in enumerate(clocks):
        found.append(of("sm_clock_hertz", clock, place=place))
        found.append(of("sm_utilization", 0.5 + 0.25 * place, "mean", place=place))
        found.append(of("device_errors", 0, "sum", place=place, stage="link_crc"))
        found.append(of("device_errors", 2 * place, "sum", place=place, stage="ecc_corrected"))
    return found


def rows(run) -> list[dict[str, str]]:
    parts = condition.section(frames.read([run.folder])).parts
    return [dict(zip(t.columns, (v.text for v in row), strict=True)) for t in parts for row in t.rows]


def test_energy_is_told_by_view_and_of_several_gpus_the_slowest_clock(run):
    # 10 measured passes over the 24 views of a run's scene.
    run.add(watched(480.0, (1.98e9, 1.5e9)), PASSES, strategy="grendel", ranks=2, batch=2)
    (row,) = rows(run)
    assert row == {
        "cell": "grendel · 2 ranks",
        "J a view": "2.00",
        "SM clock, MHz": "1,500",
        "SM busy": "62 %",
        "ECC and link errors": "ecc_corrected 2",
    }


@pytest.mark.parametrize(("batch", "joules"), [(5, "2.40"), (16, "3.00")])
def test_a_pass_has_the_views_of_whole_steps(run, batch: int, joules: str):
    run.add(watched(480.0, (1.98e9,)), PASSES, batch=batch)
    (row,) = rows(run)
    assert row["J a view"] == joules
    assert row["ECC and link errors"] == "none"


def test_a_cell_that_is_invalid_shows_what_disturbed_it(run):
    held_down = of("throttled_seconds", 0.25, "sum", place=0, stage="power")
    run.add([*watched(480.0, (1.2e9,)), held_down], status="invalid", reason="clocks were held down (power)")
    (row,) = rows(run)
    assert row["held down, ms"] == "power 250"
    assert "J a view" not in row, "without samples nobody knows how many views there were"


def test_cells_that_nobody_watched_are_not_in_the_table(run):
    run.add([of("views_per_second", 3.0)])
    assert rows(run) == []
