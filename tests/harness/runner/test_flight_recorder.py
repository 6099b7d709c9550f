"""What is kept of a rank whose exchange did not end."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from harness.runner.failure import portable_text
from harness.runner.flight_recorder import KEPT, RECORDING, keep_recordings, recorder_environment


def dump(folder: Path, rank: int, entries: int) -> None:
    """As PyTorch writes it: plain values only."""
    frames = [
        {"name": "batch_isend_irecv", "filename": "/opt/lib/torch/distributed/distributed_c10d.py", "line": 9},
        {"name": "_post", "filename": f"{os.getcwd()}/strategies/distribution/nccl.py", "line": 105},
    ]
    events = [
        {"record_id": i, "state": "started", "profiling_name": "nccl:coalesced", "frames": frames, "time_created_ns": 1}
        for i in range(entries)
    ]
    (folder / f"{RECORDING}{rank}").write_bytes(pickle.dumps({"version": "2.10", "entries": events, "pg_config": {}}))


def test_the_last_collectives_stay_as_text_without_paths_of_the_machine(tmp_path):
    dump(tmp_path, 1, KEPT + 5)
    keep_recordings(tmp_path, portable_text)
    assert [path.name for path in tmp_path.iterdir()] == [f"{RECORDING}1.json"]
    text = (tmp_path / f"{RECORDING}1.json").read_text()
    events = json.loads(text)
    assert len(events) == KEPT
    assert events[-1]["state"] == "started"
    assert events[-1]["called"] == ["strategies/distribution/nccl.py:105 _post"]
    assert os.getcwd() not in text


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-dump",)


@pytest.mark.parametrize("content", [b"", b"\x80\x04K", pickle.dumps(Harmful()), pickle.dumps({"entries": [3]})])
def test_a_damaged_or_foreign_dump_is_dropped_and_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{RECORDING}0").write_bytes(content)
    keep_recordings(tmp_path, portable_text)
    assert list(tmp_path.iterdir()) == []


def test_the_library_is_told_where_by_both_names_of_its_variables(tmp_path):
    environment = recorder_environment(tmp_path)
    prefix = str(tmp_path / RECORDING)
    assert environment["TORCH_FR_DUMP_TEMP_FILE"] == environment["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == prefix
    assert int(environment["TORCH_FR_BUFFER_SIZE"]) > 0
