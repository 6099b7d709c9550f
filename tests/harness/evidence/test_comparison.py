"""From two folders to verdicts, and what must not be compared."""

from __future__ import annotations

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import EXIT_NOTHING, EXIT_USAGE, UserError
from harness.evidence.comparison import compare
from harness.evidence.comparison_sheet import comparison_sheet
from harness.evidence.verdicts import Verdict

STEADY = (1.00, 1.01, 0.99, 1.005, 0.995)
SLOW = tuple(1.4 * value for value in STEADY)


def said(comparison):
    return [(pair.label, pair.judgement.verdict, pair.judgement.reason) for pair in comparison.pairs]


def test_equal_cells_are_compared_and_what_one_side_lacks_is_said(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY, strategy="single")
    b.cell(SLOW, strategy="single")
    a.cell(STEADY, strategy="grendel", ranks=2)
    b.cell(STEADY, strategy="splaxel", ranks=2)
    assert said(compare(a.path, b.path)) == [
        ("single, 1 rank", Verdict.slower, "p = 0.0079"),
        ("grendel, 2 ranks", Verdict.no_data, "B has no such cell"),
        ("splaxel, 2 ranks", Verdict.no_data, "A has no such cell"),
    ]


def test_the_newest_code_and_the_newest_record_of_a_repeat_count(folder):
    a, b = folder("a"), folder("b")
    a.cell(SLOW, code="0" * 12, started="2026-01-01")
    a.cell(STEADY, code="1" * 12, started="2026-01-02")
    b.cell(SLOW, started="2026-01-01")
    b.cell(STEADY, started="2026-01-02")
    assert [pair.judgement.verdict for pair in compare(a.path, b.path).pairs] == [Verdict.same]


def test_unlike_environments_are_refused_and_shown_without_a_verdict_on_demand(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY)
    b.cell(SLOW, environment="2" * 12)
    refused = compare(a.path, b.path)
    assert said(refused)[0][1:] == (
        Verdict.no_data,
        "environments differ (machine e; machine 2): --across shows both",
    )
    assert not refused.compared
    (pair,) = compare(a.path, b.path, across=True).pairs
    assert pair.judgement.verdict is Verdict.no_data
    assert (pair.judgement.base, pair.judgement.new) == pytest.approx((1.0, 1.4))


def test_a_failed_cell_and_another_workload_are_no_data(folder):
    a, b = folder("a"), folder("b")
    for ranks in (1, 2):
        a.cell(STEADY, ranks=ranks, strategy="grendel")
    b.cell(STEADY, ranks=1, strategy="grendel", status="failed", reason="no such colour")
    b.cell(STEADY, ranks=2, strategy="grendel", workload="1" * 64)
    assert [reason for _, _, reason in said(compare(a.path, b.path))] == [
        "B failed: no such colour",
        "the workloads (cameras, images, Gaussians) differ",
    ]


def test_passes_that_scatter_beyond_the_bound_make_a_verdict_ambiguous(folder):
    a, b = folder("a"), folder("b")
    gpu = {"device": "cuda", "kernels": "compiled"}
    a.cell(STEADY, noise=0.005, **gpu)
    b.cell(SLOW, noise=0.02, **gpu)
    (pair,) = compare(a.path, b.path).pairs
    assert pair.judgement.verdict is Verdict.ambiguous
    assert pair.judgement.reason == "passes scatter by 2.0%, the suite's bound is 1.0%"


def test_modelled_times_are_not_held_against_measured_ones(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY, source="measured")
    b.cell(SLOW, source="modelled")
    assert said(compare(a.path, b.path))[0][1:] == (Verdict.no_data, "A is measured, B is modelled")


def test_by_axis_pairs_cells_equal_in_every_other_field(folder):
    run = folder("run")
    run.cell(STEADY, strategy="grendel", ranks=2, options={"codec": "dense"}, engine="virtual")
    run.cell(SLOW, strategy="grendel", ranks=2, options={"codec": "bitmap"}, engine="virtual")
    run.cell(SLOW, strategy="grendel", ranks=4, options={"codec": "bitmap"}, engine="virtual")
    (pair,) = compare(run.path, run.path, by="options.codec").pairs
    assert pair.axis == ("dense", "bitmap")
    assert pair.judgement.verdict is Verdict.slower
    assert pair.counts == []


def test_by_strategy_leaves_each_its_own_options_and_engine(folder):
    run = folder("run")
    run.cell(STEADY, strategy="single", engine="local")
    run.cell(SLOW, strategy="grendel", options={"codec": "bitmap"}, engine="gloo")
    (pair,) = compare(run.path, run.path, by="strategy").pairs
    assert pair.axis == ("single", "grendel")
    assert pair.label == "1 rank · single → grendel"


def test_counts_that_differ_are_named(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY)
    b.cell(STEADY, counts={"payload_bytes": 180_000.0})
    (pair,) = compare(a.path, b.path).pairs
    assert [str(change) for change in pair.counts] == [
        "payload_bytes of exchange_forward 176,000 B → 180,000 B (+2.3 %)"
    ]


@pytest.mark.parametrize("axis", ["rank", "scene.gausians", "options.nothing", "scene."])
def test_an_axis_that_no_cell_has_is_a_mistake(folder, axis):
    run = folder("run")
    run.cell()
    with pytest.raises(UserError, match=f"--by: value '{axis}' is no field"):
        compare(run.path, run.path, by=axis)


def command(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def test_the_command_speaks_four_forms(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY)
    b.cell(SLOW, counts={"collectives": 8.0})
    plain = command(a.path, b.path)
    assert plain.exit_code == 0
    assert "slower" in plain.stdout
    assert all(len(line) <= 80 for line in plain.stdout.splitlines() if str(a.path) not in line)
    found = json.loads(command(a.path, b.path, "--json").stdout)
    assert found["rows"][0]["verdict"] == "slower"
    assert found["rows"][0]["change"] == pytest.approx(0.4)
    (row,) = csv.DictReader(io.StringIO(command(a.path, b.path, "--format", "csv").stdout))
    assert row["counts"] == "collectives 7 → 8 (+14 %)"
    assert (
        "| single, 1 rank | 1,000 | 1,400 | +40 % | slower |" in command(a.path, b.path, "--format", "markdown").stdout
    )


def test_nothing_to_compare_has_an_exit_code_of_its_own(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY, strategy="single")
    assert command(a.path, b.path).exit_code == EXIT_NOTHING
    assert command(a.path, b.path / "missing").exit_code == EXIT_USAGE


def test_deterministic_cells_with_other_gaussians_are_told_apart(folder):
    a, b = folder("a"), folder("b")
    for side, bits in ((a, "ab" * 32), (b, "cd" * 32)):
        side.cell(STEADY, gaussians_hash=bits)
    (pair,) = compare(a.path, b.path).pairs
    assert [str(count) for count in pair.counts] == [
        "Gaussians are not equal to the last bit (hash abababababab → cdcdcdcdcdcd)"
    ]
    assert compare(a.path, a.path).pairs[0].counts == []


def test_a_cell_without_a_counterpart_is_told_what_the_nearest_has_otherwise(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY, strategy="grendel", ranks=2, images=100)
    b.cell(STEADY, strategy="grendel", ranks=2, images=120)
    b.cell(STEADY, strategy="grendel", ranks=4, images=120, batch=2, seed=3)
    b.cell(STEADY, strategy="single")
    reasons = [reason for _, _, reason in said(compare(a.path, b.path))]
    assert reasons == [
        "B has no such cell; nearest differs in images (100, 120)",
        "A has no such cell; nearest differs in images (120, 100)",
        "A has no such cell",
        "A has no such cell",
    ]


def test_too_few_repeats_are_told_how_to_become_enough(folder):
    a, b = folder("a"), folder("b")
    a.cell(STEADY[:1])
    b.cell(STEADY)
    advice = "A verdict takes 4 repeats a side: --set repeats=5 runs what is missing of five."
    assert advice in comparison_sheet(compare(a.path, b.path)).below
    assert advice not in comparison_sheet(compare(b.path, b.path)).below
