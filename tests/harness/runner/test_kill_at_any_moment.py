"""kill -9 of the runner between any two of its lines: no finished cell is lost, no half record is read."""

from __future__ import annotations

import json
import subprocess
import sys

MOMENTS = 12

TRIALS = """
import json, os, signal, sys, types
from io import StringIO
from pathlib import Path
from rich.console import Console
from harness.runner.run import run_suite
from harness.suite.cell import Cell
from harness.suite.machine import Machine
from harness.suite.plan import Plan, Planned

script, folder, moments = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
report = types.ModuleType("harness.report.build")
report.build_report = lambda folders, out: out
sys.modules["harness.report.build"] = report

def planned(name):
    cell = Cell(suite="s", name=name, device="cpu", kernels="reference", engine="local", repeats=1)
    return Planned(cell, name.replace(" ", "-"), None, None)

plan = Plan("s", "", Path("s.yaml"), "cpu", Machine(0, 1, False, False), tuple(map(planned, ("ok a", "ok b", "ok c"))))
command = lambda folder, processes: [sys.executable, "-S", "-E", script, str(folder)]

def run(out, last=None):
    # Up to that line of the runner's and the records' files; how many there were.
    count = 0
    def trace(frame, event, value):
        nonlocal count
        code = frame.f_code
        # How often a running cell is looked at depends on the time it takes.
        if not {"runner", "records"} & set(Path(code.co_filename).parts) or code.co_name in ("wait", "poll", "update"):
            return None
        if event == "line":
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    os.environ["FAKE_LOG"] = f"{out}.log"
    sys.settrace(trace)
    outcome = run_suite(plan, out, command=command, console=Console(file=StringIO()))
    sys.settrace(None)
    return count, outcome

def finished(out):
    found = {}
    for path in out.rglob("record.json"):
        record = json.loads(path.read_text())
        found[record["cell"]["name"]] = record["status"]
    return found

total, _ = run(folder / "whole")
trials = []
for moment in range(moments):
    out = folder / str(moment)
    if (child := os.fork()) == 0:
        run(out, 1 + (total - 1) * moment // moments)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    before = finished(out)
    _, outcome = run(out)
    started = [line[:4] for line in Path(f"{out}.log").read_text().splitlines()]
    folders = sorted(path.name for path in (out / "cells").iterdir())
    trials.append(dict(killed=killed, before=before, after=finished(out), started=started, code=outcome.exit_code,
                       folders=len(folders)))
print(json.dumps(trials))
"""


def test_a_runner_killed_at_any_of_its_lines_goes_on_where_it_was(tmp_path, fake_command):
    worker = fake_command(tmp_path, 1)[3]
    command = [sys.executable, "-c", TRIALS, worker, str(tmp_path), str(MOMENTS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    trials = json.loads(done.stdout)
    finished_at_the_kill = [len(trial["before"]) for trial in trials]
    assert {0, 1, 2} <= set(finished_at_the_kill)
    for trial in trials:
        assert trial["killed"]
        assert (trial["code"], trial["folders"]) == (0, 3)
        assert trial["after"] == dict.fromkeys(("ok a", "ok b", "ok c"), "ok")
        assert all(trial["started"].count(name) == 1 for name in trial["before"])
