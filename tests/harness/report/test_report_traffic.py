"""Traffic in the report is the ledger's, a view, and what stays at its place is in no total."""

from __future__ import annotations

import numpy as np
import pytest

from harness.records.schema import Measurement
from harness.report import drawing, frames
from harness.report.sections import stages, traffic
from harness.report.sections.traffic import ledger


def moved(metric: str, stage: str, place: int, peer: int, value: float) -> Measurement:
    return Measurement.of(metric, value, "mean", stage=stage, place=place, peer=peer)


def rates(views: float, steps: float) -> list[Measurement]:
    return [
        Measurement.of("views_per_second", views),
        Measurement.of("optimizer_steps_per_second", steps),
        Measurement.of("step_seconds", 1.0 / steps),
    ]


@pytest.fixture
def two_places(run):
    """Four views a step; 800 B of payload cross, 80 B of metadata, 4,000 B stay."""
    run.add(
        [
            *rates(8.0, 2.0),
            moved("payload_bytes", "exchange_forward", 0, 1, 600.0),
            moved("payload_bytes", "exchange_backward", 1, 0, 200.0),
            moved("payload_bytes", "exchange_forward", 0, 0, 4000.0),
            moved("metadata_bytes", "exchange_forward", 0, 1, 80.0),
            Measurement.of("exposed_seconds", 0.003, "mean", stage="exchange_forward"),
            Measurement.of("hidden_seconds", 4e-7, "mean", stage="exchange_forward"),
        ],
        strategy="grendel",
        ranks=2,
        batch=4,
    )
    return run


def test_bytes_a_view_are_those_of_a_step_over_its_views_without_the_diagonal(two_places):
    cells = frames.read([two_places.folder]).cells
    assert list(cells["bytes_a_view"]) == [pytest.approx((600 + 200 + 80) / 4)]
    assert list(cells["imbalance"]) == [pytest.approx(680 / 440)]


def test_bytes_a_view_of_consolidated_views_are_over_those_that_ran_together(run):
    together = [
        Measurement.of("views_per_second", 8.0),
        Measurement.of("optimizer_steps_per_second", 8.0),
        Measurement.of("step_seconds", 0.2),
    ]
    run.add([*together, moved("payload_bytes", "exchange_forward", 0, 1, 320.0)], strategy="splaxel", ranks=2)
    assert list(frames.read([run.folder]).cells["bytes_a_view"]) == [pytest.approx(200.0)]


def test_batch_is_the_views_of_a_step_when_rates_are_missing(run):
    run.add([moved("payload_bytes", "exchange_forward", 0, 1, 600.0)], strategy="grendel", ranks=2, batch=3)
    assert list(frames.read([run.folder]).cells["bytes_a_view"]) == [pytest.approx(200.0)]


def test_cell_that_counted_and_moved_nothing_has_zero_bytes_and_one_that_did_not_count_has_none(run):
    run.add([*rates(1.0, 1.0), Measurement.of("collectives", 0.0, "mean")])
    run.add(rates(1.0, 1.0), strategy="grendel")
    cells = frames.read([run.folder]).cells.set_index("strategy")
    assert cells.loc["single", "bytes_a_view"] == 0.0
    assert np.isnan(cells.loc["grendel", "bytes_a_view"])


def test_repeats_are_averaged_over_all_of_them_even_where_one_moved_nothing(run):
    for repeat, size in enumerate((300.0, 0.0)):
        found = [moved("payload_bytes", "exchange_forward", 0, 1, 100.0)]
        found += [moved("payload_bytes", "exchange_loss", 1, 0, size)] if size else []
        run.add([*rates(1.0, 1.0), *found], strategy="grendel", ranks=2, repeat=repeat)
    by_stage = ledger(frames.read([run.folder])).set_index("stage")["value"]
    assert by_stage.to_dict() == {"exchange_forward": 100.0, "exchange_loss": 150.0}


def test_ledger_table_has_stages_with_payload_metadata_what_stays_and_waits(two_places):
    with drawing.style():
        section = traffic.section(frames.read([two_places.folder]))
    (table,) = [part for part in section.parts if part.kind == "table"]
    assert table.columns[2:] == ["payload a view", "metadata a view", "both", "stays", "ms exposed", "ms hidden"]
    rows = {row[1].text: [entry.text for entry in row[2:]] for row in table.rows}
    assert rows["exchange_forward"] == ["150 B", "20 B", "170 B", "1.00 kB", "3.00", "< 0.001"]
    assert rows["exchange_backward"] == ["50 B", "0 B", "50 B", "0 B", "–", "–"]


def test_matrices_are_of_the_cells_with_the_most_traffic_and_few(run):
    for seed in range(9):
        run.throughput("grendel", 4, traffic=1.0 + seed, seed=seed)
    run.throughput("grendel", 64, traffic=1e-3)
    results = frames.read([run.folder])
    with drawing.style():
        plot = next(p for p in traffic.section(results).plots if p.name == "matrices")
    titles = [axes.get_title(loc="left") for axes in plot.figure.axes if axes.get_title(loc="left")]
    assert titles == [f"grendel · 4 ranks · seed {seed}, kB" for seed in (8, 7, 6, 5, 4, 3)]


def test_strategy_without_ledger_leaves_the_section_empty(run):
    run.add(rates(1.0, 1.0))
    assert traffic.section(frames.read([run.folder])).parts == []


def test_exposed_part_of_a_stage_is_never_longer_than_the_stage(run):
    of = Measurement.of
    run.add(
        [
            *rates(1.0, 1.0),
            of("stage_seconds", 0.010, "mean", stage="bin"),
            of("stage_seconds", 0.004, "mean", stage="exchange_forward"),
            of("exposed_seconds", 0.006, "mean", stage="exchange_forward"),
        ],
        strategy="grendel",
        ranks=2,
    )
    found = stages.stages(frames.read([run.folder])).set_index("stage")["exposed"]
    assert found.to_dict() == {"bin": 0.0, "exchange_forward": 0.004}
