"""The witness of a cell: counters of its GPUs around what is measured, read by rank 0 alone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import permutations

import torch

from harness.measure.clock import synchronize
from harness.measure.nvml import NoNvmlError, Nvml, cuda_uuid
from harness.measure.nvml_gpm import GpmSampler
from harness.measure.nvml_window import (
    ERRORS,
    LOAD_STORE_BOUNDS,
    MESSAGE_BOUNDS,
    MIN_JUDGED_BYTES,
    Drift,
    Reading,
    Window,
    WireVerdict,
    judge_wire,
)
from harness.measure.statistics import median
from harness.runner.job import Job
from strategies.registry import strategy

IDLE_SECONDS = 0.2
"""Of the window that shows what the counters do by themselves."""
KNOWN_BYTES = 2 * MIN_JUDGED_BYTES
"""That each rank sends the others in the calibration, again and again."""
KNOWN_TIMES = 8
_ROW = 4096
_UUID_BYTES = 64


class Witness:
    """Every rank makes one and calls its methods in the same order; on CPUs they do nothing.

    `begin`, `look` after each pass, `end`, `report`: times of a window in which clocks were held down or a foreign
    process ran, and traffic that the ledger does not explain, make the cell invalid. Nothing is dropped.
    """

    def __init__(self, job: Job, devices: Sequence[torch.device]):
        self._job, self._ranks = job, job.ranks
        self._devices = tuple(dict.fromkeys(devices))
        self.present = job.device.type == "cuda"
        self._nvml: Nvml | None = None
        self._windows: list[Window] = []
        if not self.present:
            return
        self._places = self._uuids(devices)
        self._gpus = list(dict.fromkeys(self._places))
        self._pids = [int(pid) for pid in dict.fromkeys(self._ranks.each(float(os.getpid())))]
        self._drift = [Drift()] * len(self._gpus)
        loads = strategy(job.cell.strategy).processes == "one"
        self._bounds = LOAD_STORE_BOUNDS if loads else MESSAGE_BOUNDS
        if self._ranks.rank == 0:
            try:
                self._nvml = Nvml(self._gpus)
            except NoNvmlError as error:
                job.notes["nvml"] = str(error)
        if self._nvml is not None:
            self._gpm = GpmSampler(self._nvml.handles)

    @classmethod
    def of(cls, job: Job) -> Witness:
        """The cell's witness, its counters tried on idle GPUs and on traffic of known size."""
        witness = cls(job, job.devices)
        if witness.present:
            job.phase("calibrating the counters")
            witness._calibrate()
        return witness

    def begin(self) -> None:
        """A window opens, once all ranks' GPUs are idle."""
        if not self.present:
            return
        self._between: list[tuple[Reading, ...]] = []
        self._meet()
        if self._nvml is not None:
            self._gpm.begin()
            self._first = self._nvml.read()
        self._ranks.barrier()

    def look(self) -> None:
        """Clocks and processes in the middle of a window; not collective, outside every clock."""
        if self._nvml is not None:
            self._between.append(self._nvml.read())

    def end(self) -> None:
        """The window closes, once all ranks' GPUs are idle again."""
        if not self.present:
            return
        self._meet()
        if self._nvml is not None:
            last, rates = self._nvml.read(), self._gpm.end()
            self._windows = [
                Window(first, end, tuple(look[gpu] for look in self._between), rates[gpu])
                for gpu, (first, end) in enumerate(zip(self._first, last, strict=True))
            ]
        self._ranks.barrier()

    def report(self, steps: int) -> None:
        """Measurements of the last window, in which so many steps ran and the ledger was not cleared; collective."""
        if not self.present:
            return
        matrix = self._ranks.by_rank(self._ranks.comm.ledger.over_link()).sum(dim=0)
        if self._nvml is None:
            return
        job, windows = self._job, self._windows
        # Ranks that share a GPU send nothing over a link.
        verdict = WireVerdict(unjudged="ranks share a GPU")
        if len(self._gpus) == len(self._places):
            verdict = self._judged(matrix)
        for place, sent in enumerate(verdict.sent):
            job.measure("wire_bytes", sent / steps, "mean", place=place)
        if verdict.ratio is not None:
            job.measure("wire_over_ledger", verdict.ratio, "sum")
        if len(self._gpus) > 1:
            job.notes["wire"] = verdict.problem or verdict.unjudged or "within bounds"
        self._report_condition(windows, steps)
        used = [window.joules for window in windows]
        if all(joules is not None for joules in used):
            job.measure("energy_joules", sum(joules or 0.0 for joules in used), "sum")
        for reason in (verdict.problem, *(window.disturbance(self._pids) for window in windows)):
            job.invalid = job.invalid or reason

    def _report_condition(self, windows: Sequence[Window], steps: int) -> None:
        """By GPU: its clock, how long it was held down, its errors, how busy it was, and what went through the host."""
        for place, window in enumerate(windows):
            if window.clocks:
                self._job.measure("sm_clock_hertz", median(window.clocks), place=place)
            for reason, seconds in window.throttled.items():
                self._job.measure("throttled_seconds", seconds, "sum", place=place, stage=reason)
            for error in ERRORS:
                if (rise := window.delta(error)) is not None:
                    self._job.measure("device_errors", rise, "sum", place=place, stage=error)
            if (over_pcie := window.delta("pcie_sent")) is not None and self._job.cell.link == "host":
                self._job.measure("pcie_bytes", over_pcie / steps, "mean", place=place)
            for metric in ("sm_utilization", "dram_utilization"):
                if metric in window.rates:
                    self._job.measure(metric, window.rates[metric], "mean", place=place)

    def _judged(self, matrix: torch.Tensor) -> WireVerdict:
        """The window's wire against the ledger's [places, places] bytes over the link."""
        others = matrix - torch.diag(matrix.diagonal())
        sent, received = others.sum(dim=1).tolist(), others.sum(dim=0).tolist()
        return judge_wire(self._windows, sent, received, self._drift, self._job.cell.link, self._bounds)

    def _calibrate(self) -> None:
        self.begin()
        if self._ranks.rank == 0:
            time.sleep(IDLE_SECONDS)
        self.end()
        if self._nvml is not None:
            self._drift = [Drift.of(window) for window in self._windows]
        if len(self._gpus) < 2 or len(self._gpus) != len(self._places):
            return
        rows = KNOWN_BYTES // _ROW // (len(self._places) - 1)
        self._exchange_known(rows, 1)  # Sets connections up, which has traffic of its own.
        self.begin()
        start = time.perf_counter()
        moved = self._exchange_known(rows, KNOWN_TIMES)
        for device in self._devices:
            synchronize(device)
        seconds = self._ranks.slowest(time.perf_counter() - start)
        self.end()
        self._job.measure("link_bandwidth", moved * (len(self._places) - 1) / seconds, "mean")
        if self._nvml is not None:
            places = len(self._places)
            verdict = self._judged(torch.full((places, places), moved, dtype=torch.int64))
            if verdict.ratio is not None:
                self._job.measure("wire_over_ledger", verdict.ratio, "sum", stage="calibration")
            if verdict.problem is not None:
                self._job.invalid = f"calibration: {verdict.problem}"

    def _exchange_known(self, rows: int, times: int) -> int:
        """Every place sends every other that many rows so many times; the bytes from one to another."""
        if len(self._devices) > 1:
            pairs = [
                (
                    torch.zeros((rows, _ROW), dtype=torch.uint8, device=a),
                    torch.empty((rows, _ROW), dtype=torch.uint8, device=b),
                )
                for a, b in permutations(self._devices, 2)
            ]
            for _ in range(times):
                for source, target in pairs:
                    target.copy_(source, non_blocking=True)
            return rows * _ROW * times
        ranks, rank = self._ranks.ranks, self._ranks.rank
        counts = [0 if other == rank else rows for other in range(ranks)]
        comm = self._ranks.comm
        sent = torch.zeros((rows * (ranks - 1), _ROW), dtype=torch.uint8, device=comm.device)
        with comm.off_the_record():
            for _ in range(times):
                comm.exchange("calibration", sent, counts, counts).wait()
        return rows * _ROW * times

    def _meet(self) -> None:
        for device in self._devices:
            synchronize(device)
        self._ranks.barrier()

    def _uuids(self, devices: Sequence[torch.device]) -> list[str]:
        """UUIDs of all ranks' devices, by place."""
        texts = [cuda_uuid(device).encode().ljust(_UUID_BYTES, b"\0") for device in devices]
        rows = torch.tensor([list(text) for text in texts], dtype=torch.uint8)
        every = self._ranks.by_rank(rows).reshape(-1, _UUID_BYTES)
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in every]
