"""Reasons found in logs, and logs without paths and names of the machine they were written on."""

from __future__ import annotations

import os
import signal
import socket
import sysconfig

import pytest

from harness.runner.failure import last_exception, log_lines, outcome, portable_text
from harness.runner.launch import Ended
from harness.runner.progress import ProgressFile

TORCHRUN_TAIL = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Failures:
[1]:
  exitcode  : -15 (pid: 11)  (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 11
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 12)
  traceback : {traceback}
"""


def judged(folder, log, code=1, kernel_killed=False):
    (folder / "log.txt").write_text(log)
    return outcome(folder, Ended(code, 1.0), ProgressFile(folder), 10.0, kernel_killed)[:2]


def test_the_reason_is_the_ranks_exception_not_torchruns(tmp_path):
    log = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: bad shape\n"
    log += TORCHRUN_TAIL.format(code=1, traceback="To enable traceback see ...")
    assert judged(tmp_path, log) == ("failed", "ValueError: bad shape")


def test_the_signal_that_ended_a_rank_is_the_root_cause_not_torchruns_own(tmp_path):
    log = TORCHRUN_TAIL.format(code=-11, traceback="Signal 11 (SIGSEGV) received by PID 12")
    status, reason = judged(tmp_path, log)
    assert status == "failed"
    assert reason.startswith("rank 1 killed by SIGSEGV")


@pytest.mark.parametrize(("kernel", "status", "text"), [(True, "oom", "by the kernel"), (None, "failed", "perhaps")])
def test_sigkill_is_out_of_memory_only_when_the_kernel_says_so(tmp_path, kernel, status, text):
    ended = judged(tmp_path, "", code=-signal.SIGKILL, kernel_killed=kernel)
    assert ended[0] == status
    assert text in ended[1]
    assert judged(tmp_path, "", code=-signal.SIGKILL, kernel_killed=False) == (
        "failed",
        "killed by SIGKILL; last seen: starting",
    )


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1. TiB for an array",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_allocation_failures_are_out_of_memory(tmp_path, line):
    assert judged(tmp_path, f"Traceback (most recent call last):\n{line}\n")[0] == "oom"


def test_a_damaged_result_is_a_failure_that_says_what_is_wrong(tmp_path):
    (tmp_path / "result.json").write_text('{"status": "fine"}')
    (tmp_path / "done").touch()
    status, reason = judged(tmp_path, "", code=0)
    assert status == "failed"
    assert reason.startswith("result.json is damaged: status:")


def test_a_result_keeps_values_that_are_no_numbers(tmp_path):
    from harness.records.schema import Measurement, WorkerResult

    result = WorkerResult(status="ok", measurements=[Measurement.of("loss", float("nan"), "last")])
    (tmp_path / "result.json").write_text(result.model_dump_json())
    (tmp_path / "done").touch()
    read = outcome(tmp_path, Ended(0, 1.0), ProgressFile(tmp_path), 10.0, False)[2]
    assert read.measurements[0].value != read.measurements[0].value


def test_lines_of_prose_are_no_exceptions():
    assert (
        last_exception(["An Error occurred", "KeyError: 'a'", "Warning: slow", "see Error: above"]) == "KeyError: 'a'"
    )
    assert last_exception(["all is well"]) is None


def test_paths_become_relative_and_the_host_has_no_name():
    here = os.getcwd()
    stdlib = sysconfig.get_paths()["stdlib"]
    assert portable_text(f'File "{here}/strategies/base.py", line 3') == 'File "strategies/base.py", line 3'
    assert portable_text(f'File "{stdlib}/json/decoder.py"') == 'File "json/decoder.py"'
    assert (
        portable_text("cannot open '/home/someone/scenes/a.ply': no such file")
        == "cannot open '.../a.ply': no such file"
    )
    assert (
        portable_text("see https://example.org/a/b and 3/4 of ./x/y") == "see https://example.org/a/b and 3/4 of ./x/y"
    )
    host = socket.gethostname()
    if len(host) > 2:
        assert portable_text(f"connect to {host}:29500") == "connect to HOST:29500"


def test_a_log_that_is_no_text_is_still_read(tmp_path):
    (tmp_path / "log.txt").write_bytes(b"a\xff\xfe\r\nb\n")
    assert log_lines(tmp_path, 1) == ["b"]
    assert log_lines(tmp_path / "absent") == []


@pytest.mark.parametrize("code", [1, -signal.SIGABRT])
def test_a_silent_peer_is_a_timeout_also_where_the_librarys_watchdog_ends_the_rank(tmp_path, code):
    log = "PeerSilentError: exchange_forward: rank 0 waited in vain for the other ranks, 60 s\n"
    log += "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    log += TORCHRUN_TAIL.replace(": 1 (local", ": 0 (local").format(code=code, traceback="Signal 6 (SIGABRT) received")
    status, reason = judged(tmp_path, log)
    assert status == "timeout"
    assert reason.startswith("exchange_forward: rank 0 waited in vain for the other ranks, 60 s; last seen: ")
