"""What 2,000 cells cost to load, compare and report: `PYTHONPATH=. python tests/harness/report/scale_trial.py OUT`.

The cells are the committed CPU runs again and again, each with another seed. OUT/scale.json gets seconds and memory
of each command, in a process of its own; it is committed as reports/cpu/gate/scale.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.measure.environment import commit, environment, machine
from harness.records.store import RECORD, SAMPLES

ROOT = Path(__file__).parents[3]
CELLS = 2000


def multiply(out: Path, count: int) -> None:
    """So many record folders of as many cells, made of the committed ones."""
    committed = sorted(path.parent for path in (ROOT / "reports" / "cpu").glob(f"*/cells/*/{RECORD}"))
    for number in range(count):
        source, seed = committed[number % len(committed)], number // len(committed)
        record = json.loads((source / RECORD).read_text())
        record["cell"]["seed"] = 1000 + seed
        record["cell_id"] = hashlib.sha256(f"{record['cell_id']} {seed}".encode()).hexdigest()[:12]
        folder = out / f"{record['cell_id']}-{record['code_id']}-{record['environment_id']}-{number:04d}"
        folder.mkdir(parents=True)
        (folder / RECORD).write_text(json.dumps(record, indent=1))
        for beside in (SAMPLES, "images"):
            if (source / beside).is_dir():
                shutil.copytree(source / beside, folder / beside)
            elif (source / beside).exists():
                shutil.copy(source / beside, folder)


def cost(*command: str) -> dict[str, Any]:
    """Wall and CPU seconds and the most memory of a process."""
    code = f"import os, sys, resource\npid = os.spawnv(os.P_WAIT, sys.executable, {[sys.executable, *command]!r})\n"
    code += "used = resource.getrusage(resource.RUSAGE_CHILDREN)\nassert pid == 0, pid\n"
    code += "print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, kibibytes = done.stderr.split()[-2:]
    return {
        "wall_seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(float(seconds), 1),
        "peak_memory_bytes": int(kibibytes) * 1024,
    }


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        cells = Path(place) / "cells"
        multiply(cells, CELLS)
        commands = {
            "load": ["-c", f"from harness.records import load; print(len(load({str(cells)!r})))"],
            "compare": ["-m", "harness", "compare", str(cells), str(cells), "--json"],
            "report": ["-m", "harness", "report", str(cells), "--out", f"{place}/report"],
        }
        rows = []
        for name, command in commands.items():
            loads = os.getloadavg()[0]
            rows.append({"command": name, "load_before": round(loads, 2), **cost(*command)})
            print(rows[-1])
    about = f"{CELLS} cells: the committed CPU runs with other seeds; each command is a process, start included"
    found = {"about": about, "machine": machine(environment(), "cpu"), "commit": commit(), "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    (out / "scale.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
