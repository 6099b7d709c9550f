"""The runner killed or interrupted, and a disk without room: what is finished stays, and the rest is run again."""

from __future__ import annotations

import signal
import subprocess

import pytest

WELL = "  - {name: well, engine: local}\n"


def test_a_killed_runner_leaves_no_process_and_a_second_one_finishes_the_rest(project, wait_until, tmp_path):
    struck = tmp_path / "struck"
    hangs_once = f"{{fault: hang, rank: 1, once: {struck}}}"
    made = project(WELL + f"  - {{name: hangs, ranks: 2, engine: gloo, options: {hangs_once}}}\n")
    with made.start() as runner:
        assert wait_until(struck.exists)
        assert len(made.processes()) >= 4  # The runner, torchrun and two ranks.
        runner.send_signal(signal.SIGKILL)
    assert made.ends()
    assert {name: record.status for name, record in made.records().items()} == {"well": "ok"}
    started = made.records()["well"].started
    code, text = made.run()
    assert code == 0, text
    assert "1 of 2 found finished" in text
    assert {name: record.status for name, record in made.records().items()} == {"well": "ok", "hangs": "ok"}
    assert made.records()["well"].started == started


def test_ctrl_c_ends_with_130_and_the_running_cell_leaves_no_record(project, wait_until, tmp_path):
    struck = tmp_path / "struck"
    made = project(WELL + f"  - {{name: hangs, ranks: 2, engine: virtual, options: {{fault: hang, once: {struck}}}}}\n")
    with made.start() as runner:
        assert wait_until(struck.exists)
        runner.send_signal(signal.SIGINT)
        text, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert "Traceback" not in text
    assert made.ends(1.0)
    assert list(made.records()) == ["well"]
    assert len(list((made.out / "cells").iterdir())) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A disk of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_fails_cells_by_name_and_keeps_what_is_finished(project, small_disk, tmp_path):
    fills_once = f"{{fault: fill, fill: {small_disk}/other, once: {tmp_path}/struck}}"
    made = project(WELL + f"  - {{name: fills, engine: local, options: {fills_once}}}\n")
    made.out = small_disk / "out"
    code, text = made.run()
    assert code == 3
    assert "Traceback" not in text
    found = made.records()
    assert found["well"].status == "ok"
    assert found["fills"].status == "failed"
    assert "no space left" in (found["fills"].reason or "").lower()
    (small_disk / "other").unlink()
    code, text = made.run("--retry-failed")
    assert code == 0, text
    assert {name: record.status for name, record in made.records().items()} == {"well": "ok", "fills": "ok"}
