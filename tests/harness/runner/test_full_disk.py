"""A disk without room, played by writes that fail: cells fail by name, and what is finished stays."""

from __future__ import annotations

import errno
from io import StringIO

import pytest
from rich.console import Console

from harness.errors import EXIT_FAILED, EXIT_OK
from harness.records import store
from harness.records.store import records
from harness.runner.disk import NO_SPACE


@pytest.fixture
def full(monkeypatch):
    """Lets writing the n-th record, and as many after it as asked, fail."""

    def make(first, times):
        calls = []
        write = store.write_record

        def failing(folder, record):
            calls.append(folder)
            if first <= len(calls) < first + times:
                (folder / "record.json.partial").write_text('{"schema": "1.')
                raise OSError(errno.ENOSPC, "No space left on device")
            write(folder, record)

        monkeypatch.setattr("harness.runner.run.write_record", failing)

    return make


def test_a_record_without_room_is_written_in_the_place_of_what_the_cell_left(run, planned, full, tmp_path):
    full(first=2, times=1)
    outcome = run(planned("ok"), planned("ok", seed=1), planned("ok", seed=2))
    assert outcome.exit_code == EXIT_FAILED
    assert [(record.status, record.reason) for _, record in outcome.records] == [
        ("ok", None),
        ("failed", NO_SPACE),
        ("ok", None),
    ]
    folder, _ = outcome.records[1]
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "record.json"]


def test_a_run_without_room_for_any_record_ends_and_goes_on_when_there_is_room(run, planned, full, started, tmp_path):
    cells = planned("ok"), planned("ok", seed=1), planned("ok", seed=2)
    text = StringIO()
    full(first=2, times=2)
    outcome = run(*cells, console=Console(file=text, width=200))
    assert outcome.exit_code == EXIT_FAILED
    assert f"{NO_SPACE}; finished cells are kept" in text.getvalue()
    assert len(records(tmp_path / "out")) == 1
    assert run(*cells).exit_code == EXIT_OK
    assert len(started()) == 4
    assert len(list((tmp_path / "out/cells").iterdir())) == 3


def test_a_worker_that_ends_on_a_full_disk_fails_for_that(run, planned, monkeypatch):
    monkeypatch.setattr("harness.runner.failure.is_full", lambda folder: True)
    monkeypatch.setattr("harness.runner.execute.is_full", lambda folder: True)
    record = run(planned("silent")).records[0][1]
    assert (record.status, record.reason) == ("failed", f"{NO_SPACE}; last seen: starting")
