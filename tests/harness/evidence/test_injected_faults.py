"""The gate itself on trial: real processes of a tree with faults against one without, and kernels slowed down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest
import torch

from cuda_src import operators as op
from cuda_src.workspace import Workspace
from harness.evidence.verdicts import CPU_EFFECT, Verdict, judge
from harness.records.store import records
from harness.scenes.load import load_scene
from harness.suite.cell import SceneSpec

ROOT = Path(__file__).parents[3]
LAYERS = ("harness", "strategies", "cuda_src")

SUITE = """\
suite: 1
defaults:
  scenario: train
  device: cpu
  kernels: reference
  scene: {city: small_aerial, points: 200, views: 6}
  size: [32, 24]
  images: 4
  evaluations: 1
  repeats: 1
cases:
  - {name: launch, strategy: single}
  - {name: byte, strategy: grendel, ranks: 2, engine: virtual}
  - {name: collective, strategy: splaxel, ranks: 2, engine: virtual}
  - {name: quality, strategy: bytesplat, ranks: 2, engine: virtual}
"""

FAULTS = {
    # One launch more a step.
    "strategies/single/strategy.py": """
class _Launching:
    def __getattr__(self, name):
        return getattr(_operators, name)
    def l1_ssim(self, *arguments, **keys):
        _operators.l1_ssim(*arguments, **keys)
        return _operators.l1_ssim(*arguments, **keys)
_operators, op = op, _Launching()
""",
    # One byte more a record that is sent.
    "strategies/grendel/strategy.py": """
import torch as _torch
class _Received:
    def __init__(self, pending):
        self._pending = pending
    def wait(self):
        return self._pending.wait()[:, 1:].contiguous().view(_torch.float32)
_setup = Grendel.setup
def _with_a_byte(self, ctx, *arguments):
    send = ctx.comm.exchange
    def exchange(stage, rows, send_counts, receive_counts, metadata=False, padding=0, **keys):
        if stage != "exchange_forward" or rows.dtype != _torch.float32:
            return send(stage, rows, send_counts, receive_counts, metadata, padding, **keys)
        raw = rows.contiguous().view(_torch.uint8)
        raw = _torch.cat([raw.new_zeros(len(raw), 1), raw], dim=1)
        return _Received(send(stage, raw, send_counts, receive_counts, metadata, 4 * padding, **keys))
    ctx.comm.exchange = exchange
    _setup(self, ctx, *arguments)
Grendel.setup = _with_a_byte
""",
    # One collective more a step.
    "strategies/splaxel/strategy.py": """
_step = Splaxel.step
def _with_a_barrier_of_its_own(self, queue):
    self.comm.exchange("exchange_loss", torch.zeros(0), [0] * 2, [0] * 2).wait()
    return _step(self, queue)
Splaxel.step = _with_a_barrier_of_its_own
""",
    # About 0.3 dB less: a checkerboard of a mean square error of 7 % of the image's own.
    "strategies/bytesplat/strategy.py": """
import torch as _torch
_render = ByteSplat.render
def _blurred(self, camera):
    image = _render(self, camera)
    if image is None:
        return None
    rows, columns = _torch.meshgrid(*map(_torch.arange, image.shape[:2]), indexing="ij")
    return image + 0.0368 * (1 - 2 * ((rows + columns) % 2))[:, :, None]
ByteSplat.render = _blurred
""",
}


def write_tree(root, faults):
    """The sources as they are, with so much put below the files named."""
    for layer in LAYERS:
        shutil.copytree(ROOT / layer, root / layer, ignore=shutil.ignore_patterns("__pycache__"))
    for file, fault in faults.items():
        with (root / file).open("a") as source:
            source.write(fault)


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Folders of the sources as they are, and of sources in which every strategy of SUITE has a fault."""
    folder = tmp_path_factory.mktemp("trees")
    write_tree(folder / "sound", {})
    write_tree(folder / "faulty", FAULTS)
    (folder / "s.yaml").write_text(SUITE)
    return folder


def regress(trees, running, against, *words):
    """Exit code and rows, by cell, of the gate in one tree against another."""
    command = ["regress", "--against", against, "--suite", "s.yaml", "--pairs", "1", "--out", f"out-{running}"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", *command, "--json", *words],
        cwd=trees,
        env={**os.environ, "PYTHONPATH": str(trees / running), "SPLAT_HARNESS_CACHE": str(trees / "cache")},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout, done.stderr
    return done.returncode, {row["cell"]: row for row in json.loads(done.stdout)["rows"]}


def test_each_fault_in_a_strategy_is_caught_and_named(trees):
    code, found = regress(trees, "faulty", "sound")
    assert code == 1
    assert {cell: row["state"] for cell, row in found.items()} == dict.fromkeys(found, "changed")
    named = {cell: row["reasons"] for cell, row in found.items()}
    assert named["launch"] == ["kernel_launches 7 → 8 (+14 %)"]
    (byte,) = named["byte"]
    assert byte.startswith("payload_bytes of exchange_forward")
    assert byte.endswith("(+2.3 %)")  # 45 bytes a record where there were 44.
    assert named["collective"] == ["collectives 2 → 3 (+50 %)"]
    (quality,) = named["quality"]
    assert quality.startswith("psnr")
    assert "(−0.3" in quality


def test_equal_trees_need_no_turns(trees):
    code, found = regress(trees, "sound", "sound")
    assert code == 0
    assert all(row["reasons"] == ["same: equal code in both trees"] for row in found.values())


def test_runs_of_equal_sources_are_equal_in_every_bit(trees):
    _, found = regress(trees, "sound", "sound", "--equal-code", "--out", "bits")
    assert {row["state"] for row in found.values()} == {"ambiguous"}  # One repeat a side says nothing of time.
    bits: dict[tuple[str, str, int | None], set[float]] = {}
    for _, record in records(trees / "bits"):
        assert record.result is not None
        for measurement in record.result.measurements:
            if measurement.metric in ("loss", "psnr", "ssim"):
                key = (str(record.cell["name"]), measurement.metric, measurement.images_seen)
                bits.setdefault(key, set()).add(measurement.value)
    assert len({cell for cell, _, _ in bits}) == 4
    assert all(len(values) == 1 for values in bits.values()), bits


class Alternately:
    """CPU seconds of passes over a view's kernels, sides in turns."""

    def __init__(self):
        scene = load_scene(SceneSpec(city="small_aerial", gaussians=3000, views=4), (96, 72), torch.device("cpu"))
        self._kernels, self._camera = op.KernelSet(), scene.cameras[0]
        parameters = scene.gaussians.read(torch.arange(scene.gaussians.count), torch.device("cpu"))
        self._parameters, self._ids = parameters, torch.arange(len(parameters))
        self._work = Workspace(torch.device("cpu"))

    def one_pass(self, slowdown: float) -> float:
        """Seconds of five views; kernels take `slowdown` times what they take."""
        began = process_time()
        for _ in range(5):
            splats = op.project(self._kernels, self._parameters, self._ids, self._camera, 3, self._work)
            bins = op.bin_splats(self._kernels, splats, self._camera, self._work)
            op.raster_forward(self._kernels, splats, bins, self._camera, self._work)
        end = began + slowdown * (process_time() - began)
        while process_time() < end:
            pass
        return process_time() - began

    def sides(self, slowdown: float) -> tuple[list[float], list[float]]:
        self.one_pass(1.0)
        base: list[float] = []
        new: list[float] = []
        for pair in range(5):
            for side in (base, new) if pair % 2 == 0 else (new, base):
                side.append(min(self.one_pass(slowdown if side is new else 1.0) for _ in range(3)))
        return base, new


def test_kernels_that_take_half_as_long_again_are_slower_and_as_long_are_not():
    alternately = Alternately()
    assert judge(*alternately.sides(1.5), CPU_EFFECT).verdict is Verdict.slower
    assert judge(*alternately.sides(1.0), CPU_EFFECT).verdict is not Verdict.slower
