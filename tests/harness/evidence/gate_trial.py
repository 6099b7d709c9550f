"""The gate on trial on this machine's CPU: `PYTHONPATH=. python tests/harness/evidence/gate_trial.py OUT [PART ...]`.

A part is a file in OUT, to be committed as reports/cpu/gate: what was said, the commit, the machine and its load.
`equal_sources` takes an hour, `slowed_kernel` a quarter of one, each of the others some minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from test_injected_faults import FAULTS, ROOT, SUITE, write_tree

from harness.evidence.gates import changes
from harness.evidence.measured import read
from harness.measure.environment import commit, environment, machine
from harness.records.store import records

Row = dict[str, Any]

EQUAL_RUNS, SLOWED_RUNS = 20, 5
BUSY = "while True: pass"
"""A neighbour on the other core, for half of the runs of equal sources."""

SLOWED = {
    "cuda_src/portable/__init__.py": """
from time import process_time as _process_time

_raster_backward = raster_backward


def raster_backward(*arguments, **keys):
    began = _process_time()
    found = _raster_backward(*arguments, **keys)
    end = began + 1.5 * (_process_time() - began)
    while _process_time() < end:
        pass
    return found
"""
}

DETERMINISTIC = """\
suite: 1
defaults:
  {scenario: train, device: cpu, kernels: portable, scene: {city: small_aerial, points: 600, views: 12}, size: [64, 48],
   images: 24, evaluations: 1, timeout: 240, training: {sh_every: 8, rate_images: 24},
   stop: {noise: 0.5, min_passes: 2, max_seconds: 60}}
cases:
  - {name: single, strategy: single, repeats: 3}
  - {name: single threads, strategy: single, threads: 2, repeats: 3}
  - {name: grendel gloo, strategy: grendel, ranks: 2, engine: gloo, repeats: 3}
  - {name: grendel virtual, strategy: grendel, ranks: 3, engine: virtual, repeats: 3}
  - {name: grendel measured, strategy: grendel, ranks: 2, engine: gloo, options: {balance: measured}}
  - {name: splaxel, strategy: splaxel, ranks: 2, engine: gloo, threads: 2, repeats: 2}
  - {name: bytesplat, strategy: bytesplat, ranks: 2, engine: gloo, threads: 2, batch: 2, repeats: 2}
  - {name: bytesplat fused, strategy: bytesplat, ranks: 2, engine: gloo, batch: 2, options: {raster: fused}, repeats: 2}
  - {name: unified, strategy: unified, ranks: 2, threads: 2, repeats: 2}
  - {name: unified atomic, strategy: unified, ranks: 2, options: {exchange: remote_atomic}, repeats: 2}
  - {name: throughput, scenario: throughput, strategy: grendel, ranks: 2, engine: gloo, repeats: 2,
     scene: {city: small_aerial, gaussians: 600, views: 12}}
"""

PLAIN_CPU = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "", "ATEN_CPU_CAPABILITY": "default"}
"""Kernels and PyTorch as on a CPU without AVX and fused multiply-add."""


def harness(tree: Path, folder: Path, *words: str, **variables: str) -> str:
    """What a command of the tree's own harness prints, from a folder; an exit code of 2 raises."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree), **variables},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return done.stdout


def said(folder: Path, new: str, base: str, suite: Path, *words: str) -> list[Row]:
    """A row a cell of `regress` in the tree `new` against the tree `base`, with the load before."""
    load = round(os.getloadavg()[0], 2)
    command = ["regress", "--against", base, "--suite", str(suite), "--out", f"out-{new}-{load}", "--json", *words]
    keep = ("cell", "state", "verdict", "reasons", "seconds_base", "seconds_now", "change", "p")
    rows = json.loads(harness(folder / new, folder, *command))["rows"]
    return [{"load": load, **{key: row[key] for key in keep}} for row in rows]


def equal_sources(folder: Path) -> tuple[str, list[Row]]:
    suite = ROOT / "suites" / "regression.yaml"
    write_tree(folder / "sound", {})
    rows = []
    for run in range(1, EQUAL_RUNS + 1):
        with subprocess.Popen([sys.executable, "-c", BUSY if run % 2 == 0 else ""]) as neighbour:
            try:
                rows += [{"run": run, **row} for row in said(folder, "sound", "sound", suite, "--equal-code")]
            finally:
                neighbour.kill()
        print(run, [row["state"] for row in rows[-5:]], flush=True)
    about = "equal sources against themselves, 5 processes a side, a busy neighbour in every second run"
    return f"regress --against FOLDER --equal-code, suites/regression.yaml: {about}", rows


def slowed_kernel(folder: Path) -> tuple[str, list[Row]]:
    suite = folder / "single.yaml"
    text = (ROOT / "suites" / "regression.yaml").read_text()
    suite.write_text(
        "".join(line for line in text.splitlines(True) if "- {name: " not in line or "name: single" in line)
    )
    write_tree(folder / "sound", {})
    write_tree(folder / "slowed", SLOWED)
    rows = []
    for run in range(1, SLOWED_RUNS + 1):
        rows += [{"run": run, **row} for row in said(folder, "slowed", "sound", suite)]
        print(rows[-1], flush=True)
    about = "raster_backward of the portable kernels made to take 1.5 times its CPU time, against sound sources"
    return f"regress --against FOLDER, the cell single of suites/regression.yaml: {about}; 5 processes a side", rows


def faults(folder: Path) -> tuple[str, list[Row]]:
    write_tree(folder / "sound", {})
    write_tree(folder / "faulty", FAULTS)
    (folder / "s.yaml").write_text(SUITE)
    about = "sources with a fault in each strategy against sound ones (tests/harness/evidence/test_injected_faults.py)"
    return about, said(folder, "faulty", "sound", folder / "s.yaml", "--pairs", "1")


def deterministic(folder: Path) -> tuple[str, list[Row]]:
    (folder / "s.yaml").write_text(DETERMINISTIC)
    harness(ROOT, folder, "run", "s.yaml", "--deterministic", "--out", "out")
    rows: dict[str, Row] = {}
    for _, record in sorted(records(folder / "out"), key=lambda one: (one[1].started, one[1].repeat)):
        cell = record.cell
        keys = ("strategy", "scenario", "ranks", "engine", "kernels", "threads", "batch", "options")
        row = {"cell": cell["name"], **{key: cell[key] for key in keys}, "status": record.status, "runs": 0}
        row = rows.setdefault(cell["name"], row | {"reason": record.reason, "hashes": []})
        if record.status == "ok" and record.result is not None:
            row["runs"] += 1
            row["hashes"] = sorted({*row["hashes"], record.result.gaussians_hash})
    about = "run --deterministic: 24 images of small_aerial with 600 points at 64x48 (throughput: two passes)"
    return f"{about}; hashes: of all Gaussians and moments at the end of each run", list(rows.values())


def other_instructions(folder: Path) -> tuple[str, list[Row]]:
    for out, variables in (("here", {}), ("plain", PLAIN_CPU)):
        cache = str(folder / f"cache-{out}")
        suite = str(ROOT / "suites" / "regression.yaml")
        harness(ROOT, folder, "run", suite, "--out", out, SPLAT_HARNESS_CACHE=cache, **variables)
    here, plain = ({cell.label: cell.first for cell in read([folder / out])} for out in ("here", "plain"))
    rows = [
        {
            "cell": cell,
            "exactly": [str(one) for one in changes(here[cell], plain[cell], same_environment=True)],
            "as elsewhere": [str(one) for one in changes(here[cell], plain[cell], same_environment=False)],
        }
        for cell in here
    ]
    variables_said = ", ".join(f"{key}={value or 'none'}" for key, value in PLAIN_CPU.items())
    return (
        f"suites/regression.yaml as on this CPU and with {variables_said}: what differs, and what the gate says",
        rows,
    )


PARTS: dict[str, Callable[[Path], tuple[str, list[Row]]]] = {
    part.__name__: part for part in (faults, deterministic, other_instructions, slowed_kernel, equal_sources)
}


def main(out: Path, *parts: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for part in parts or PARTS:
        load = round(os.getloadavg()[0], 2)
        facts = {"machine": machine(environment(), "cpu"), "commit": commit(), "load_before": load}
        with tempfile.TemporaryDirectory() as folder:
            about, rows = PARTS[part](Path(folder))
        (out / f"{part}.json").write_text(json.dumps({"about": about, **facts, "rows": rows}, indent=1) + "\n")
        print(part, "done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
