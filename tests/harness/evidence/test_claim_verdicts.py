"""Published figures beside measured ones: verdicts, and none without a record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.evidence.claim_verdicts import ClaimVerdict, effect_share, judge_claims
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


def test_every_claim_whose_cell_runs_on_a_cpu_has_a_verdict_from_committed_records():
    suite = CHECKOUT / "suites" / "claims.yaml"
    runnable = {planned.cell.name for planned in plan(suite, device="cpu").cells if planned.skip is None}
    tested = judge_claims(suite, [CHECKOUT / "reports"])
    open_claims = [
        one.claim.id for one in tested if one.verdict is ClaimVerdict.no_record and one.claim.test in runnable
    ]
    assert open_claims == []
