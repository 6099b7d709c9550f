"""Progress of a running cell, read while it is written."""

from __future__ import annotations

from harness.runner.progress import ProgressFile, Step


def test_only_complete_lines_are_read_and_each_once(tmp_path):
    progress, file = ProgressFile(tmp_path), tmp_path / "progress.jsonl"
    assert not progress.update()
    file.write_text('{"event": "phase", "text": "making images"}\n{"event": "st')
    assert progress.update()
    assert progress.last_seen() == "making images"
    assert not progress.update()
    with file.open("a") as appended:
        appended.write('ep", "done": 4, "total": 8, "unit": "images", "views_per_second": 2.5, "loss": null}\n')
    assert progress.update()
    assert progress.step == Step(4, 8, "images", 2.5, None)
    assert progress.last_seen() == "making images, 4/8 images"


def test_a_new_phase_forgets_the_steps_of_the_last(tmp_path):
    progress = ProgressFile(tmp_path)
    (tmp_path / "progress.jsonl").write_text(
        '{"event": "step", "done": 1, "total": 2, "unit": "images"}\n{"event": "phase", "text": "rendering"}\n'
    )
    progress.update()
    assert progress.step is None
    assert progress.last_seen() == "rendering"


def test_lines_that_are_no_events_are_passed_over(tmp_path):
    progress = ProgressFile(tmp_path)
    (tmp_path / "progress.jsonl").write_text('nonsense\n[1]\n{"event": "unknown"}\n{"event": "phase", "text": "x"}\n')
    progress.update()
    assert progress.last_seen() == "x"
