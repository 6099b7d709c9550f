"""The runner, with fake workers: what runs, what is found, what is kept, and how it ends."""

from __future__ import annotations

import json
import sys
import types
from io import StringIO

import pytest
from rich.console import Console

from harness.errors import EXIT_FAILED, EXIT_NOTHING, EXIT_OK, UserError
from harness.records.store import records, write_record
from harness.runner.lock import locked


def statuses(outcome):
    return [(record.cell["name"], record.status) for _, record in outcome.records]


def test_a_finished_cell_leaves_a_record_and_nothing_of_the_run(run, planned, tmp_path):
    outcome = run(planned("ok"))
    folder, record = outcome.records[0]
    assert outcome.exit_code == EXIT_OK
    assert outcome.report == tmp_path / "out/report/report.html"
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "record.json"]
    assert record.status == "ok"
    assert record.result.measurements[0].value == 7.0
    assert record.result.environment["python"]
    assert record.command == f"python -m harness run suites/made_up.yaml --only cell={record.cell_id}"
    assert str(tmp_path) not in (folder / "record.json").read_text()


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        ("crash_at_exit", "ok", None),
        ("oom", "oom", "CUDA out of memory"),
        ("memory_error", "oom", "MemoryError: Unable to allocate 8.00 GiB"),
        ("invalid", "invalid", "workload moved by 3 %"),
        ("silent", "failed", "without a result"),
        ("strange", "failed", "colourfulness"),
        ("killed", "failed", "SIGKILL"),
    ],
)
def test_each_end_of_a_worker_has_its_status_and_reason(run, planned, behaviour, status, reason):
    record = run(planned(behaviour)).records[0][1]
    assert record.status == status
    assert (reason is None and record.reason is None) or reason in record.reason


def test_an_exception_ends_as_failed_with_its_last_line_and_log_tail_without_paths(run, planned, tmp_path):
    outcome = run(planned("raises"), planned("ok", seed=1))
    failed, fine = (record for _, record in outcome.records)
    assert outcome.exit_code == EXIT_FAILED
    assert failed.reason.startswith("ValueError: no such colour")
    assert any("no such colour" in line for line in failed.log_tail)
    assert str(tmp_path) not in "\n".join(failed.log_tail)
    assert (fine.status, fine.log_tail) == ("ok", [])


def test_a_hanging_cell_ends_as_timeout_naming_the_last_step(run, planned, monkeypatch):
    monkeypatch.setattr("harness.runner.launch.TERM_SECONDS", 0.1)
    record = run(planned("hangs", timeout=0.5)).records[0][1]
    assert record.status == "timeout"
    assert record.reason == "no end after 0.5 s; last seen: training, 40/240 images"


def test_finished_cells_are_found_and_not_run_again(run, planned, started):
    cells = [planned("ok"), planned("invalid", seed=1), planned("raises", seed=2)]
    first, second = run(*cells), run(*cells)
    assert started() == ["ok r0", "invalid r0", "raises r0"]
    assert second.records == first.records
    assert second.exit_code == EXIT_FAILED


def test_only_failed_cells_run_again_with_retry_failed_and_their_old_records_go(run, planned, started, tmp_path):
    cells = [planned("ok"), planned("invalid", seed=1), planned("raises", seed=2)]
    run(*cells)
    run(*cells, retry_failed=True)
    assert started()[3:] == ["raises r0"]
    assert len(records(tmp_path / "out")) == 3


def test_fresh_runs_all_again_and_keeps_both(run, planned, started, tmp_path):
    run(planned("ok"))
    outcome = run(planned("ok"), fresh=True)
    assert started() == ["ok r0", "ok r0"]
    assert len(outcome.records) == 1
    assert len(records(tmp_path / "out")) == 2


def test_changed_code_runs_again_and_keeps_both(run, planned, started, tmp_path, monkeypatch):
    run(planned("ok"))
    monkeypatch.setattr("harness.runner.recording.code_id", lambda *names: "0123456789ab")
    outcome = run(planned("ok"))
    assert len(started()) == 2
    assert outcome.records[0][1].code_id == "0123456789ab"
    assert len({record.code_id for _, record in records(tmp_path / "out")}) == 2


def test_another_scene_folder_of_the_same_name_is_not_taken_for_the_first(run, planned, started):
    one, other = planned("ok", scene={"path": "a/garden"}), planned("ok", scene={"path": "b/garden"})
    assert one.cell_id == other.cell_id
    run(one)
    run(other)
    assert len(started()) == 2


def test_repeats_are_processes_of_their_own_and_interleaved(run, planned, started):
    run(planned("ok a", repeats=2), planned("ok b", repeats=2, seed=1))
    assert started() == ["ok a r0", "ok b r0", "ok a r1", "ok b r1"]


def test_cells_of_more_repeats_begin_earlier_and_all_end_in_one_round(run, planned, started):
    run(planned("ok a", repeats=1), planned("ok b", repeats=3, seed=1), planned("ok c", repeats=2, seed=2))
    assert started() == ["ok b r0", "ok b r1", "ok c r0", "ok a r0", "ok b r2", "ok c r1"]


def test_what_cannot_run_here_is_a_row_with_its_reason_and_nothing_measured(run, planned, started):
    outcome = run(planned("ok", skip="needs 4 GPUs, 0 present", repeats=3))
    assert [(r.status, r.reason) for _, r in outcome.records] == [("skipped", "needs 4 GPUs, 0 present")]
    assert outcome.exit_code == EXIT_NOTHING
    assert started() == []


def test_a_skip_is_not_finished_and_leaves_when_the_cell_can_run(run, planned, tmp_path, monkeypatch):
    run(planned("ok", skip="needs nvcc"))
    monkeypatch.setattr("harness.runner.recording.code_id", lambda *names: "0123456789ab")
    outcome = run(planned("ok"))
    assert statuses(outcome) == [("ok", "ok")]
    assert len(records(tmp_path / "out")) == 1


def test_the_budget_starts_no_cell_that_would_overrun(run, planned, started):
    outcome = run(planned("ok"), planned("ok", seed=1), budget_seconds=59.0)
    assert [(r.status, r.reason) for _, r in outcome.records] == [("skipped", "not run: over the budget")] * 2
    assert outcome.exit_code == EXIT_NOTHING
    assert started() == []
    outcome = run(planned("ok"), planned("ok", seed=1))
    assert outcome.exit_code == EXIT_OK


def test_the_budget_goes_by_finished_cells_of_the_scenario_and_first_by_those_of_the_strategy(run, planned, tmp_path):
    long = planned("ok", seed=1, strategy="gsplat")
    outcome = run(planned("ok"), long)
    folder, record = outcome.records[1]
    write_record(folder, record.model_copy(update={"seconds": 1000.0}))
    more = (planned("ok", seed=2, strategy=strategy) for strategy in ("single", "gsplat", "unified"))
    outcome = run(*more, planned("ok", seed=3, scenario="train"), budget_seconds=50.0)
    assert [record.status for _, record in outcome.records] == ["ok", "skipped", "skipped", "skipped"]


def test_the_budget_expects_of_a_repeat_what_its_cell_took(run, planned):
    folder, record = run(planned("ok", seed=1)).records[0]
    write_record(folder, record.model_copy(update={"seconds": 1000.0}))
    run(planned("ok"))
    outcome = run(planned("ok", repeats=2), planned("ok", seed=2), budget_seconds=50.0)
    assert [record.status for _, record in outcome.records] == ["ok", "ok", "skipped"]


def test_folders_without_a_record_are_ignored_and_removed(run, planned, tmp_path):
    half = tmp_path / "out/cells/abc-def-ghi-r0"
    half.mkdir(parents=True)
    (half / "record.json.partial").write_text('{"schema": "1.')
    outcome = run(planned("ok"))
    assert len(outcome.records) == 1
    assert not half.exists()


def test_a_crash_of_the_runner_takes_no_finished_result_with_it(run, planned, tmp_path, monkeypatch):
    def crash(self, cell, key, attempt):
        if cell.name == "invalid":
            raise RuntimeError("the runner itself fails")
        return build(self, cell, key, attempt)

    from harness.runner.recording import Recorder

    build = Recorder.record
    monkeypatch.setattr(Recorder, "record", crash)
    with pytest.raises(RuntimeError):
        run(planned("ok"), planned("invalid", seed=1))
    assert [record.cell["name"] for _, record in records(tmp_path / "out")] == ["ok"]


def test_a_second_runner_in_the_same_folder_is_refused_by_name(run, planned, tmp_path):
    with locked(tmp_path / "out"), pytest.raises(UserError, match=r"out: another run \(process \d+\) writes here"):
        run(planned("ok"))


def test_the_lock_of_a_dead_process_is_taken_over(run, planned, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.lock").write_text("999999")
    assert run(planned("ok")).exit_code == EXIT_OK


def test_a_preparation_is_trained_once_and_passed_to_the_cells_that_start_from_it(run, planned, started):
    trained = planned("prepare", preparation=True, scenario="train")
    cells = [trained, planned("ok", **{"from": trained.cell_id}), planned("ok", seed=1, **{"from": trained.cell_id})]
    outcome = run(*cells)
    assert started() == ["prepare r0", "ok r0", "ok r0"]
    assert statuses(outcome) == [("ok", "ok")] * 2
    assert all(record.result.environment["prepared"] for _, record in outcome.records)
    assert all(not record.result.environment["preparation"] for _, record in outcome.records)
    run(*cells, fresh=True)
    assert started()[3:] == ["ok r0", "ok r0"]


def test_a_preparation_is_not_trained_when_all_its_cells_are_finished(run, planned, started, tmp_path, monkeypatch):
    trained = planned("prepare", preparation=True, scenario="train")
    cells = [trained, planned("ok", **{"from": trained.cell_id})]
    run(*cells)
    monkeypatch.setenv("SPLAT_HARNESS_CACHE", str(tmp_path / "empty"))
    run(*cells)
    assert started() == ["prepare r0", "ok r0"]


def test_a_failed_preparation_is_a_record_and_the_cells_that_need_it_are_skipped_for_it(run, planned, started):
    trained = planned("raises", preparation=True, scenario="train")
    cells = [trained, planned("ok", **{"from": trained.cell_id}), planned("ok", seed=1)]
    outcome = run(*cells)
    assert statuses(outcome) == [("raises", "failed"), ("ok", "skipped"), ("ok", "ok")]
    assert "no such colour" in outcome.records[1][1].reason
    assert outcome.exit_code == EXIT_FAILED
    run(*cells)
    assert started() == ["raises r0", "ok r0"]
    run(*cells, retry_failed=True)
    assert started()[2:] == ["raises r0"]


def test_records_outlive_a_report_that_cannot_be_built(run, planned, monkeypatch):
    broken = types.ModuleType("harness.report.build")
    broken.build_report = lambda folders, out: json.loads("{")
    text = StringIO()
    run(planned("ok"))
    monkeypatch.setitem(sys.modules, "harness.report.build", broken)
    outcome = run(planned("ok"), console=Console(file=text, width=200))
    assert outcome.report is None
    assert statuses(outcome) == [("ok", "ok")]
    assert "the report could not be built: JSONDecodeError" in text.getvalue()


def test_kernels_are_compiled_once_before_the_first_cell_and_only_when_a_cell_to_run_needs_them(
    run, planned, started, tmp_path, monkeypatch
):
    monkeypatch.setattr("harness.runner.kernels.QUIET_SECONDS", 0.0)
    note = "import os; open(os.environ['FAKE_LOG'], 'a').write('compile 1\\n')"
    compiler = [sys.executable, "-S", "-E", "-c", note]
    text = StringIO()
    cells = [planned("ok", kernels="portable"), planned("ok", seed=1, kernels="portable")]
    run(*cells, compile_command=compiler, console=Console(file=text, width=200))
    assert started() == ["compile", "ok r0", "ok r0"]
    assert "compiling kernels" in text.getvalue()
    run(*cells, compile_command=compiler)
    run(planned("ok", seed=3), compile_command=compiler)
    assert started()[3:] == ["ok r0"]


def test_a_compiler_that_fails_is_shown_and_cells_go_on(run, planned):
    text = StringIO()
    outcome = run(
        planned("ok", kernels="portable"),
        compile_command=[sys.executable, "-S", "-E", "-c", "raise OSError('no space left')"],
        console=Console(file=text, width=200),
    )
    assert "kernels were not compiled: OSError: no space left" in text.getvalue()
    assert outcome.exit_code == EXIT_OK


def test_a_line_for_each_cell_shows_its_headline_where_there_is_no_terminal(run, planned):
    text = StringIO()
    run(planned("ok"), planned("raises", seed=1), console=Console(file=text, width=200))
    assert "[1/2] ok, single, 1 rank  ok  7 views/s" in text.getvalue()
    assert "[2/2] raises, single, 1 rank, seed 1  failed  ValueError: no such colour" in text.getvalue()


def test_bars_on_a_terminal_show_steps_speed_and_loss(run, planned, monkeypatch):
    monkeypatch.setattr("harness.runner.launch.TERM_SECONDS", 0.1)
    text = StringIO()
    console = Console(file=text, width=160, force_terminal=True, color_system=None)
    run(planned("hangs", timeout=0.8), console=console)
    assert "40/240 71.2 views/s, loss 0.1200" in text.getvalue()
