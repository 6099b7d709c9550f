"""Scaling over links and sizes: what the exchange makes of its link, and the size from which more devices pay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.schema import REMARK, Measurement
from harness.report import drawing, frames
from harness.report.page import compose
from harness.report.sections import break_even, scaling
from harness.report.sections.break_even import break_even as size_that_pays
from harness.report.sections.link_use import link_use
from harness.report.sections.scaling import efficiency

GPUS: dict[str, Any] = {"device": "cuda", "kernels": "compiled", "machine": "2x GPU"}


def exchanged(rate: float = 100.0, link: float | None = 400e9, wire: float | None = 0.998, batch: int = 1) -> list:
    """Two ranks: a step sends 1 GB and 10 kB of ids forward and 0.5 GB back, in 5 ms of which 3 are exposed."""
    found = [
        Measurement.of("views_per_second", rate),
        Measurement.of("step_seconds", batch / rate),
        Measurement.of("hidden_seconds", 0.002, stage="exchange_backward"),
        Measurement.of("exposed_seconds", 0.003, stage="exchange_forward"),
        Measurement.of("hidden_seconds", 0.5, stage="rebalance"),
        Measurement.of("metadata_bytes", 100, stage="rebalance", place=0, peer=1),
    ]
    for place in range(2):
        of_place = {"place": place, "peer": 1 - place}
        found += [
            Measurement.of("payload_bytes", 1e9 - 1e8 * place, stage="exchange_forward", **of_place),
            Measurement.of("payload_bytes", 7e9, stage="exchange_forward", place=place, peer=place),
            Measurement.of("metadata_bytes", 1e4, stage="exchange_forward", **of_place),
            Measurement.of("payload_bytes", 0.5e9, stage="exchange_backward", **of_place),
        ]
    if link is not None:
        found.append(Measurement.of("link_bandwidth", link, "mean"))
    if wire is not None:
        found.append(Measurement.of("wire_over_ledger", wire, "sum"))
        found.append(Measurement.of("wire_over_ledger", 1.0, "sum", stage="calibration"))
    return found


def tables_of(section) -> dict[str, Any]:
    return {part.title: part for part in section.parts if part.kind == "table"}


def test_the_rate_of_an_exchange_is_that_of_the_busiest_rank_without_what_stays_or_is_in_no_hurry(run):
    run.add(exchanged(batch=2), strategy="grendel", ranks=2, batch=2, engine="nccl", **GPUS)
    (found,) = link_use(frames.read([run.folder])).itertuples()
    assert found.exposed == pytest.approx(0.0015)
    assert found.hidden == pytest.approx(0.001)
    assert found.rate == pytest.approx(1.5e9 / 0.005, rel=1e-4)
    assert found.of_link == pytest.approx(found.rate / 400e9)
    assert found.wire == 0.998


def test_the_table_says_what_the_counters_were_judged_to_be(run):
    for batch, words in ((1, "within bounds"), (2, "12 MiB a GPU, judged from 64 MiB on")):
        note = {"wire": words}
        run.add(
            exchanged(batch=batch), strategy="grendel", ranks=2, batch=batch, engine="nccl", environment=note, **GPUS
        )
    table = tables_of(scaling.section(frames.read([run.folder])))["What the exchange makes of the link"]
    row = {column: value.text for column, value in zip(table.columns, table.rows[0], strict=True)}
    assert row == {
        "cell": "grendel · 2 ranks",
        "bytes a view": "2.90 GB",
        "ms a view exposed": "3.00",
        "ms a view hidden": "2.00",
        "GB/s a rank": "300",
        "of the link": "75 %",
        "wire / ledger": "0.998",
        "judged": "within bounds",
    }
    assert table.rows[1][-1].text == "12 MiB a GPU, judged from 64 MiB on"


def test_packing_and_all_is_compared_with_the_plain_all_to_all_and_waiting_for_counts_stands_apart(run):
    def rate(metric: str, stage: str, value: float) -> Measurement:
        return Measurement(metric=metric, value=value, unit="B/s", stage=stage)

    run.add(
        [
            *exchanged(batch=2),
            rate("exchange_bandwidth", "exchange_forward", 210e9),
            rate("all_to_all_bandwidth", "exchange_forward", 300e9),
            rate("exchange_bandwidth", "exchange_backward", 100e9),
            rate("all_to_all_bandwidth", "exchange_backward", 200e9),
            Measurement.of("exposed_seconds", 0.001, stage="exchange_forward counts"),
        ],
        **{"strategy": "grendel", "ranks": 2, "batch": 2, "engine": "nccl"} | GPUS,
    )
    (found,) = link_use(frames.read([run.folder])).itertuples()
    assert (found.forward, found.back) == pytest.approx((0.7, 0.5))
    assert found.counts == pytest.approx(0.0005)
    assert found.exposed == pytest.approx(0.0015), "the exchange alone"


def test_the_slowest_rank_over_the_mean_stands_beside_the_rate(run):
    balance = [
        Measurement(metric="stage_imbalance", value=value, unit="1", stage=stage)
        for stage, value in (("bin", 1.5), ("region", 1.07))
    ]
    run.add([Measurement.of("views_per_second", 100.0)])
    run.add([*exchanged(), *balance], strategy="grendel", ranks=2, engine="nccl")
    table, *_ = tables_of(scaling.section(frames.read([run.folder]))).values()
    assert table.columns[-1] == "slowest / mean"
    assert table.rows[-1][-1].text == "1.07"


def test_ranks_that_take_turns_have_bytes_and_no_rate(run):
    run.add(exchanged(link=None, wire=None), strategy="grendel", ranks=2, engine="virtual")
    table = tables_of(scaling.section(frames.read([run.folder])))["What the exchange makes of the link"]
    assert table.columns == ["cell", "bytes a view", "ms a view exposed", "ms a view hidden"]


def test_efficiency_on_a_slow_link_divides_by_one_rank_which_has_none(run):
    run.add([Measurement.of("views_per_second", 100.0)], strategy="grendel", ranks=1)
    for link, rate in (("native", 180.0), ("host", 60.0), ("paced:12", 90.0)):
        run.add([Measurement.of("views_per_second", rate)], strategy="grendel", ranks=2, link=link)
    found = efficiency(frames.read([run.folder]))
    assert found[found["ranks"] == 2]["own"].tolist() == pytest.approx([0.9, 0.3, 0.45])


def test_a_strategy_on_several_ranks_alone_is_held_against_single_at_its_batch(run):
    for batch, rate in ((1, 200.0), (2, 250.0)):
        run.add([Measurement.of("views_per_second", rate)], batch=batch)
    run.add([Measurement.of("views_per_second", 300.0)], strategy="gsplat", ranks=2, batch=2)
    (found,) = efficiency(frames.read([run.folder])).itertuples()
    assert found.over_single == pytest.approx(300 / (2 * 250))
    assert found.own != found.own


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([1.2, 1.8], 0.0),
        ([1.0, 1.0], 0.0),
        ([0.5, 0.9], None),
        ([1.3, 0.9], None),
        ([0.5, 2.0], 10e6),
        ([0.8, 1.25], 10e6),
    ],
)
def test_the_size_that_pays_lies_where_the_factor_passes_one(factors, expected):
    found = size_that_pays([5e6, 20e6], factors)
    assert found is None if expected is None else found == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6))
def test_from_that_size_on_every_measured_size_pays_and_the_one_before_does_not(factors):
    sizes = [1e6 * 2**i for i in range(len(factors))]
    found = size_that_pays(sizes, factors)
    if found is None:
        assert factors[-1] < 1
        return
    paying = [factor >= 1 for size, factor in zip(sizes, factors, strict=True) if size > found * (1 + 1e-9)]
    assert all(paying)
    below = [factor for size, factor in zip(sizes, factors, strict=True) if size < found * (1 - 1e-9)]
    assert not below or below[-1] < 1


def test_each_setting_has_its_own_size_and_single_at_the_same_size_and_batch_decides(run):
    for gaussians, alone in ((5_000_000, 400.0), (20_000_000, 200.0)):
        scene = {"city": "anchor_aerial", "gaussians": gaussians}
        run.add([Measurement.of("views_per_second", alone)], scene=scene)
        for strategy, link, factor in (
            ("grendel", "native", 1.5),
            ("grendel", "paced:12", gaussians / 10e6),
            ("splaxel", "native", 0.5),
        ):
            rate = [Measurement.of("views_per_second", alone * factor)]
            run.add(rate, strategy=strategy, ranks=2, scene=scene, link=link)
    (table,) = break_even.tables(frames.read([run.folder]))
    found = {row[0].text: (row[1].text, row[2].text) for row in table.rows}
    assert found == {
        "grendel · 2 ranks · native": ("5,000,000: 1.50×, 20,000,000: 1.50×", "at every size from 5,000,000 on"),
        "grendel · 2 ranks · paced:12": ("5,000,000: 0.50×, 20,000,000: 2.00×", "from about 10,000,000 on"),
        "splaxel · 2 ranks": ("5,000,000: 0.50×, 20,000,000: 0.50×", "at no size up to 20,000,000"),
    }


def test_one_size_says_nothing_of_the_size_that_pays(run):
    run.add([Measurement.of("views_per_second", 10.0)])
    run.add([Measurement.of("views_per_second", 15.0)], strategy="grendel", ranks=2)
    assert break_even.tables(frames.read([run.folder])) == []


def test_remarks_of_strategies_stand_once_below_the_figures_and_in_no_environment(run):
    for ranks in (2, 4):
        run.add(exchanged(), strategy="gsplat", ranks=ranks, environment={REMARK: "repaired at run time"}, **GPUS)
    with drawing.style():
        page = compose(frames.read([run.folder]))
    assert page.reading.count(("Remark.", "repaired at run time")) == 1
    (environment,) = [section for section in page.after if section.name == "environment"]
    assert "remark" not in {row[0].text for part in environment.parts for row in part.rows}


def test_values_are_called_modelled_for_the_reason_that_they_are(run):
    def terms() -> set[str]:
        with drawing.style():
            return {term for term, _ in compose(frames.read([run.folder])).reading if term.startswith("Modelled")}

    rate = Measurement.of("views_per_second", 9.0, source="modelled")
    run.add([Measurement.of("views_per_second", 9.0)])
    assert terms() == set()
    run.add([rate], strategy="grendel", ranks=2, engine="nccl", link="paced:12", **GPUS)
    assert terms() == {"Modelled, link paced:"}
    run.add([rate], strategy="grendel", ranks=2, engine="virtual")
    assert terms() == {"Modelled, link paced:", "Modelled, engine virtual:"}
