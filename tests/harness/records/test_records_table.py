"""Records as tables: fixed columns and types, whatever was measured."""

from __future__ import annotations

import json

import pandas
import pytest

from harness.errors import UserError
from harness.records import load, samples
from harness.records.load import SAMPLE_COLUMNS, SAMPLE_KEYS
from harness.records.schema import COLUMNS, Measurement, WorkerResult

INTEGERS = ["gaussians", "width", "height", "ranks", "gpus", "batch", "seed", "repeat", "images_seen", "place", "peer"]


def test_an_empty_folder_gives_an_empty_frame_with_all_columns(tmp_path):
    frame = load(tmp_path)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 0
    assert list(samples(tmp_path).columns) == [*SAMPLE_KEYS, *SAMPLE_COLUMNS]


def test_every_measurement_is_a_row_with_what_ran(tmp_path, save):
    save(
        tmp_path / "a",
        [
            Measurement.of("views_per_second", 12.5),
            Measurement.of("payload_bytes", 4096, "sum", stage="exchange_forward", place=0, peer=1),
        ],
        cell={"strategy": "single", "batch": 2},
    )
    frame = load(tmp_path)
    assert frame["value"].tolist() == [12.5, 4096.0]
    assert frame["unit"].tolist() == ["1/s", "B"]
    assert frame["place"].isna().tolist() == [True, False]
    assert frame["peer"].tolist()[1] == 1
    assert set(frame["batch"]) == {2}
    assert set(frame["scene"]) == {"city"}
    assert set(frame["width"]) == {64}
    assert set(frame["options"]) == {"{}"}


def test_types_are_the_same_for_measured_skipped_and_no_records(tmp_path, save):
    (tmp_path / "none").mkdir()
    save(tmp_path / "skipped/a", status="skipped", reason="needs 4 GPUs, 0 present", result=None)
    save(tmp_path / "ok/a", [Measurement.of("loss", 0.1, "last", images_seen=8)])
    types = {name: load(tmp_path / name).dtypes.astype(str).to_dict() for name in ("none", "skipped", "ok")}
    assert types["none"] == types["skipped"] == types["ok"]
    assert all(types["ok"][column].lower() == "int64" for column in INTEGERS)
    assert types["ok"]["value"] == "float64"


def test_a_record_without_measurements_is_one_row_with_its_reason(tmp_path, save):
    save(tmp_path / "a", status="timeout", reason="no end after 5 s", result=WorkerResult(status="timeout"))
    save(tmp_path / "b", status="skipped", reason="needs nvcc", result=None, cell_id="b" * 12)
    frame = load(tmp_path)
    assert frame["status"].tolist() == ["timeout", "skipped"]
    assert frame["reason"].tolist() == ["no end after 5 s", "needs nvcc"]
    assert frame["metric"].isna().all()
    assert frame["value"].isna().all()
    assert set(frame["scene"]) == {"small_street"}


def test_options_are_canonical_so_that_equal_ones_group(tmp_path, save):
    for name, options in (("a", {"b": 1, "a": [1, 2]}), ("b", {"a": [1, 2], "b": 1})):
        save(tmp_path / name, [Measurement.of("loss", 1.0)], cell={"options": options}, cell_id=name * 12)
    assert load(tmp_path)["options"].unique().tolist() == ['{"a":[1,2],"b":1}']


def test_records_are_found_below_and_each_once(tmp_path, save):
    save(tmp_path / "machine/suite/cells/a", [Measurement.of("loss", 1.0)])
    assert len(load(tmp_path, tmp_path / "machine", tmp_path / "machine/suite/cells/a")) == 1


def test_samples_carry_what_identifies_their_record(tmp_path, save):
    folder = save(tmp_path / "a", [Measurement.of("loss", 1.0)], repeat=2)
    save(tmp_path / "without_samples", cell_id="b" * 12)
    written = pandas.DataFrame(
        {"series": ["passes"] * 2, "pass": [0, 1], "metric": ["step_seconds"] * 2, "value": [0.5, 0.6]}
    )
    written.to_parquet(folder / "samples.parquet")
    frame = samples(tmp_path)
    assert list(frame.columns) == [*SAMPLE_KEYS, *SAMPLE_COLUMNS]
    assert frame["value"].tolist() == [0.5, 0.6]
    assert set(frame["repeat"]) == {2}
    assert frame["place"].isna().all()


def test_damaged_samples_are_named(tmp_path, save):
    (save(tmp_path / "a") / "samples.parquet").write_text("no parquet")
    with pytest.raises(UserError, match=r"a/samples\.parquet: cannot be read as Parquet"):
        samples(tmp_path)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UserError, match="absent: no such folder"):
        load(tmp_path / "absent")


def test_values_that_are_no_numbers_survive(tmp_path, save):
    folder = save(tmp_path / "a", [Measurement.of("loss", float("nan"), "last"), Measurement.of("psnr", float("inf"))])
    assert "NaN" in (folder / "record.json").read_text()
    assert json.loads((folder / "record.json").read_text())["result"]["measurements"][1]["value"] == float("inf")
    assert load(tmp_path)["value"].isna().tolist() == [True, False]
