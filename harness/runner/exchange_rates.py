"""How fast a step's exchange alone is, packing and unpacking included, beside NCCL's all-to-all of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from harness.measure.clock import synchronize
from harness.measure.statistics import median
from harness.runner.job import Job
from harness.suite.feasibility import CUDA_ENGINES
from strategies.base import ExchangeTrial, Strategy

REPEATS = 20
_HEAD_START_CYCLES = 60_000_000
"""Some 30 ms that the device spins while the host queues all repeats: none of them then waits for the host."""


def measure(job: Job, strategy: Strategy, views: Sequence[int]) -> None:
    """Rates of the exchanges of a step on those views, between GPUs whose link is held to no rate; comes last."""
    comm = job.ranks.comm
    between_gpus = comm.engine in CUDA_ENGINES and job.device.type == "cuda" and comm.ranks > 1
    if not between_gpus or comm.checks or comm.pace is not None:
        return
    job.phase("rates of the exchange")
    with comm.off_the_record():
        for trial in strategy.exchange_trials(views):
            sent = max(job.ranks.each(float(trial.row_bytes * sum(sum(to) for to, _ in trial.counts))))
            if sent == 0:
                continue
            for metric, run in (("exchange_bandwidth", trial.run), ("all_to_all_bandwidth", plain(job.device, trial))):
                job.measure(metric, sent / job.ranks.slowest(_seconds(job, run)), stage=trial.stage)


def plain(device: torch.device, trial: ExchangeTrial) -> Callable[[], None]:
    """The trial's rows from and to the same ranks, view by view, by the default group's all-to-all."""
    most = [max(sum(rows[way]) for rows in trial.counts) for way in (0, 1)]
    out, back = (torch.zeros((rows, trial.row_bytes), dtype=torch.uint8, device=device) for rows in most)

    def run() -> None:
        for to, come in trial.counts:
            dist.all_to_all_single(back[: sum(come)], out[: sum(to)], come, to)

    return run


def _seconds(job: Job, run: Callable[[], None]) -> float:
    """Median time of a run on this rank's device, one queued behind the other."""
    run()
    synchronize(job.device)
    job.ranks.barrier()
    torch.cuda._sleep(_HEAD_START_CYCLES)
    ends = [_now()]
    for _ in range(REPEATS):
        run()
        ends.append(_now())
    synchronize(job.device)
    return median([a.elapsed_time(b) * 1e-3 for a, b in pairwise(ends)])


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
