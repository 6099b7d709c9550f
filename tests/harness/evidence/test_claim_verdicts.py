"""Published figures beside measured ones: verdicts, and none without a record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.evidence.claim_verdicts import ClaimVerdict, effect_share, judge_claims
from harness.evidence.claims_sheet import claims_sheet
from harness.records.schema import Measurement
from harness.records.store import records
from harness.suite.machine import Machine
from harness.suite.plan import plan

CHECKOUT = Path(__file__).parents[3]
SUITE = """\
suite: 1
defaults: {scene: {city: small_aerial, gaussians: 50}, size: [16, 12], ranks: 2, engine: virtual}
by_device: {cuda: {defaults: {engine: nccl}}}
cases:
  - {name: sparse, strategy: bytesplat, options: {codec: bitmap}}
  - {name: dense, strategy: bytesplat, options: {codec: dense}}
claims:
  - {id: bytes, system: bytesplat, says: half, published: 0.5, metric: payload_bytes, test: sparse, against: dense}
  - {id: zeros, system: bytesplat, says: many, published: 0.72, metric: zero_gradient_share, test: sparse}
  - {id: time, system: bytesplat, says: fast, published: 0.5, metric: step_seconds, test: sparse, against: dense}
  - {id: photos, system: bytesplat, says: nice, published: 30, metric: psnr, not_testable: the photographs}
  - {id: later, system: bytesplat, says: soon, published: 2, metric: psnr, planned: the other half}
"""


@pytest.fixture
def project(folder, tmp_path):
    """A suite of claims, and a way to record what its two cases measured."""
    suite = tmp_path / "s.yaml"
    suite.write_text(SUITE)
    run = folder("run")

    def measured(device, sparse, dense, seconds=(1.0, 1.0), zeros=0.7, environment="e" * 12):
        for planned, value, time in zip(plan(suite, device=device).cells, (sparse, dense), seconds, strict=True):
            cell = planned.cell.model_dump(exclude={"suite"}, by_alias=True)
            metrics = {"zero_gradient_share": zeros}
            if device == "cpu":
                metrics["step_seconds"] = time
            run.cell([time], counts={"payload_bytes": value}, metrics=metrics, environment=environment, **cell)
        return judge_claims(suite, [run.path])

    return measured


def verdicts(tested):
    return {one.claim.id: str(one.verdict) for one in tested}


@pytest.mark.parametrize(
    ("published", "found", "relative", "share"),
    [
        (0.5, 0.5, True, 1.0),
        (2.0, 4.0, True, 2.0),
        (4.0, 2.0, True, 0.5),
        (2.0, 0.5, True, -1.0),
        (0.8, 0.4, False, 0.5),
    ],
)
def test_effects_are_weighed_by_logarithms_of_ratios_and_values_by_themselves(published, found, relative, share):
    assert effect_share(published, found, relative) == pytest.approx(share)


@pytest.mark.parametrize(
    ("sparse", "verdict"), [(50.0, "reproduced"), (40.0, "reproduced"), (60.0, "partly"), (90.0, "not"), (150.0, "not")]
)
def test_a_verdict_goes_by_the_share_of_the_effect_that_was_found(project, sparse, verdict):
    assert verdicts(project("cuda", sparse, 100.0))["bytes"] == verdict


def test_each_claim_has_a_fate_and_time_on_a_cpu_is_none(project):
    assert verdicts(project("cpu", 50.0, 100.0, seconds=(0.5, 1.0))) == {
        "bytes": "reproduced",
        "zeros": "reproduced",
        "time": "needs GPUs",
        "photos": "not testable",
        "later": "planned",
    }


def test_time_on_gpus_is_judged(project):
    (time,) = (one for one in project("cuda", 50.0, 100.0, seconds=(0.5, 1.0)) if one.claim.id == "time")
    assert time.verdict is ClaimVerdict.reproduced
    assert time.found == pytest.approx(0.5)


def test_machines_are_judged_apart(project):
    project("cuda", 50.0, 100.0)
    tested = project("cpu", 90.0, 100.0, environment="2" * 12)
    assert sorted(str(one.verdict) for one in tested if one.claim.id == "bytes") == ["not", "reproduced"]


def test_without_records_nothing_is_claimed(folder, tmp_path):
    suite = tmp_path / "s.yaml"
    suite.write_text(SUITE)
    tested = judge_claims(suite, [folder("empty").path])
    assert verdicts(tested)["bytes"] == "no record"
    assert all(one.found is None for one in tested)


def test_the_command_speaks_json(tmp_path, folder):
    suite = tmp_path / "s.yaml"
    suite.write_text(SUITE)
    done = CliRunner().invoke(app, ["claims", str(folder("empty").path), "--suite", str(suite), "--json"])
    assert done.exit_code == 0
    assert [row["id"] for row in json.loads(done.stdout)["rows"]] == ["bytes", "zeros", "time", "photos", "later"]


SHARES = """\
suite: 1
defaults: {scene: {city: small_aerial, gaussians: 50}, size: [16, 12], strategy: grendel, engine: nccl, link: host}
cases: [{name: two, ranks: 2}, {name: eight, ranks: 8}]
claims:
  - {id: grows, system: grendel, says: grows, published: 4.0, metric: exposed_seconds, over: step_seconds,
     test: eight, against: two}
  - {id: cost, system: splaxel, says: little, published: 0.15, metric: exposed_seconds, over: step_seconds,
     at_most: true, test: two}
"""


@pytest.fixture
def shares(folder, tmp_path):
    """Records of two and eight GPUs with the exposed seconds given, in two stages, of steps of a second."""
    suite = tmp_path / "shares.yaml"
    suite.write_text(SHARES)
    run = folder("shares")

    def judged(two, eight, step=1.0):
        for planned, exposed in zip(plan(suite, device="cuda").cells, (two, eight), strict=True):
            stages = [
                Measurement.of("exposed_seconds", exposed / 2, "mean", stage=stage) for stage in ("there", "back")
            ]
            run.cell([step], measured=stages, **planned.cell.model_dump(exclude={"suite"}, by_alias=True))
        return {one.claim.id: (str(one.verdict), one.found) for one in judge_claims(suite, [run.path])}

    return judged


def test_a_share_of_the_step_is_of_all_stages_and_a_cost_may_be_less(shares):
    assert shares(0.1, 0.4) == {"grows": ("reproduced", pytest.approx(4.0)), "cost": ("reproduced", pytest.approx(0.1))}


def test_a_share_grows_with_the_step_as_it_does_and_a_cost_of_more_is_not_reproduced(shares):
    found = shares(0.8, 0.96, step=2.0)
    assert found["grows"] == ("not", pytest.approx(1.2))
    assert found["cost"] == ("not", pytest.approx(0.4))


SEEDS = """\
suite: 1
defaults: {scene: {city: small_aerial, points: 50}, scenario: train, size: [16, 12]}
cases:
  - {name: ours, strategy: splaxel, options: {boundary: drop}, seeds: 5}
  - {name: theirs, strategy: splaxel, options: {boundary: keep}, seeds: 5}
claims:
  - {id: gain, system: splaxel, says: gains 0.3 dB, published: 0.3, metric: psnr, test: ours, against: theirs}
"""


@pytest.fixture
def trained(folder, tmp_path):
    """Records PSNR of both cases, a value a seed (none: not recorded); what becomes of the claim."""
    suite = tmp_path / "seeds.yaml"
    suite.write_text(SEEDS)
    run = folder("seeds")

    def judged(ours, theirs):
        cells = plan(suite, device="cpu").cells
        assert [planned.cell.seed for planned in cells] == [0, 1, 2, 3, 4] * 2
        for planned, psnr in zip(cells, [*ours, *theirs], strict=True):
            if psnr is not None:
                run.cell(metrics={"psnr": psnr}, **planned.cell.model_dump(exclude={"suite"}, by_alias=True))
        (tested,) = judge_claims(suite, [run.path])
        return tested

    return judged


BASE = (20.0, 21.0, 20.5, 19.5, 20.2)


def test_a_claim_of_decibels_is_the_difference_seed_by_seed_with_its_spread(trained):
    tested = trained([value + gain for value, gain in zip(BASE, (0.28, 0.32, 0.3, 0.29, 0.31), strict=True)], BASE)
    assert tested.verdict is ClaimVerdict.reproduced
    assert (tested.found, tested.seeds) == (pytest.approx(0.3), 5)
    assert tested.spread == pytest.approx(0.0158, abs=1e-4)


def test_an_effect_that_seeds_scatter_beyond_is_not_reproduced(trained):
    tested = trained([value + gain for value, gain in zip(BASE, (1.5, -0.9, 0.9, -0.6, 0.6), strict=True)], BASE)
    assert tested.found == pytest.approx(0.3)
    assert tested.verdict is ClaimVerdict.not_reproduced
    assert "seeds scatter by more than the effect" in tested.reason


def test_a_case_with_a_seed_missing_has_no_verdict(trained):
    assert trained(BASE, (*BASE[:4], None)).verdict is ClaimVerdict.no_record


def test_the_table_shows_the_spread_over_seeds(trained):
    tested = trained([value + gain for value, gain in zip(BASE, (0.28, 0.32, 0.3, 0.29, 0.31), strict=True)], BASE)
    (row,) = claims_sheet("seeds", [tested]).rows
    assert row[2] == "0.300 ± 0.0158"
    assert "5 seeds" in row[-1]


def machines():
    """Those of the committed records, each with its label: a CPU, or so many GPUs with their compiler."""
    found = {record.machine for _, record in records(CHECKOUT / "reports")}
    for label in sorted(found):
        gpus = int(label.split("x ")[0]) if "NVIDIA" in label else 0
        yield label, Machine(gpus=gpus, cpus=2, compiled=gpus > 0, nvcc=gpus > 0, numba_cuda=gpus > 0)


def test_every_claim_whose_cells_run_on_a_committed_machine_has_a_verdict_from_it():
    suite = CHECKOUT / "suites" / "claims.yaml"
    tested = judge_claims(suite, [CHECKOUT / "reports"])
    judged = {(one.claim.id, one.machine) for one in tested if one.verdict is not ClaimVerdict.no_record}
    open_claims, asked = [], 0
    for label, machine in machines():
        planned = plan(suite, device="cuda" if machine.gpus else "cpu", machine=machine)
        runs = {}
        for one in planned.cells:
            runs[one.cell.name] = runs.get(one.cell.name, True) and one.skip is None
        for claim in planned.claims:
            if claim.test and runs[claim.test] and (claim.against is None or runs[claim.against]):
                asked += 1
                # The claim is judged on this kind of machine; CPUs of other models count as one.
                where = [name for identity, name in judged if identity == claim.id]
                if not any(name == label or (not machine.gpus and "NVIDIA" not in name) for name in where):
                    open_claims.append((claim.id, label))
    assert asked > 10
    assert open_claims == []
