"""Passes over a fixed list of views: the clock around one, as many as the noise needs, and the stages of some more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harness.measure.clock import synchronize
from harness.measure.statistics import enough, median
from harness.runner.job import Job
from harness.runner.witness import Witness
from strategies.base import Strategy
from strategies.views import ViewQueue

WARM_UP_PASSES = 2
BREAKDOWN_PASSES = 3
"""Three, so that a pass in which the host stood still does not decide the median."""

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
    for number in range(WARM_UP_PASSES):
        one_pass(number, True)
        job.ranks.comm.clear()
        job.spending.take()
        job.statistics(strategy, keep=False)
    witness.begin()
    kept: list[float] = []
    while True:
        took = one_pass(WARM_UP_PASSES + len(kept), False)
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


def breakdown(job: Job, one_pass: Callable[[], int]) -> None:
    """Seconds by stage of a step, over further passes; one_pass: runs a pass and returns the steps it took."""
    job.phase("stage breakdown")
    job.clock.enabled = True
    by_pass: list[dict[str, float]] = []
    for number in range(BREAKDOWN_PASSES):
        steps = one_pass()
        by_pass.append({stage: job.ranks.slowest(s) / steps for stage, s in job.clock.take().items()})
        for stage, value in by_pass[-1].items():
            job.sample("stages", "stage_seconds", value, **{"pass": number, "stage": stage})
    for stage in by_pass[0]:
        job.seconds("stage_seconds", median([p[stage] for p in by_pass]), stage=stage)
    job.clock.enabled = False
