"""Passes over a fixed list of views: the clock around one, as many as the noise needs, and the stages of some more."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from harness.measure.clock import synchronize
from harness.measure.statistics import enough, median
from harness.runner.job import Job
from harness.runner.witness import Witness
from strategies.base import Strategy
from strategies.views import ViewQueue

WARM_UP_PASSES = 2
"""At least, or as many as the strategy needs to settle."""
BREAKDOWN_PASSES = 3
"""Three, so that a pass in which the host stood still does not decide the median."""
REGION_STAGES = frozenset({"bin", "raster_forward", "loss", "raster_backward"})
"""What a rank does for its own pixels alone: nothing in them waits for other ranks."""
REGION = "region"
"""The stage under which the imbalance of their sum is recorded."""

Done = TypeVar("Done")


def timed(job: Job, work: Callable[[], Done]) -> tuple[float, Done]:
    """Seconds of the slowest rank for what the work does on all of them, and what it gave on this one."""
    job.spending.begin()
    job.ranks.barrier()
    synchronize(job.device)
    start = job.ranks.now()
    done = work()
    synchronize(job.device)
    took = job.ranks.slowest(job.ranks.now() - start)
    job.spending.end()
    return took, done


def repeated(
    job: Job, strategy: Strategy, witness: Witness, views: int, one_pass: Callable[[int, bool], float]
) -> list[float]:
    """Seconds of each measured pass, until the cell's stop rule is met; the witness looks on.

    one_pass: of the number of the pass and whether it is a warm-up, which is repeated before anything counts: runs a
    pass over so many views, keeps its samples and returns its seconds.
    """
    job.phase("warm-up")
    warm_up = max(WARM_UP_PASSES, strategy.visits_to_settle)
    for number in range(warm_up):
        one_pass(number, True)
        job.ranks.comm.clear()
        job.spending.take()
        job.statistics(strategy, keep=False)
    job.phase("passes")
    gc.collect()
    gc.freeze()  # A full collection in the middle of a pass would walk all that setup and warm-up have left.
    witness.begin()
    kept: list[float] = []
    while True:
        took = one_pass(warm_up + len(kept), False)
        kept.append(took)
        witness.look()
        job.progress(len(kept), max(len(kept), job.cell.stop.min_passes), "passes", views / took, None)
        if job.cell.deterministic:  # As many as noise asks for would be others in every run.
            if len(kept) >= job.cell.stop.min_passes:
                break
        # Rank 0 decides, between passes: ranks that counted seconds alone could part ways.
        elif job.ranks.each(float(enough(kept, job.cell.stop, sum(kept))))[0]:
            break
    witness.end()
    return kept


def host(job: Job, strategy: Strategy, queue: ViewQueue, views: int) -> None:
    """Seconds that a step keeps the host, launches and Python, over one more pass; for cells of one place.

    Each step begins on an idle device, so that it waits for nothing but what it reads itself.
    """
    job.phase("host time")
    seconds: list[float] = []
    images = 0
    while images < views:
        synchronize(job.device)
        start = job.ranks.now()
        images += strategy.step(queue).images
        seconds.append(job.ranks.now() - start)
        job.sample("host", "host_seconds", seconds[-1], index=len(seconds) - 1)
    strategy.settle()
    job.seconds("host_seconds", median(seconds))


def breakdown(job: Job, one_pass: Callable[[Callable[[], None]], object]) -> None:
    """Seconds by stage of a step, over further passes, and how even they were among the ranks.

    one_pass: runs a pass, and calls what it is given at the end of each step.
    """
    job.phase("stage breakdown")
    job.clock.enabled = True
    slowest: list[dict[str, float]] = []
    uneven: list[dict[str, float]] = []
    for number in range(BREAKDOWN_PASSES):
        stages, seconds, steps = _by_step(job, one_pass)
        of_pass = (seconds.sum(dim=1).amax(dim=0) / steps).tolist()
        slowest.append(dict(zip(stages, of_pass, strict=True)))
        uneven.append(imbalance(stages, seconds))
        for stage, value in slowest[-1].items():
            job.sample("stages", "stage_seconds", value, **{"pass": number, "stage": stage})
    for metric, by_pass in (("stage_seconds", slowest), ("stage_imbalance", uneven)):
        for stage in by_pass[0]:
            job.seconds(metric, median([p[stage] for p in by_pass]), stage=stage)
    job.clock.enabled = False


def imbalance(stages: Sequence[str], seconds: torch.Tensor) -> dict[str, float]:
    """Seconds of the slowest rank over the mean of all: of the stages of a region of its own, and of their sum.

    seconds: [ranks, steps, stages]. Every step waits for its slowest rank, so the slowest is taken step by step: ranks
    that are slow in turn are not even. Empty for one rank.
    """
    own = {stage: seconds[..., i] for i, stage in enumerate(stages) if REGION_STAGES.issuperset(stage.split("+"))}
    if len(seconds) == 1 or not own:
        return {}
    own[REGION] = torch.stack(list(own.values())).sum(dim=0)
    return {stage: float(s.amax(dim=0).sum() / s.mean(dim=0).sum()) for stage, s in own.items()}


def _by_step(job: Job, one_pass: Callable[[Callable[[], None]], object]) -> tuple[list[str], torch.Tensor, int]:
    """Stages of a pass in the order in which they first ran, alike on all ranks, all ranks' seconds, [ranks, steps + 1,
    stages], and how many steps it had: what is settled behind the last one stands after it."""
    ends: list[dict[str, float]] = []
    one_pass(lambda: ends.append(job.clock.take()))
    parts = [*ends, job.clock.take()]
    stages = list(dict.fromkeys(stage for part in parts for stage in part))
    mine = torch.tensor([[part.get(stage, 0.0) for stage in stages] for part in parts], dtype=torch.float64)
    return stages, job.ranks.by_rank(mine), len(ends)
