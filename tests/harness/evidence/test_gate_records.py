"""The gate's trials that are committed say what their README says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

REPORTS = Path(__file__).parents[3] / "reports"
CPU = REPORTS / "cpu" / "gate"
ON_GPUS = sorted(path for path in REPORTS.glob("*/gate/gate.json"))


def rows(name: str) -> list[dict[str, Any]]:
    return json.loads((CPU / f"{name}.json").read_text())["rows"]


def test_equal_sources_raised_no_alarm_in_twenty_runs() -> None:
    found = rows("equal_sources")
    assert len({row["run"] for row in found}) == 20
    assert len(found) == 100
    assert {(row["state"], row["verdict"]) for row in found} == {("ok", "same")}
    assert max(abs(row["change"]) for row in found) < 0.034
    assert max(row["load"] for row in found) > 2, "a busy neighbour beside some"


def test_a_kernel_of_1_5_times_its_time_was_slower_every_time() -> None:
    found = rows("slowed_kernel")
    assert len(found) == 5
    assert {row["state"] for row in found} == {"slower"}


def test_each_fault_was_named() -> None:
    named = " ".join(reason for row in rows("faults") for reason in row["reasons"])
    for count in ("kernel_launches", "payload_bytes of exchange_forward", "collectives", "psnr"):
        assert count in named


def test_other_instructions_of_a_cpu_differ_within_what_the_gate_lets_pass() -> None:
    found = rows("other_instructions")
    assert any(row["exactly"] for row in found)
    assert [row["as elsewhere"] for row in found] == [[]] * 5


@pytest.mark.parametrize("name", sorted(path.stem for path in CPU.glob("*.json")))
def test_a_trial_names_its_commit_and_machine(name: str) -> None:
    record = json.loads((CPU / f"{name}.json").read_text())
    assert re.fullmatch("[0-9a-f]{12}", record["commit"])
    assert record["machine"].startswith("CPU")


def test_deterministic_cells_ended_with_the_same_bits_in_every_run() -> None:
    found = rows("deterministic")
    ran = [row for row in found if row["status"] == "ok"]
    assert {row["strategy"] for row in ran} == {"single", "grendel", "splaxel", "bytesplat", "unified"}
    assert all(row["runs"] >= 2 and len(row["hashes"]) == 1 for row in ran)
    assert [row["reason"] for row in found if row["status"] == "skipped"] == [
        "deterministic: balance: measured cuts regions by seconds, which differ"
    ]


def test_two_thousand_cells_took_under_20_seconds_and_a_gigabyte_each_time() -> None:
    found = {row["command"]: row for row in rows("scale")}
    assert set(found) == {"load", "compare", "report"}
    assert all(row["wall_seconds"] < 20 and row["peak_memory_bytes"] < 1e9 for row in found.values())


@pytest.mark.parametrize("path", ON_GPUS, ids=lambda path: path.parts[-3])
def test_on_a_gpu_the_slower_kernel_and_the_launch_were_caught(path: Path) -> None:
    said = {row["fault"]: row for row in json.loads(path.read_text())["rows"]}
    assert said["equal sources"]["exit_code"] == 0
    assert said["raster_backward 1.3 times as long"]["state"] == "slower"
    assert said["raster_backward 1.3 times as long"]["exit_code"] == 1
    assert "most in raster_backward" in " ".join(said["raster_backward 1.3 times as long"]["reasons"])
    assert any(reason.startswith("kernel_launches") for reason in said["one launch more a step"]["reasons"])
