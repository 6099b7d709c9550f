"""One record for people."""

from __future__ import annotations

import json
import shlex
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UserError
from harness.records.schema import Measurement, WorkerResult
from harness.records.show import continued, describe, find


def shown(folder) -> str:
    console = Console(file=StringIO(), width=120)
    console.print(describe(folder))
    return console.file.getvalue()


def test_a_cell_is_found_by_the_beginning_of_its_id_or_by_its_name_oldest_first(tmp_path, save):
    late = save(tmp_path / "late", cell_id="abc123abc123", started="2026-01-02T00:00:00+00:00", cell={"name": "fused"})
    early = save(
        tmp_path / "early", cell_id="abc123abc123", started="2026-01-01T00:00:00+00:00", cell={"name": "fused"}
    )
    save(tmp_path / "other", cell_id="abd000000000")
    assert find(tmp_path, "abc") == [early, late]
    assert find(tmp_path, "fused") == [early, late]


def test_an_unknown_and_an_ambiguous_cell_are_named(tmp_path, save):
    save(tmp_path / "1", cell_id="abc123abc123")
    save(tmp_path / "2", cell_id="abd000000000")
    with pytest.raises(UserError, match="no cell 'x'"):
        find(tmp_path, "x")
    with pytest.raises(UserError, match="'ab' is the beginning of 2 cells"):
        find(tmp_path, "ab")


def test_configuration_command_environment_values_and_status_are_shown(tmp_path, save):
    result = WorkerResult(
        status="ok",
        measurements=[Measurement.of("views_per_second", 71.25)],
        environment={"torch": "2.9.1", "nccl": None},
    )
    text = shown(save(tmp_path / "a", result=result))
    for expected in ("scene.city", "small_street", "suites/made_up.yaml", "2.9.1", "views_per_second", "71.25", "ok"):
        assert expected in text
    assert "nccl" not in text


def test_a_long_command_is_broken_so_that_a_shell_reads_it_as_one(tmp_path, save):
    command = "python -m harness run suites/made_up.yaml --set 'scene=my photographs' --set training.footprint=square"
    text = shown(save(tmp_path / "a", command=command))
    lines = continued(command).splitlines()
    assert len(lines) == 2
    assert all(line in text for line in lines)
    assert shlex.split(continued(command).replace("\\\n", " ")) == shlex.split(command)


def test_brackets_in_reasons_and_logs_are_shown_as_they_are(tmp_path, save):
    folder = save(
        tmp_path / "a", status="failed", reason="index [3] of [bold]x", log_tail=["[rank1]: Error [/red]"], result=None
    )
    text = shown(folder)
    assert "failed: index [3] of [bold]x" in text
    assert "[rank1]: Error [/red]" in text


def test_the_log_beside_a_record_without_a_tail_is_shown(tmp_path, save):
    folder = save(tmp_path / "a")
    (folder / "log.txt").write_text("\n".join(f"line {i}" for i in range(100)))
    text = shown(folder)
    assert "line 99" in text
    assert "line 59" not in text


def test_programs_are_given_the_records(tmp_path, save):
    save(tmp_path / "1", cell_id="abc123abc123", repeat=0)
    save(tmp_path / "2", cell_id="abc123abc123", repeat=1)
    done = CliRunner().invoke(app, ["show", "abc", "--out", str(tmp_path), "--json"])
    assert [record["repeat"] for record in json.loads(done.stdout)] == [0, 1]
