"""The gate: what passes, what does not, how it is named, and how a baseline is moved."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UserError
from harness.evidence.baseline import read_baseline, write_baseline
from harness.evidence.measured import read
from harness.evidence.regression import CellResult, State, confirmed, exit_code, judge_times
from harness.evidence.verdicts import Verdict
from harness.records.schema import Measurement

STEADY = (1.00, 1.01, 0.99, 1.005, 0.995)
SLOW = tuple(1.4 * value for value in STEADY)
GPU = {"device": "cuda", "kernels": "compiled"}
SUITE = str(Path(__file__).parents[3] / "suites" / "regression.yaml")
STRATEGIES = ("single", "unified", "grendel")


@pytest.fixture
def gate(folder, tmp_path, monkeypatch):
    """A project whose baseline `b` has a cell of three strategies; run `regress --baseline b` on other records."""
    monkeypatch.chdir(tmp_path)
    accepted = folder("accepted")
    for strategy in STRATEGIES:
        accepted.cell(strategy=strategy)
    write_baseline("b", read([accepted.path]), "the first", None)

    def judge(run, *words):
        return CliRunner().invoke(app, ["regress", "--baseline", "b", "--of", str(run.path), *words])

    return judge


def states(result):
    """By cell, from --json."""
    return {row["cell"].split(",")[0]: (row["state"], row["reasons"]) for row in json.loads(result.stdout)["rows"]}


def test_equal_counts_pass(gate, folder):
    now = folder("now")
    for strategy in STRATEGIES:
        now.cell(strategy=strategy, commit="a" * 12)
    result = gate(now)
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ({"payload_bytes": 180_000.0}, "payload_bytes of exchange_forward 176,000 B → 180,000 B (+2.3 %)"),
        ({"collectives": 8.0}, "collectives 7 → 8 (+14 %)"),
        ({"kernel_launches": 17.0}, "kernel_launches 16 → 17 (+6.2 %)"),
        ({"psnr": 16.97}, "psnr 17.27 dB → 16.97 dB (−0.30 dB)"),
    ],
)
def test_a_changed_count_fails_its_cell_alone_and_is_named(gate, folder, counts, named):
    now = folder("now")
    for strategy in STRATEGIES:
        now.cell(strategy=strategy, counts=counts if strategy == "grendel" else {})
    result = gate(now, "--json")
    assert result.exit_code == 1
    found = states(result)
    assert found["grendel"] == ("changed", [named])
    assert found["single"][0] == found["unified"][0] == "ok"


def test_a_cell_that_is_gone_new_or_failed_is_no_pass(gate, folder):
    now = folder("now")
    now.cell(strategy="single", status="failed", reason="no such colour")
    now.cell(strategy="grendel")
    now.cell(strategy="splaxel")
    result = gate(now, "--json")
    assert result.exit_code == 3
    assert {cell: state for cell, (state, _) in states(result).items()} == {
        "single": "not ok",
        "unified": "missing",
        "grendel": "ok",
        "splaxel": "new",
    }


def test_a_record_deleted_from_the_baseline_is_no_pass(gate, folder, tmp_path):
    now = folder("now")
    for strategy in STRATEGIES:
        now.cell(strategy=strategy)
    gone = next(p for p in (tmp_path / "results/baselines/b").rglob("record.json") if "grendel" in p.read_text())
    gone.unlink()
    result = gate(now, "--json")
    assert result.exit_code == 3
    assert states(result)["grendel"][0] == "new"


def test_an_empty_run_is_no_pass(gate, folder, tmp_path):
    empty = folder("empty")
    assert gate(empty).exit_code == 3
    for record in (tmp_path / "results/baselines/b").rglob("record.json"):
        record.unlink()
    assert gate(empty).exit_code == 4


def test_skipped_cells_are_no_pass(gate, folder):
    now = folder("now")
    for strategy in STRATEGIES:
        now.cell(strategy=strategy, status="skipped", reason="budget")
    assert gate(now).exit_code == 3


def test_another_workload_is_a_change(gate, folder):
    now = folder("now")
    for strategy in STRATEGIES:
        now.cell(strategy=strategy, workload="1" * 64)
    assert gate(now).exit_code == 1


def test_junit_and_summary_say_the_same(gate, folder, tmp_path):
    now = folder("now")
    now.cell(strategy="single")
    now.cell(strategy="grendel", counts={"collectives": 8.0})
    assert gate(now, "--junit", "j.xml", "--summary", "s.md").exit_code == 1
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    messages = [failure.get("message") for failure in suite.iter("failure")]
    assert messages == [
        "missing: in the baseline, but not measured now",
        "changed: collectives 7 → 8 (+14 %)",
    ]
    assert "| changed | collectives 7 → 8 (+14 %) |" in (tmp_path / "s.md").read_text()


def test_accept_moves_the_baseline_and_keeps_why(gate, folder):
    now = folder("now")
    for strategy in STRATEGIES:
        now.cell(strategy=strategy, counts={"collectives": 8.0}, commit="a" * 12)
    assert gate(now).exit_code == 1
    assert gate(now, "--accept", "counts travel on their own now").exit_code == 0
    assert gate(now).exit_code == 0
    baseline = read_baseline("b")
    assert [entry["reason"] for entry in baseline.accepted] == ["the first", "counts travel on their own now"]
    assert baseline.commit == "a" * 12


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"commit": "a" * 12 + "+changes"}, "expected those of one commit without changes"),
        ({"status": "failed", "reason": "no such colour"}, "failed: no such colour"),
    ],
)
def test_what_cannot_be_a_baseline_leaves_the_old_one_alone(gate, folder, tmp_path, fields, complaint):
    before = {p: p.read_bytes() for p in (tmp_path / "results").rglob("*") if p.is_file()}
    now = folder("now")
    now.cell(strategy="single", **fields)
    result = gate(now, "--accept", "because")
    assert result.exit_code == 2
    assert complaint in result.output
    assert {p: p.read_bytes() for p in (tmp_path / "results").rglob("*") if p.is_file()} == before


def test_gpu_times_are_judged_by_the_baseline_of_the_same_machine(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base, now, elsewhere = folder("base"), folder("now"), folder("elsewhere")
    base.cell(STEADY, **GPU)
    now.cell(SLOW, **GPU)
    elsewhere.cell(SLOW, environment="2" * 12, **GPU)
    write_baseline("h", read([base.path]), "first", None)

    def judge(run, *words):
        return CliRunner().invoke(app, ["regress", "--baseline", "h", "--of", str(run.path), "--json", *words])

    found = judge(now)
    (row,) = json.loads(found.stdout)["rows"]
    assert (row["state"], found.exit_code) == ("ambiguous", 0)  # Given records cannot be run again.
    assert row["reasons"] == ["+40% (p = 0.0079), not confirmed by a re-run"]
    assert judge(now, "--strict").exit_code == 1
    (row,) = json.loads(judge(elsewhere).stdout)["rows"]
    assert row["reasons"] == ["counts as before; time: environments differ (machine e; machine 2)"]


def test_stored_times_of_a_cpu_are_not_judged(gate, folder):
    now = folder("now")
    for strategy in STRATEGIES:
        now.cell(SLOW, strategy=strategy)
    assert gate(now).exit_code == 0


def test_slower_needs_to_be_slower_twice(folder):
    base, slow, fine = folder("base"), folder("slow"), folder("fine")
    identity = base.cell(STEADY)
    slow.cell(SLOW)
    fine.cell(STEADY)
    sides = [read([side.path]) for side in (base, slow, fine)]
    once, calm = judge_times(sides[0], sides[1]), judge_times(sides[0], sides[2])
    assert confirmed(once, once)[identity].verdict is Verdict.slower
    assert confirmed(once, once)[identity].reason == "+40% and, run again, +40%, together p = 0.0026"
    assert confirmed(once, calm)[identity].verdict is Verdict.ambiguous
    assert confirmed(once, calm)[identity].reason == "+40% and, run again, +0%"
    assert confirmed(once, {})[identity].verdict is Verdict.ambiguous


def test_the_stage_that_grew_most_is_named_of_a_slower_cell(folder):
    def stages(**seconds):
        return [Measurement.of("stage_seconds", value, stage=stage) for stage, value in seconds.items()]

    base, slow, other = folder("base"), folder("slow"), folder("other")
    identity = base.cell(STEADY, measured=stages(project=0.1, raster_backward=0.4, loss=0.3))
    slow.cell(SLOW, measured=stages(project=0.2, raster_backward=0.6, loss=0.2))
    other.cell(SLOW, measured=stages(raster_backward=0.4, exchange=0.5))
    before, after, new_stage = (read([side.path]) for side in (base, slow, other))
    once = judge_times(before, after)
    assert confirmed(once, once)[identity].reason.endswith("together p = 0.0026; most in raster_backward, +50 %")
    once = judge_times(before, new_stage)
    assert confirmed(once, once)[identity].reason.endswith("; most in exchange, new")


@pytest.mark.parametrize(
    ("found", "strict", "code"),
    [
        ([State.ok, State.slower, State.missing], False, 1),
        ([State.changed, State.no_data], False, 1),
        ([State.ok, State.missing], False, 3),
        ([State.not_ok], False, 3),
        ([State.new, State.ambiguous], True, 3),
        ([State.no_data], False, 4),
        ([], False, 4),
        ([State.ok, State.ambiguous, State.stale], False, 0),
        ([State.ok, State.ambiguous], True, 1),
        ([State.stale], True, 1),
        ([State.ok, State.no_data], True, 0),
    ],
)
def test_exit_codes_go_by_the_worst(found, strict, code):
    assert exit_code([CellResult("cell", "0", state) for state in found], strict) == code


def test_figures_of_other_code_are_stale_and_said_so(gate, folder, tmp_path):
    result = CliRunner().invoke(app, ["regress", "--baseline", "b", "--code-only", "--json"])
    assert result.exit_code == 0
    assert states(result)["single"] == ("stale", [f"figures are of {'f' * 12}"])
    strict = CliRunner().invoke(app, ["regress", "--baseline", "b", "--code-only", "--strict"])
    assert strict.exit_code == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "expected --baseline NAME, --against REV or both"),
        (["--baseline", "none"], "no baseline 'none'"),
        (["--baseline", "../b"], "value '../b'"),
        (["--against", "baseline"], "expected --baseline NAME beside it"),
        (["--against", "no-such-revision", "--suite", SUITE], "value 'no-such-revision'"),
        (["--baseline", "b", "--code-only", "--accept", "x"], "--code-only"),
        (["--baseline", "b", "--of", ".", "--against", "HEAD"], "--of"),
        (["--baseline", "b", "--of", ".", "--accept", " "], "--accept: value is empty"),
    ],
)
def test_mistakes_are_told_in_a_sentence(gate, words, complaint):
    result = CliRunner().invoke(app, ["regress", *words])
    assert result.exit_code == 2, result.output
    assert complaint in result.output
    assert "Traceback" not in result.output


def test_a_damaged_baseline_is_named(gate, folder, tmp_path):
    about = Path("results/baselines/b/baseline.json")
    about.write_text('{"accepted": []}')
    with pytest.raises(UserError, match=r"results/baselines/b/baseline.json: .* damaged"):
        read_baseline("b")
