"""record.json: versions, damage, and writing whole or not at all."""

from __future__ import annotations

import json

import pytest

from harness.errors import UserError
from harness.records.schema import SCHEMA, Measurement
from harness.records.store import free_folder, read_record, remove_unfinished, write_atomically


def changed(folder, **fields):
    file = folder / "record.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


def version(major=0, minor=0):
    parts = [int(part) for part in SCHEMA.split(".")]
    return f"{parts[0] + major}.{parts[1] + minor}.0"


def test_a_record_reads_back_as_it_was_written(tmp_path, save):
    folder = save(tmp_path / "a", [Measurement.of("psnr", 21.5, "mean", images_seen=100)], repeat=1)
    record = read_record(folder)
    assert (record.repeat, record.result.measurements[0].value) == (1, 21.5)
    assert json.loads((folder / "record.json").read_text())["schema"] == SCHEMA


def test_a_newer_minor_version_is_read_without_what_it_added(tmp_path, save):
    folder = save(tmp_path / "a", [Measurement.of("loss", 1.0)])
    data = json.loads((folder / "record.json").read_text())
    data["result"]["measurements"][0]["colour"] = "red"
    changed(folder, schema=version(minor=1), added={"a": 1}, result=data["result"])
    assert read_record(folder).result.measurements[0].value == 1.0


def test_an_unknown_key_of_our_own_version_is_damage(tmp_path, save):
    folder = changed(save(tmp_path / "a"), added=1)
    with pytest.raises(UserError, match=r"a/record\.json: added: .*the record is damaged"):
        read_record(folder)


@pytest.mark.parametrize("major", [-1, 1])
def test_another_major_version_is_refused_by_name(tmp_path, save, major):
    folder = changed(save(tmp_path / "a"), schema=version(major=major))
    with pytest.raises(UserError, match=r"a/record\.json: schema: \d\.\d\.0 where 1\.x was expected"):
        read_record(folder)


@pytest.mark.parametrize("text", ['{"schema": "1.', "[]", "{}", '{"schema": 1}', '{"schema": "1.0.0"}'])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(UserError, match=r"record\.json: "):
        read_record(tmp_path)


def test_a_folder_without_a_record_is_named(tmp_path):
    with pytest.raises(UserError, match=r"record\.json: cannot be read .*expected a record"):
        read_record(tmp_path)


def test_writing_that_fails_leaves_the_old_file_whole(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    write_atomically(file, "old")

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(file, "new")
    assert file.read_text() == "old"


def test_only_folders_without_a_record_are_removed(tmp_path, save):
    save(tmp_path / "whole")
    (tmp_path / "half").mkdir()
    (tmp_path / "note.txt").touch()
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note.txt", "whole"]


def test_a_taken_name_gets_the_next_number(tmp_path):
    for expected in ("a", "a-2", "a-3"):
        folder = free_folder(tmp_path, "a")
        assert folder.name == expected
        folder.mkdir()
