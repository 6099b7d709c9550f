"""Whatever happens to a rank or to torchrun ends in a status and a reason that names stage and rank."""

from __future__ import annotations

import json

import pytest

CASES = """\
  - {name: raises, ranks: 2, engine: gloo, options: {fault: raise, rank: 1}}
  - {name: killed, ranks: 2, engine: gloo, options: {fault: kill, rank: 1}}
  - {name: torchrun killed, ranks: 2, engine: gloo, options: {fault: kill_parent, rank: 1}}
  - {name: silent, ranks: 2, engine: gloo, collective_timeout: 2, options: {fault: hang, rank: 1}}
  - {name: memory, ranks: 3, engine: virtual, options: {fault: memory, rank: 2}}
  - {name: hangs, ranks: 3, engine: virtual, timeout: 8, options: {fault: hang, rank: 1}}
  - {name: not a number, ranks: 2, engine: virtual, options: {fault: nan}}
  - {name: slow, engine: local, options: {fault: slow}}
"""
REASONS = {
    "raises": ("failed", "ValueError: no such colour (rank 1 last in compute)"),
    "killed": ("failed", "rank 1 killed by SIGKILL; last seen: training, "),
    "torchrun killed": ("failed", "killed by SIGKILL; last seen: training, "),
    "silent": ("timeout", "exchange: rank 0 waited in vain for the other ranks; last seen: training, "),
    "memory": ("oom", "MemoryError: Unable to allocate 8.00 TiB (rank 2 last in compute)"),
    "hangs": ("timeout", "no end after 8 s; last seen: training, "),
    "not a number": ("failed", "FloatingPointError: the loss is nan after 2 images (rank 0 last in exchange)"),
    "slow": ("ok", None),
}
WHERE = {
    "killed": "rank 1 last in compute; rank 0 waits in exchange",
    "torchrun killed": "rank 1 last in compute; rank 0 waits in exchange",
    "silent": "rank 1 last in compute; rank 0 waits in exchange",
    "hangs": "rank 1 last in compute; ranks 0, 2 wait in exchange",
}


@pytest.fixture(scope="module")
def faults(project):
    """All cases run once, one after another, by one runner."""
    made = project(CASES)
    code, text = made.run()
    assert code == 3, text
    assert made.ends(0.5)
    return made


@pytest.mark.parametrize("name", REASONS)
def test_each_fault_has_its_status_and_a_reason_with_stage_and_rank(faults, name):
    record, (status, reason) = faults.records()[name], REASONS[name]
    kernel = "killed (SIGKILL), perhaps by the kernel for want of memory"  # Where the system does not count its kills.
    found = record.reason and record.reason.replace(kernel, "killed by SIGKILL")
    assert (record.status, found and found[: len(reason or "")]) == (status, reason)
    assert (record.reason or "").endswith(WHERE.get(name, ""))


def test_a_failed_cell_leaves_its_log_and_nothing_of_the_run(faults):
    for folder in (faults.out / "cells").iterdir():
        assert {path.name for path in folder.iterdir()} <= {"record.json", "log.txt", "samples.parquet", "images"}


GPU_CASES = """\
  - {name: well, ranks: 2, device: cuda, engine: nccl}
  - {name: raises, ranks: 2, device: cuda, engine: nccl, options: {fault: raise, rank: 1}}
  - {name: killed, ranks: 2, device: cuda, engine: nccl, options: {fault: kill, rank: 1}}
  - {name: silent, ranks: 2, device: cuda, engine: nccl, collective_timeout: 5, options: {fault: hang, rank: 1}}
  - {name: memory, ranks: 2, device: cuda, engine: nccl, options: {fault: device_memory, rank: 0}}
"""
GPU_REASONS = {
    "well": ("ok", None),
    "raises": ("failed", "ValueError: no such colour (rank 1 last in compute)"),
    "killed": ("failed", "rank 1 killed"),
    "silent": ("timeout", "exchange: rank 0 waited in vain for the other ranks, 5 s; last seen: training, "),
    "memory": ("oom", "OutOfMemoryError: CUDA out of memory. Tried to allocate 32768.00 GiB."),
}


@pytest.mark.gpu
@pytest.mark.multigpu
def test_faults_on_gpus_end_as_they_do_on_cpus_and_a_hang_leaves_the_flight_recorder(project):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    made = project(GPU_CASES)
    made.run()
    found = made.records()
    for name, (status, reason) in GPU_REASONS.items():
        record = found[name]
        assert (record.status, (record.reason or "")[: len(reason or "")]) == (status, reason or ""), record.reason
    assert (found["silent"].reason or "").endswith("rank 1 last in compute; rank 0 last in exchange")
    assert (found["memory"].reason or "").endswith("(rank 0 last in compute)")
    (recording,) = (json.loads(path.read_text()) for path in made.out.glob("cells/*/flight_recorder_rank_0.json"))
    assert (recording[-1]["stage"], recording[-1]["state"]) == ("exchange", "begun")
