"""The real bindings on a stand-in library: what is read, what is left out, and what doctor makes of it."""

from __future__ import annotations

import json

import pytest

ALL = 0xFFFFFFFF
UINT, ULL, DOUBLE = 1, 3, 0
CLOCK, REASONS, PID, FREE, PEER, PCIE = range(1000, 1006)

READ = """
import json, sys
from harness.measure.nvml import Nvml
with Nvml(sys.argv[1:]) as nvml:
    found = [[dict(r.counters), r.sm_hertz, r.reasons, r.processes] for r in nvml.read()]
print(json.dumps(found))
"""


def test_counters_are_read_by_uuid_in_their_units_and_types(with_stand_in):
    answers = [
        (1, 138, ALL, ULL, 0, 16 << 20),
        (1, 139, ALL, ULL, 0, 5),
        (1, 83, 0, ULL, 0, 123456),
        (1, 4, 0, UINT, 0, (7 << 32) | 2),  # Only the low half is the value of an unsigned int.
        (1, CLOCK, 0, UINT, 0, 1980),
        (1, REASONS, 0, ULL, 0, 4),
        (0, 138, ALL, ULL, 0, 99),
    ]
    done = with_stand_in("-c", READ, "GPU-1", answers=answers)
    assert done.returncode == 0, done.stderr
    ((counters, hertz, reasons, processes),) = json.loads(done.stdout)
    assert counters == {"nvlink_sent": 16 << 30, "nvlink_received": 5 << 10, "energy": 123456, "ecc_uncorrected": 2}
    assert (hertz, reasons, processes) == (1.98e9, 4, [])


def test_a_field_with_an_error_code_or_another_scope_is_absent_and_not_zero(with_stand_in):
    answers = [(0, 138, 0, ULL, 0, 1), (0, 139, ALL, ULL, 3, 1), (0, 197, 0, ULL, 0, 8), (0, 83, 0, 77, 0, 9)]
    done = with_stand_in("-c", READ, "GPU-0", answers=answers)
    ((counters, hertz, _, _),) = json.loads(done.stdout)
    assert counters == {"pcie_sent": 8}
    assert hertz is None


def test_processes_on_the_gpu_are_listed(with_stand_in):
    done = with_stand_in("-c", READ, "GPU-0", "GPU-1", answers=[(0, PID, 0, UINT, 0, 4711)])
    assert [entry[3] for entry in json.loads(done.stdout)] == [[4711], []]


def test_a_gpu_that_nvml_does_not_know_is_an_error_of_its_own(with_stand_in):
    program = (
        "from harness.measure.nvml import *\ntry: Nvml(['GPU-7'])\nexcept NoNvmlError as error: print('none:', error)"
    )
    done = with_stand_in("-c", program, answers=[])
    assert done.stdout.startswith("none: ")


def test_gpm_is_absent_where_the_library_lacks_it(with_stand_in):
    program = (
        "from harness.measure.nvml import *\nfrom harness.measure.nvml_gpm import *\n"
        "with Nvml(['GPU-0']) as nvml:\n s = GpmSampler(nvml.handles); s.begin(); print(s.end())"
    )
    assert with_stand_in("-c", program, answers=[]).stdout.strip() == "[{}]"


SERVER = [
    (gpu, field, scope, ULL, 0, value)
    for gpu in (0, 1)
    for field, scope, value in ((138, ALL, 1), (139, ALL, 1), (83, 0, 1), (FREE, 0, 1 << 36), (PEER, 0, 0))
]


def test_doctor_shows_gpus_peers_counters_and_what_would_disturb(with_stand_in):
    answers = [*SERVER, (1, PID, 0, UINT, 0, 4711), (1, REASONS, 0, ULL, 0, 0x20), (1, PCIE, 0, UINT, 0, 10**6)]
    done = with_stand_in("-m", "harness", "doctor", answers=answers, CUDA_VISIBLE_DEVICES="1,0")
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "Stand-in" in done.stdout
    # The GPU that the variable names first is the first.
    assert "gpu 0: 1 other processes" in done.stdout
    assert "gpu 0: its clock is held back (temperature)" in done.stdout
    assert "gpu 0: 2.0 GB/s over PCIe now" in done.stdout
    assert "gpu 1" not in done.stdout


def test_doctor_for_programs_names_neither_uuid_nor_pid_nor_path(with_stand_in):
    done = with_stand_in("-m", "harness", "doctor", "--json", answers=[*SERVER, (0, PID, 0, UINT, 0, 4711)])
    found = json.loads(done.stdout)
    first, second = found["gpus"]
    assert first["peers"] == ["self", "pcie"]
    assert second["peers"] == ["pcie", "self"]
    assert set(first["counters"]) == {"nvlink_sent", "nvlink_received", "energy"}
    assert (first["processes"], second["processes"]) == (1, 0)
    assert first["free_bytes"] == 1 << 36
    assert not any(word in done.stdout for word in ("GPU-", "4711", "/bin"))


@pytest.mark.parametrize(
    ("missing", "visible", "peers"), [(None, "0,1", True), (None, "1", False), ((1, PEER), "0,1", False)]
)
def test_gpus_are_peers_where_each_reaches_every_other(with_stand_in, missing, visible, peers):
    answers = [line for line in SERVER if line[:2] != missing]
    program = "from harness.suite.machine import this_machine\nprint(this_machine().peers)"
    done = with_stand_in("-c", program, answers=answers, CUDA_VISIBLE_DEVICES=visible)
    assert done.stdout.strip() == str(peers), done.stderr


def test_doctor_names_the_cells_that_need_more_than_is_here_and_ends_with_2(with_stand_in, tmp_path):
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "suite: 1\ndefaults: {device: cuda}\naxes: {strategy: [single, grendel], ranks: [1, 2, 4]}\n"
        "cases: [{name: large, strategy: grendel, ranks: 8}]\n"
    )
    done = with_stand_in("-m", "harness", "doctor", "--suite", str(suite), answers=SERVER, CUDA_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    lines = done.stdout.splitlines()
    assert any("grendel, 4 ranks: needs 4 GPUs, 2 present" in line for line in lines)
    assert any("large: needs 8 GPUs, 2 present" in line for line in lines)
    # No machine runs `single` on two places, so that is no need of this one.
    assert "single computes on one place" not in done.stdout
    suite.write_text("suite: 1\ndefaults: {device: cpu}\n")
    done = with_stand_in("-m", "harness", "doctor", "--suite", str(suite), answers=SERVER)
    assert done.returncode == 0, done.stdout
