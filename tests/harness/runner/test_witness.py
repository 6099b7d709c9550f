"""What a cell's record says of its GPUs' counters, with counters that a test moves by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.measure.nvml import NoNvmlError
from harness.measure.nvml_window import Reading
from harness.runner import witness as module
from harness.runner.ranks import Ranks
from harness.runner.witness import Witness
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.virtual import VirtualWorld

MIB = 1 << 20


@dataclass
class Counters:
    """Two GPUs. loss: share of the bytes that the wire sees less."""

    loss: float = 0.0
    seconds: float = 0.0
    pids: tuple[int, ...] = ()
    gpus: list[dict[str, int]] = field(
        default_factory=lambda: [{"nvlink_sent": 0, "nvlink_received": 0, "energy": 0, "power": 0} for _ in range(2)]
    )

    def move(self, source: int, destination: int, size: int) -> None:
        self.gpus[source]["nvlink_sent"] += int(size * (1 - self.loss))
        self.gpus[destination]["nvlink_received"] += int(size * (1 - self.loss))


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    """Counters of two GPUs; every reading is a second and 100 J later."""
    here = Counters()

    class Nvml:
        def __init__(self, uuids: list[str]):
            self.handles = [int(uuid[-1]) for uuid in uuids]

        def read(self) -> tuple[Reading, ...]:
            here.seconds += 1.0
            for gpu in here.gpus:
                gpu["energy"] += 100_000
            return tuple(Reading(here.seconds, dict(here.gpus[g]), 1.98e9, 0, here.pids) for g in self.handles)

    monkeypatch.setattr(module, "Nvml", Nvml)
    monkeypatch.setattr(module, "cuda_uuid", lambda device: f"GPU-{device.index}")
    monkeypatch.setattr(module, "synchronize", lambda device: None)
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)

    class Gpm:
        def __init__(self, handles: list[int]):
            self.count = len(handles)

        def begin(self) -> None: ...

        def end(self) -> list[dict[str, float]]:
            return [{"sm_utilization": 0.5}] * self.count

    monkeypatch.setattr(module, "GpmSampler", Gpm)
    return here


class Job:
    """As much of a job as a witness needs."""

    def __init__(self, comm: Communicator, link: str = "native", gpu: int | None = None):
        self.ranks = Ranks(comm)
        self.device = torch.device("cuda", comm.rank if gpu is None else gpu)
        self.devices = (self.device,)
        self.cell = SimpleNamespace(strategy="grendel", link=link)
        self.notes: dict[str, str] = {}
        self.invalid: str | None = None
        self.measured: dict[tuple[str, Any, Any], float] = {}

    def phase(self, text: str) -> None: ...

    def measure(self, metric: str, value: float, statistic: str = "median", **keys: Any) -> None:
        self.measured[metric, keys.get("place"), keys.get("stage")] = value


def exchange(comm: Communicator, counters: Counters, mib: int) -> None:
    """A payload of so many MiB from each rank to the other, on the wire too; and 1 MiB of counts that go beside it."""
    for table, size, over_link in ((comm.rank, mib, True), (comm.rank, 1, False)):
        comm.ledger.add("exchange", table, [size * MIB] * 2, metadata=not over_link, over_link=over_link)
    counters.move(comm.rank, 1 - comm.rank, mib * MIB)


def run(counters: Counters, mib: int = 100, between=lambda: None, **settings: Any) -> Job:
    """A window with that traffic, of two ranks; rank 0's job."""

    class Calibrated(Witness):
        def _exchange_known(self, rows: int, times: int) -> int:
            counters.move(self._ranks.rank, 1 - self._ranks.rank, rows * 4096 * times)
            time.sleep(0.01)
            return rows * 4096 * times

    def main(comm: Communicator) -> Job:
        job = Job(comm, **settings)
        witness = Calibrated.of(job)
        comm.clear()
        witness.begin()
        exchange(comm, counters, mib)
        if comm.rank == 0:
            between()
        witness.look()
        witness.end()
        witness.report(steps=4)
        return job

    return VirtualWorld(2).run(main)[0]


def test_traffic_energy_and_clocks_of_a_good_window_are_measured(counters):
    job = run(counters)
    assert job.invalid is None
    assert job.notes["wire"] == "within bounds"
    assert job.measured["wire_over_ledger", None, None] == pytest.approx(1.0)
    assert job.measured["wire_over_ledger", None, "calibration"] == pytest.approx(1.0)
    # The known exchange took some 10 ms here.
    known = module.KNOWN_TIMES * module.KNOWN_BYTES
    assert known < job.measured["link_bandwidth", None, None] <= known / 0.01
    assert job.measured["wire_bytes", 0, None] == job.measured["wire_bytes", 1, None] == 25 * MIB
    assert job.measured["energy_joules", None, None] == pytest.approx(2 * 2 * 100)  # Three readings: two intervals.
    assert job.measured["sm_clock_hertz", 1, None] == 1.98e9
    assert job.measured["sm_utilization", 0, None] == 0.5


@pytest.mark.parametrize(("loss", "verdict"), [(0.1, "within bounds"), (0.2, "place")])
def test_one_process_that_drives_two_gpus_is_calibrated_and_judged_as_loads_and_stores_are(counters, loss, verdict):
    class Calibrated(Witness):
        def _exchange_known(self, rows: int, times: int) -> int:
            for source in (0, 1):
                counters.move(source, 1 - source, rows * times * 4096)
            return rows * times * 4096

    comm = LocalCommunicator("cuda:0", places=2)
    job = Job(comm)
    job.devices, job.cell.strategy = (torch.device("cuda", 0), torch.device("cuda", 1)), "unified"
    witness = Calibrated.of(job)
    comm.clear()
    witness.begin()
    counters.loss = loss
    for place in (0, 1):
        comm.ledger.add("exchange_forward", place, [100 * MIB] * 2)
        counters.move(place, 1 - place, 100 * MIB)
    witness.end()
    witness.report(steps=4)
    assert verdict in job.notes["wire"]
    assert (job.invalid is None) == (loss < 0.15)
    assert job.measured["wire_over_ledger", None, "calibration"] == pytest.approx(1.0)
    assert job.measured["wire_over_ledger", None, None] == pytest.approx(1 - loss)


def test_counts_that_cross_from_host_to_host_are_not_expected_on_the_wire(counters):
    assert run(counters).measured["wire_over_ledger", None, None] == pytest.approx(1.0, abs=1e-9)


def test_unexplained_traffic_makes_the_cell_invalid_and_is_shown(counters):
    job = run(counters, between=lambda: counters.move(1, 0, 30 * MIB))
    assert job.invalid is not None
    assert "place" in job.invalid
    assert job.measured["wire_over_ledger", None, None] == pytest.approx(1.15)


def test_counters_that_miss_a_known_copy_make_the_cell_invalid(counters):
    counters.loss = 0.1
    assert (run(counters).invalid or "").startswith("calibration: ")


def test_a_throttled_window_is_invalid_and_says_for_how_long(counters):
    job = run(counters, between=lambda: counters.gpus[1].update(power=10**9))
    assert "power" in (job.invalid or "")
    assert job.measured["throttled_seconds", 1, "power"] == pytest.approx(1.0)
    assert ("throttled_seconds", 0, "power") not in job.measured


def test_errors_are_measured_of_the_kinds_that_a_gpu_counts(counters):
    counters.gpus[1].update(ecc_corrected=7, link_crc=1)
    job = run(counters, between=lambda: counters.gpus[1].update(ecc_corrected=9))
    errors = {key: value for key, value in job.measured.items() if key[0] == "device_errors"}
    assert errors == {("device_errors", 1, "ecc_corrected"): 2, ("device_errors", 1, "link_crc"): 0}
    assert job.invalid is None, "corrected errors cost nothing"


def test_a_foreign_process_makes_the_cell_invalid(counters):
    import os

    counters.pids = (os.getpid(),)
    assert run(counters).invalid is None
    job = run(counters, between=lambda: setattr(counters, "pids", (os.getpid(), 1)))
    assert "foreign process" in (job.invalid or "")


def test_little_traffic_is_shown_and_not_judged(counters):
    job = run(counters, mib=1, between=lambda: counters.move(0, 1, 5 * MIB))
    assert job.invalid is None
    assert "1 MiB a GPU" in job.notes["wire"]
    assert job.measured["wire_over_ledger", None, None] > 3


def test_ranks_that_share_a_gpu_have_energy_and_no_wire(counters):
    job = run(counters, gpu=0)
    assert job.invalid is None
    assert ("wire_bytes", 0, None) not in job.measured
    assert job.measured["energy_joules", None, None] == pytest.approx(200)


def test_without_nvml_the_record_says_so_and_nothing_is_measured_but_the_links_rate(counters, monkeypatch):
    def absent(uuids: list[str]) -> None:
        raise NoNvmlError("no library")

    monkeypatch.setattr(module, "Nvml", absent)
    job = run(counters)
    assert (job.invalid, job.notes) == (None, {"nvml": "no library"})
    assert set(job.measured) == {("link_bandwidth", None, None)}


def test_on_a_cpu_nothing_happens_at_all(counters):
    def main(comm: Communicator) -> Job:
        job = Job(comm)
        job.device = torch.device("cpu")
        witness = Witness.of(job)
        for call in (witness.begin, witness.look, witness.end):
            call()
        witness.report(steps=1)
        return job

    jobs = VirtualWorld(2).run(main)
    assert all((job.invalid, job.measured, job.notes) == (None, {}, {}) for job in jobs)
