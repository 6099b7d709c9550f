"""Scenario `kernels`: counted work, every operator alone beside its floor, the whole step, and its slowest views."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from statistics import fmean
from time import perf_counter
from typing import Any

import torch

from cuda_src.workload import COUNTED
from harness.measure.clock import synchronize
from harness.measure.floors import OPERATORS, Rates, Work, floor_seconds
from harness.measure.nvml import NoNvmlError, Nvml, cuda_uuid
from harness.measure.rates import measured_rates
from harness.measure.statistics import median, percentile
from harness.runner import operator_profile, scenario_throughput
from harness.runner.job import Job
from harness.runner.operator_calls import OperatorCalls
from harness.scenes.scene import Scene
from strategies.base import GaussianSource, Strategy
from strategies.views import ViewQueue

CALLS = 5
"""Times that the operators of one view are called in order, after a first that is not kept."""
TIMED_VIEWS = 16
"""Views whose operators are timed; work is counted for every view of a pass."""
TAIL_ROUNDS = 3
"""Steps of each view in the series of slow views: their median is the view's, so that no hiccup of the host is."""


def run(job: Job) -> None:
    """Operators first, on their own Gaussians; then the throughput scenario's passes; then single steps.

    The operators are those of `single`: a cell of another strategy has its whole step here, beside them.
    """
    scene, source = job.scene(from_points=False)
    if job.cell.strategy != "single":
        scenario_throughput.run(job, (scene, source))
        return
    views = scenario_throughput.pass_views(job.cell, scene)
    job.read_images(scene, views)
    works, step = operators(job, scene, source, views)
    if job.device.type == "cuda":
        # What follows is a job of its own: its peak is not that of the calls.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(job.device)
    floors = {view: sum(step_floors.values()) for view, step_floors in step.items()}
    job.measure("roofline_seconds", fmean(floors.values()), "mean")
    strategy = scenario_throughput.run(job, (scene, source))
    if job.cell.batch == 1:
        tail(job, strategy, floors)
    del strategy
    operator_profile.run(job, typical_view(works), works)


def operators(
    job: Job, scene: Scene, source: GaussianSource, views: tuple[int, ...]
) -> tuple[dict[int, Work], dict[int, dict[str, float]]]:
    """Time the operators and count the work of the views; by view, its work and the floors of a step's operators."""
    calls = OperatorCalls(job, scene, source)
    seconds: dict[str, list[float]] = {}
    works: dict[int, Work] = {}
    clocks: list[float] = []
    in_step: list[str] = []
    with ExitStack() as stack:
        sm_hertz = _sm_clock(stack, job.device)
        for number, view in enumerate(views):
            if number >= TIMED_VIEWS:
                works[view] = calls.work(view)
                continue
            job.phase(f"operators on view {number + 1} of {min(len(views), TIMED_VIEWS)}")
            of_view = calls.of(view)
            works[view], in_step = of_view.work, list(of_view.step)
            for name, values in timed(of_view.step | of_view.beside, job.device, sm_hertz, clocks).items():
                for value in values:
                    job.sample("operators", "operator_seconds", value, stage=name, index=view)
                seconds.setdefault(name, []).append(median(values))
    del calls
    job.phase("measuring the device")
    rates = measured_rates(job.device, median(clocks) if clocks else None)
    job.measure("copy_bandwidth", rates.bandwidth)
    if rates.issue is not None:
        job.measure("issue_rate", rates.issue)
    counted = [asdict(work.counted) | {"active_lanes": work.counted.active_lanes} for work in works.values()]
    for name in COUNTED_METRICS:
        job.measure(name, fmean(counts[name] for counts in counted), "mean")
    for name, values in seconds.items():
        _operator(job, name, fmean(values), list(works.values())[:TIMED_VIEWS], rates)
    return works, {view: {name: floor_seconds(name, work, rates) for name in in_step} for view, work in works.items()}


COUNTED_METRICS = (*COUNTED, "active_lanes")
"""Counts of a view that become metrics of the same names; visible Gaussians and instances are throughput's."""


def _operator(job: Job, name: str, seconds: float, works: list[Work], rates: Rates) -> None:
    """One operator's mean over the timed views: seconds, floor, compulsory bytes."""
    job.measure("operator_seconds", seconds, "mean", stage=name)
    job.measure("roofline_seconds", fmean(floor_seconds(name, work, rates) for work in works), "mean", stage=name)
    job.measure("compulsory_bytes", fmean(OPERATORS[name].bytes(work) for work in works), "mean", stage=name)


def timed(
    calls: dict[str, Callable[[], Any]],
    device: torch.device,
    sm_hertz: Callable[[], float | None] = lambda: None,
    clocks: list[float] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call, CALLS times in order, as caches and queues are in a step.

    On a GPU by events between them, so that the host, which runs ahead, is in none. sm_hertz is asked while the device
    works, its answers join `clocks`.
    """
    for call in calls.values():
        call()
    synchronize(device)
    found: dict[str, list[float]] = {name: [] for name in calls}
    if device.type != "cuda":
        for _ in range(CALLS):
            for name, call in calls.items():
                start = perf_counter()
                call()
                found[name].append(perf_counter() - start)
        return found
    marks: list[list[torch.cuda.Event]] = []
    for _ in range(CALLS):
        row = [_marked(device)]
        for call in calls.values():
            call()
            row.append(_marked(device))
        marks.append(row)
    if clocks is not None and (clock := sm_hertz()) is not None:
        clocks.append(clock)
    synchronize(device)
    for row in marks:
        for name, begin, end in zip(calls, row[:-1], row[1:], strict=True):
            found[name].append(begin.elapsed_time(end) / 1e3)
    return found


def _marked(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _sm_clock(stack: ExitStack, device: torch.device) -> Callable[[], float | None]:
    """What asks NVML for the SM clock, Hz; it answers None where there is no NVML."""
    if device.type == "cuda":
        try:
            nvml = stack.enter_context(Nvml([cuda_uuid(device)]))
        except NoNvmlError:
            return lambda: None
        return lambda: nvml.read()[0].sm_hertz
    return lambda: None


def tail(job: Job, strategy: Strategy, floors: dict[int, float]) -> None:
    """Seconds of single steps, each waited for, over the floor of the step's own view: a series of its own."""
    job.phase("single steps")
    views = list(floors)
    queue = ViewQueue(views, shuffle=False, keep_passes=True)
    seconds: dict[int, list[float]] = {view: [] for view in views}
    for number in range(TAIL_ROUNDS):
        for view in views:
            synchronize(job.device)
            start = perf_counter()
            report = strategy.step(queue)
            synchronize(job.device)
            if report.images != 1:  # Views that a strategy runs together have no time of their own.
                return
            seconds[view].append(perf_counter() - start)
            job.sample("tail", "step_seconds", seconds[view][-1], index=view, **{"pass": number})
    over = [median(values) / floors[view] for view, values in seconds.items()]
    for view, floor in floors.items():
        job.sample("tail", "roofline_seconds", floor, index=view)
    job.measure("step_over_floor", median(over))
    job.measure("step_over_floor", percentile(over, 99), "p99")


def typical_view(works: dict[int, Work]) -> int:
    """The view with the median number of tile instances (the lower of two)."""
    ordered = sorted(works, key=lambda view: works[view].counted.instances)
    return ordered[(len(ordered) - 1) // 2]
