"""Plans whose cells are played by tiny scripts in the place of workers."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.runner.run import RunOutcome, run_suite
from harness.suite.cell import Cell
from harness.suite.identity import cell_id
from harness.suite.machine import Machine
from harness.suite.plan import Plan, Planned

FAKE_WORKER = """
import json, os, signal, sys, threading, time
folder = sys.argv[1]
described = json.load(open(folder + "/cell.json"))
cell = described["cell"]

def tell(**event):
    with open(folder + "/progress.jsonl", "a") as file:
        file.write(json.dumps(event) + "\\n")

def result(status="ok", value=7.0, **more):
    measurement = {"metric": "views_per_second", "value": value, "unit": "1/s"}
    json.dump({"status": status, "measurements": [measurement], **more}, open(folder + "/result.json", "w"))

def done():
    open(folder + "/done", "w").close()

def exit_with_runner():
    def wait():
        while os.read(0, 1):
            pass
        os._exit(3)
    threading.Thread(target=wait, daemon=True).start()

behaviour = (cell["name"] or "ok").split()[0]
with open(os.environ["FAKE_LOG"], "a") as file:
    file.write(f"{cell['name']} r{described['repeat']} {os.getpid()}\\n")
if behaviour in ("ok", "prepare"):
    if described["preparation"]:
        open(folder + "/gaussians.ply", "w").close()
    result(environment={"prepared": bool(described["prepared"]), "preparation": described["preparation"]})
    done()
elif behaviour == "bits":
    kind = cell["name"].split()[1]
    beside = os.path.join(os.path.dirname(os.environ["FAKE_LOG"]), "bits")
    bits = {"by_repeat": described["repeat"], "always": 7}.get(kind) if kind != "of_file" else open(beside).read()
    result(gaussians_hash=f"bits {bits}")
    done()
elif behaviour == "crash_at_exit":
    result()
    done()
    os.abort()
elif behaviour == "raises":
    raise ValueError("no such colour\\n  in " + os.path.abspath(folder) + "/x.png")
elif behaviour == "oom":
    result("oom", reason="CUDA out of memory. Tried to allocate 20.00 GiB")
    done()
elif behaviour == "memory_error":
    raise MemoryError("Unable to allocate 8.00 GiB")
elif behaviour == "invalid":
    result("invalid", reason="workload moved by 3 %")
    done()
elif behaviour == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif behaviour == "silent":
    result()
elif behaviour == "strange":
    result(measurements=[{"metric": "colourfulness", "value": 1, "unit": "1"}])
    done()
elif behaviour == "hangs":
    exit_with_runner()
    tell(event="phase", text="training")
    tell(event="step", done=40, total=240, unit="images", views_per_second=71.2, loss=0.12)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""

ONE_MACHINE = Machine(gpus=0, cpus=1, compiled=False, nvcc=False)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the fake workers were started for, in order: `name rREPEAT`."""
    log = tmp_path / "started.txt"
    monkeypatch.setenv("FAKE_LOG", str(log))
    return lambda: [line.rpartition(" ")[0] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def fake_command(tmp_path: Path) -> Callable[[Path, int], list[str]]:
    script = tmp_path / "fake_worker.py"
    script.write_text(FAKE_WORKER)
    return lambda folder, processes: [sys.executable, "-S", "-E", str(script), str(folder)]


@pytest.fixture
def planned() -> Callable[..., Planned]:
    """A planned cell; its name says how the fake worker behaves, its seed makes it one of its own."""

    def make(name: str | None = "ok", skip: str | None = None, preparation: bool = False, **fields: object) -> Planned:
        settings = {"device": "cpu", "kernels": "reference", "engine": "local", "repeats": 1, "timeout": 20} | fields
        cell = Cell.model_validate({"suite": "made_up", "name": name, **settings})
        return Planned(cell, cell_id(cell), None, skip, preparation)

    return make


@pytest.fixture
def run(
    tmp_path: Path,
    started: Callable[[], list[str]],
    fake_command: Callable[[Path, int], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., RunOutcome]:
    """Run planned cells with fake workers into tmp_path/out, without the real report; keywords as of run_suite."""
    monkeypatch.setenv("SPLAT_HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("harness.runner.recording.commit", lambda: "abc")
    report = types.ModuleType("harness.report.build")
    report.build_report = lambda folders, out: out / "report.html"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "harness.report.build", report)

    def go(*cells: Planned, out: Path = tmp_path / "out", **keywords: object) -> RunOutcome:
        plan = Plan("made_up", "", Path("suites/made_up.yaml"), "cpu", ONE_MACHINE, cells)
        keywords.setdefault("console", Console(file=StringIO(), width=200))
        return run_suite(plan, out, command=fake_command, **keywords)  # type: ignore[arg-type]

    return go
