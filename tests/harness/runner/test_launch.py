"""Processes of a cell: nothing is left running, however the cell or the runner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import EXIT_FAILED
from harness.runner import launch
from harness.runner.execute import processes
from harness.runner.kernels import COMPILE
from harness.runner.launch import Launched, marked, worker_command, worker_environment
from harness.suite.cell import Cell

RUNNER = """
import sys
from pathlib import Path
from harness.errors import EXIT_OK
from harness.runner.run import run_suite
from harness.suite.cell import Cell
from harness.suite.machine import Machine
from harness.suite.plan import Plan, Planned
script, out = sys.argv[1:]
def planned(name):
    cell = Cell(suite="s", name=name, device="cpu", kernels="reference", engine="local", repeats=1)
    return Planned(cell, name * 2, None, None)
plan = Plan("s", "", Path("s.yaml"), "cpu", Machine(0, 1, False, False), (planned("ok"), planned("hangs")))
command = lambda folder, processes: [sys.executable, "-S", "-E", script, str(folder)]
sys.exit(run_suite(plan, Path(out), command=command).exit_code)
"""


def script(text: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", text]


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look at processes")


@pytest.fixture
def running(tmp_path, fake_command, started):
    """A runner in a process of its own whose second cell hangs, with that cell's process id."""
    fake = fake_command(tmp_path, 1)[3]
    log = Path(os.environ["FAKE_LOG"])
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, fake, str(tmp_path / "out")], stdout=subprocess.DEVNULL)
    try:
        assert eventually(lambda: "hangs r0" in started())
        assert eventually(lambda: bool(list((tmp_path / "out").rglob("progress.jsonl"))))
        yield runner, int(log.read_text().split()[-1])
    finally:
        runner.kill()
        runner.wait()


@needs_proc
def test_a_worker_ends_when_its_runner_is_killed(running, tmp_path):
    runner, worker = running
    assert alive(worker)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    assert eventually(lambda: not alive(worker))
    assert len(list((tmp_path / "out").rglob("record.json"))) == 1


def test_the_compiler_of_kernels_ends_with_its_runner_too():
    started = COMPILE[2].partition("\n")[0] + "\nimport time; time.sleep(600)"
    process = subprocess.Popen([*COMPILE[:2], started], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(20) == EXIT_FAILED


@needs_proc
def test_ctrl_c_ends_with_130_and_the_running_cell_leaves_nothing(running, tmp_path):
    runner, worker = running
    runner.send_signal(signal.SIGINT)
    assert runner.wait(20) == 130
    assert not alive(worker)
    assert [path.name[:4] for path in (tmp_path / "out/cells").iterdir()] == ["okok"]


@needs_proc
@pytest.mark.parametrize("wait", [".wait()", ""], ids=["child", "orphan"])
def test_processes_that_left_the_group_are_ended_too(tmp_path, monkeypatch, wait):
    monkeypatch.setattr(launch, "TERM_SECONDS", 0.1)
    child = script("import time; time.sleep(600)")
    parent = f"import subprocess; subprocess.Popen({child!r}, start_new_session=True){wait}"
    launched = Launched(script(parent), tmp_path / "log.txt", os.environ)
    pids = [launched._process.pid]
    assert eventually(lambda: set(marked(launched._mark)) - set(pids))
    pids += set(marked(launched._mark)) - set(pids)
    launched.end()
    assert len(pids) == 2
    assert eventually(lambda: not any(map(alive, pids)))


def test_a_process_that_hangs_after_its_marker_is_ended_without_being_a_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "EXIT_SECONDS", 0.0)
    monkeypatch.setattr(launch, "TERM_SECONDS", 0.1)
    marker = tmp_path / "done"
    with Launched(
        script(f"import time; open({str(marker)!r}, 'w'); time.sleep(600)"), tmp_path / "log.txt", os.environ
    ) as launched:
        ended = launched.wait(60, marker, lambda: None)
    assert (ended.code, ended.timed_out) == (None, False)


def test_output_and_errors_go_to_the_log(tmp_path):
    text = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(5)"
    with Launched(script(text), tmp_path / "log.txt", os.environ) as launched:
        ended = launched.wait(20, tmp_path / "done", lambda: None)
    assert ended.code == 5
    assert sorted((tmp_path / "log.txt").read_text().split()) == ["err", "out"]


def test_several_processes_start_by_torchrun_without_restarts_and_one_directly(tmp_path):
    assert worker_command(tmp_path, 1) == [sys.executable, "-m", "harness.runner.worker", str(tmp_path)]
    several = worker_command(tmp_path, 4)
    assert several[1:3] == ["-m", "torch.distributed.run"]
    assert several[several.index("--nproc-per-node") + 1] == "4"
    assert several[several.index("--max-restarts") + 1] == "0"
    assert several[-3:] == ["-m", "harness.runner.worker", str(tmp_path)]


def test_the_worker_gets_the_cells_threads_in_every_library(monkeypatch):
    environment = worker_environment(3, {"OMP_NUM_THREADS": "8", "HOME": "/h"})
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    assert {environment[name] for name in names} == {"3"}
    assert (environment["HOME"], environment["PYTHONUNBUFFERED"]) == ("/h", "1")


@pytest.mark.parametrize(("link", "direct"), [("native", None), ("paced:12", None), ("host", "1")])
def test_only_the_host_link_keeps_gpus_from_reaching_each_other(link, direct):
    environment = worker_environment(1, {}, link)
    assert environment.get("NCCL_P2P_DISABLE") == direct
    assert environment["NCCL_NVLS_ENABLE"] == "0"


@pytest.mark.parametrize(("engine", "expected"), [("gloo", 4), ("nccl", 4), ("virtual", 1), ("local", 1)])
def test_ranks_are_processes_unless_their_engine_keeps_them_in_one(engine, expected):
    assert processes(Cell(suite="s", ranks=4, engine=engine)) == expected
