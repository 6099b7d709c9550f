"""The gate on a GPU: a slower kernel and a launch more are caught and named, and equal sources are not.

`PYTHONPATH=. python tests/harness/evidence/test_gate_on_gpu.py OUT` does the same and leaves what was said in
OUT/gate.json, to be committed as reports/<machine>/gate/gate.json. Under four minutes, nearly all of them starts of 18
workers: a process takes 10 s for a scene of any size. So the sides have the fewest repeats that their verdict takes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from harness.evidence.verdicts import MIN_REPEATS

ROOT = Path(__file__).parents[3]
LAYERS = ("harness", "strategies", "cuda_src")
BASELINE = "trial"
SUITE = """\
suite: 1
defaults:
  scenario: throughput
  device: cuda
  scene: {city: anchor_aerial, gaussians: 1e6, views: 19}
  size: [1920, 1080]
  repeats: REPEATS
  stop: {noise: 1, min_passes: 60, max_seconds: 60}
cases: [{name: single, strategy: single}]
"""
BASE_REPEATS = 5
LAUNCH = "one launch more a step"
REPEATS = {LAUNCH: 1}
"""Of a fault that counts show, once; of the others as many as the rule for time asks for."""
FAULTS = {
    "equal sources": "",
    "raster_backward 1.3 times as long": """
from cuda_src import launches as _launches

_raster_backward, _calls = raster_backward, 0


def raster_backward(*arguments, **keys):
    # Three calls of ten do the work twice: 1.3 times the kernel's time, and as many launches as before.
    global _calls
    _calls += 1
    if _calls % 10 in (0, 3, 6):
        before = _launches.counted()
        _raster_backward(*arguments, **keys)
        _launches._counted = before
    return _raster_backward(*arguments, **keys)
""",
    LAUNCH: """
_l1_ssim = l1_ssim


def l1_ssim(*arguments, **keys):
    _l1_ssim(*arguments, **keys)
    return _l1_ssim(*arguments, **keys)
""",
}
"""What is put below cuda_src/compiled/__init__.py; each fault in a tree of its own."""


def regress(folder: Path, tree: str, repeats: int, *words: str) -> dict[str, Any]:
    """What the gate says of the one cell when this tree runs it, with its exit code; `folder` holds the baselines."""
    (folder / "s.yaml").write_text(SUITE.replace("REPEATS", str(repeats)))
    given = os.environ.get("PYTHONPATH")  # As of libraries that are not installed; it may hold these sources too.
    command = ["regress", "--baseline", BASELINE, "--suite", "s.yaml", "--out", f"out-{tree}", "--json", *words]
    began = monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / tree), given)))},
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(done.stdout)["rows"] if done.stdout else []
    return {"exit_code": done.returncode, "seconds": round(monotonic() - began), **(rows[0] if rows else {})}


def trial(folder: Path) -> dict[str, dict[str, Any]]:
    """By fault, the gate's word against a baseline of the sources as they are, made on this machine just before."""
    for number, fault in enumerate(FAULTS.values()):
        tree = folder / f"tree-{number}"
        for layer in LAYERS:
            shutil.copytree(ROOT / layer, tree / layer, ignore=shutil.ignore_patterns("__pycache__"))
        with (tree / "cuda_src/compiled/__init__.py").open("a") as source:
            source.write(fault)
    regress(folder, "tree-0", BASE_REPEATS, "--accept", "the sources as they are")
    return {
        name: regress(folder, f"tree-{number}", REPEATS.get(name, MIN_REPEATS)) for number, name in enumerate(FAULTS)
    }


def without_a_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    if without_a_gpu():
        pytest.skip("needs a GPU")
    return trial(tmp_path_factory.mktemp("gate"))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kernel_that_takes_1_3_times_as_long_is_slower(said: dict[str, dict[str, Any]]) -> None:
    row = said["raster_backward 1.3 times as long"]
    # Other tests on the same GPU make passes scatter; the gate then says that it cannot tell.
    assert row["state"] in ("slower", "ambiguous"), row
    assert row["change"] > 0.03
    if row["state"] == "slower":
        assert any("most in raster_backward" in reason for reason in row["reasons"]), row


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_launch_more_a_step_is_named(said: dict[str, dict[str, Any]]) -> None:
    row = said[LAUNCH]
    assert (row["exit_code"], row["state"]) == (1, "changed")
    assert any(reason.startswith("kernel_launches") for reason in row["reasons"]), row


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_equal_sources_are_not_slower(said: dict[str, dict[str, Any]]) -> None:
    assert said["equal sources"]["state"] in ("ok", "ambiguous"), said["equal sources"]


def main(out: Path) -> int:
    """Leave gate.json in the folder, and print it."""
    from harness.measure.environment import commit, environment, machine

    with tempfile.TemporaryDirectory() as folder:
        rows = [{"fault": name, **row} for name, row in trial(Path(folder)).items()]
    about = (
        "regress --baseline, single on 1 million Gaussians at 1920x1080; processes: 5 of the baseline, 4 of what is "
        "judged by time and 4 again where it is slower, 1 of the launch"
    )
    facts = {"about": about, "machine": machine(environment(), "cuda"), "commit": commit()}
    text = json.dumps({**facts, "rows": rows}, indent=1)
    out.mkdir(parents=True, exist_ok=True)
    (out / "gate.json").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
