"""What the lane tells of exposed and hidden time, on streams whose clocks a test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from strategies.distribution import device_lane
from strategies.distribution.communicator import Terms
from strategies.distribution.device_lane import DeviceLane, Tally
from strategies.distribution.nccl import NcclCommunicator
from strategies.distribution.nccl_peers import Rows

DEVICE = torch.device("cuda", 0)
CYCLES = 1e9
"""Of the pretended device, a second."""


class Stream:
    """A queue of work, of which only the time at which it is done is known: `now`, seconds."""

    cuda_stream = 7

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.now = 0.0

    def wait_event(self, event: Event) -> None:
        self.now = max(self.now, event.at)

    def wait_stream(self, other: Stream) -> None:
        self.now = max(self.now, other.now)


class Event:
    """The moment at which a stream comes to it. past: whether the device has."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at, self.past = 0.0, True

    def record(self, stream: Stream) -> None:
        self.at = stream.now

    def query(self) -> bool:
        return self.past

    def synchronize(self) -> None:
        self.past = True

    def elapsed_time(self, other: Event) -> float:
        if not (self.past and other.past):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (other.at - self.at) * 1e3


class Device:
    """The streams of a pretended GPU; `compute` is the one that computation is queued on."""

    def __init__(self) -> None:
        self.compute = Stream()
        self.current = self.compute

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def sleep(self, cycles: int) -> None:
        self.current.now += cycles / CYCLES

    def works(self, seconds: float) -> None:
        self.current.now += seconds


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    here = Device()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: here.current)
    monkeypatch.setattr(torch.cuda, "stream", here.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", here.set_stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", here.sleep, raising=False)
    monkeypatch.setattr(device_lane, "WATCH_SECONDS", 0.005)
    return here


@pytest.fixture
def lane(gpu: Device) -> Iterator[Callable[..., DeviceLane]]:
    """Makes lanes that end with the test."""
    made: list[DeviceLane] = []

    def make(timeout: float = 60.0, on_silence: Callable[[str], None] = lambda stage: None, pace=None) -> DeviceLane:
        made.append(DeviceLane(DEVICE, timeout, on_silence, pace))
        return made[-1]

    yield make
    for one in made:
        one.close()


def exchange(
    gpu: Device, lane: DeviceLane, tally: Tally, seconds: float, size: int = 0, begins: bool = True, ends: bool = True
) -> device_lane.Crossing:
    crossing = lane.begin(tally, size)
    with gpu.stream(lane.stream):
        gpu.works(seconds)
    crossing.began.past, crossing.ended.past = begins, ends
    lane.end(crossing)
    return crossing


@pytest.mark.parametrize(
    ("beside", "exposed", "hidden"), [(0.0, 5.0, 0.0), (2.0, 3.0, 2.0), (5.0, 0.0, 5.0), (9.0, 0.0, 5.0)]
)
def test_what_runs_beside_work_is_hidden_and_the_rest_exposed(gpu, lane, beside, exposed, hidden):
    here, tally = lane(), Tally("forward", {}, {})
    gpu.works(10.0)
    crossing = exchange(gpu, here, tally, seconds=5.0)
    gpu.works(beside)
    here.join(crossing)
    here.settle()
    assert tally.exposed["forward"] == pytest.approx(exposed)
    assert tally.hidden["forward"] == pytest.approx(hidden)
    assert gpu.compute.now == pytest.approx(10.0 + max(5.0, beside))


@pytest.mark.parametrize(
    ("arrives", "own", "exposed", "there"),
    [(3.0, 5.0, 0.0, 5.0), (5.0, 5.0, 0.0, 6.0), (7.0, 5.0, 2.0, 8.0), (1.0, 0.0, 1.0, 2.0)],
)
def test_what_needs_an_exchange_goes_on_beside_what_does_not(gpu, lane, arrives, own, exposed, there):
    here, tally = lane(), Tally("a", {}, {})
    crossing = exchange(gpu, here, tally, seconds=arrives)
    fork = here.mark()
    gpu.works(own)
    here.go_beside(fork)
    here.join(crossing)
    gpu.works(1.0)
    here.come_back()
    assert gpu.current is gpu.compute
    assert gpu.compute.now == pytest.approx(max(there, own))
    gpu.works(1.0)
    here.join(exchange(gpu, here, tally, seconds=0.0))
    here.settle()
    assert tally.exposed["a"] == pytest.approx(exposed)
    assert tally.hidden["a"] == pytest.approx(arrives - exposed)


def test_waits_beside_that_follow_one_another_count_once(gpu, lane):
    here, tally = lane(), Tally("a", {}, {})
    crossings = [exchange(gpu, here, tally, seconds=seconds) for seconds in (4.0, 2.0)]
    fork = here.mark()
    gpu.works(1.0)
    here.go_beside(fork)
    for crossing in crossings:
        here.join(crossing)
        gpu.works(0.5)
    here.come_back()
    here.settle()
    # From 1 to 4, and from 4.5 to 6.
    assert tally.exposed["a"] == pytest.approx(4.5)
    assert tally.hidden["a"] == pytest.approx(1.5)


def test_a_wait_beside_is_added_up_when_the_computation_has_come_to_it_too(gpu, lane, monkeypatch):
    monkeypatch.setattr(device_lane, "SETTLED_AT", 0)
    here, tally, behind = lane(), Tally("a", {}, {}), []

    class Late(Event):
        """The device is behind with the computation, and not with what goes on beside it."""

        def record(self, stream: Stream) -> None:
            super().record(stream)
            self.past = stream is not gpu.compute
            behind.append(self)

    monkeypatch.setattr(torch.cuda, "Event", Late)
    crossing = exchange(gpu, here, tally, seconds=3.0)
    fork = here.mark()
    gpu.works(1.0)
    here.go_beside(fork)
    here.join(crossing)
    here.come_back()
    assert tally.exposed == {}
    for event in behind:
        event.past = True
    here.join(exchange(gpu, here, tally, seconds=0.0))
    assert tally.exposed["a"] == pytest.approx(2.0)


def test_what_goes_on_beside_waits_for_the_fork(gpu, lane):
    here = lane()
    gpu.works(4.0)
    fork = here.mark()
    here.go_beside(fork)
    gpu.works(1.0)
    here.come_back()
    assert gpu.compute.now == pytest.approx(5.0)


def test_an_exchange_begins_when_what_it_sends_is_computed(gpu, lane):
    here = lane()
    gpu.works(10.0)
    crossing = exchange(gpu, here, Tally("a", {}, {}), seconds=1.0)
    assert (crossing.began.at, crossing.ended.at) == (10.0, 11.0)


def test_two_exchanges_of_a_stage_share_the_wait_for_the_second(gpu, lane):
    here, tally = lane(), Tally("a", {}, {})
    first, second = (exchange(gpu, here, tally, seconds=2.0) for _ in range(2))
    gpu.works(1.0)
    here.join(second)
    here.join(first)
    here.settle()
    assert tally.exposed["a"] == pytest.approx(3.0)
    assert tally.hidden["a"] == pytest.approx(1.0)


@pytest.mark.parametrize(("beside", "took"), [(0.0, 4.0), (3.0, 4.0), (6.0, 6.0)])
def test_a_paced_exchange_ends_no_earlier_than_its_bytes_allow_and_work_goes_on_beside_it(gpu, lane, beside, took):
    here, tally = lane(pace=100.0), Tally("a", {}, {})
    start = gpu.compute.now
    crossing = exchange(gpu, here, tally, seconds=1.0, size=400)
    gpu.works(beside)
    here.join(crossing)
    here.settle()
    assert gpu.compute.now - start == pytest.approx(took)
    assert tally.exposed["a"] + tally.hidden["a"] == pytest.approx(4.0)


def test_paced_exchanges_share_one_link(gpu, lane):
    here, tally = lane(pace=100.0), Tally("a", {}, {})
    start = gpu.compute.now
    both = [exchange(gpu, here, tally, seconds=0.5, size=400) for _ in range(2)]
    for crossing in both:
        here.join(crossing)
    assert gpu.compute.now - start == pytest.approx(8.0)


def test_the_time_for_which_the_device_stands_still_while_the_host_waits_is_exposed(gpu, lane):
    here, tally = lane(), Tally("counts", {}, {})
    with here.standstill(tally):
        gpu.works(2.0)  # Nothing was queued: two seconds pass.
    here.settle()
    assert tally.exposed == {"counts": 2.0}
    assert tally.hidden == {"counts": 0.0}


@pytest.mark.parametrize(("pace", "took"), [(None, 3.0), (100.0, 4.0)])
def test_an_exchange_of_another_library_is_exposed_and_paced_on_the_stream_of_the_computation(gpu, lane, pace, took):
    here, tally = lane(pace=pace), Tally("a", {}, {})
    start = gpu.compute.now
    with here.inline(tally, size=400):
        gpu.works(3.0)
    here.settle()
    assert gpu.compute.now - start == pytest.approx(took)
    assert tally.exposed == {"a": pytest.approx(took)}
    assert tally.hidden == {"a": 0.0}


def test_an_exchange_of_another_library_in_which_the_host_waits_in_vain_is_told_too(gpu, lane):
    told: list[str] = []
    heard = threading.Event()
    here = lane(timeout=0.02, on_silence=lambda stage: (told.append(stage), heard.set()))
    with here.inline(Tally("well", {}, {}), size=0):
        gpu.works(1.0)
    with here.inline(Tally("theirs", {}, {}), size=0):
        assert heard.wait(10.0)
    assert told == ["theirs"]


def test_seconds_are_added_up_on_the_way_so_that_events_do_not_pile_up(gpu, lane, monkeypatch):
    monkeypatch.setattr(device_lane, "SETTLED_AT", 3)
    here, tally = lane(), Tally("a", {}, {})
    for _ in range(10):
        here.join(exchange(gpu, here, tally, seconds=1.0))
    assert tally.exposed["a"] >= 4.0


def test_events_of_what_was_added_up_are_recorded_again(gpu, lane, monkeypatch):
    made: list[Event] = []

    class Counted(Event):
        def __init__(self, enable_timing: bool = False) -> None:
            super().__init__(enable_timing)
            made.append(self)

    monkeypatch.setattr(torch.cuda, "Event", Counted)
    monkeypatch.setattr(device_lane, "SETTLED_AT", 3)
    here, tally = lane(), Tally("a", {}, {})
    for _ in range(50):
        gpu.works(1.0)
        one = exchange(gpu, here, tally, seconds=2.0)
        gpu.works(0.5)
        here.join(one)
    here.settle()
    assert len(made) <= 4 * (3 + 1) + 1
    assert (tally.exposed["a"], tally.hidden["a"]) == (75.0, 25.0)
    one.ended.past = False  # Another exchange's by now.
    assert one.over


def test_an_exchange_that_does_not_end_is_told_once_by_its_stage(gpu, lane):
    told: list[str] = []
    heard = threading.Event()

    def on_silence(stage: str) -> None:
        told.append(stage)
        heard.set()

    here = lane(timeout=0.02, on_silence=on_silence)
    for stage in ("well", "stuck", "behind it"):
        exchange(gpu, here, Tally(stage, {}, {}), seconds=1.0, ends=stage == "well")
    assert heard.wait(10.0)
    assert not heard.clear()
    assert not heard.wait(0.1)
    assert told == ["stuck"]
    states = [{"stage": stage, "bytes": 0, "state": state} for stage, state in (("well", "over"), ("stuck", "begun"))]
    assert here.events() == [*states, {"stage": "behind it", "bytes": 0, "state": "begun"}]


def test_an_exchange_that_has_not_begun_is_not_late(gpu, lane):
    told: list[str] = []
    here = lane(timeout=0.02, on_silence=told.append)
    exchange(gpu, here, Tally("a", {}, {}), seconds=1.0, begins=False, ends=False)
    assert not threading.Event().wait(0.2)
    assert told == []
    assert [event["state"] for event in here.events()] == ["queued"]


class Hosts:
    """A host group whose answers are there when the test says so."""

    def __init__(self) -> None:
        self.coming: Future[torch.Tensor] = Future()

    def exchange(self, stage: str, send: torch.Tensor, to: list[int], back: list[int]) -> Future[torch.Tensor]:
        return self.coming

    def start_ready(self) -> None: ...

    def close(self) -> None: ...


class Peers:
    """NCCL in a pretended lane: what crosses takes 5 s of its stream, and nothing is sent."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.queued: list[tuple[list[Rows], list[Rows]]] = []

    def exchange(self, stream: int, sends: list[Rows], receives: list[Rows]) -> None:
        assert stream == Stream.cuda_stream
        self.queued.append((sends, receives))
        self._gpu.lane.now += 5.0

    def close(self) -> None: ...


@pytest.fixture
def engine(gpu, lane, monkeypatch) -> Callable[[int], NcclCommunicator]:
    """Makes rank 1 of so many, with a pretended lane."""

    def make(ranks: int) -> NcclCommunicator:
        monkeypatch.setattr(dist, "get_rank", lambda: 1)
        monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
        comm = NcclCommunicator(torch.device("cpu"), None, 60.0)
        comm._host, comm._lane, comm._peers = Hosts(), lane(), Peers(gpu)
        gpu.lane = comm._lane.stream
        return comm

    return make


def test_the_lane_and_not_the_computation_waits_for_one_group_of_calls(gpu, engine):
    comm = engine(4)
    sent, into = torch.arange(12.0).view(6, 2), torch.zeros(5, 2)
    terms = Terms(own=True, into=into)
    pending = comm.exchange("a", sent, [1, 2, 0, 3], [2, 2, 1, 0], terms=terms)
    sends = [(0, sent.data_ptr(), 8), (3, sent[3:].data_ptr(), 24)]
    assert comm._peers.queued == [(sends, [(0, into.data_ptr(), 16), (2, into[4:].data_ptr(), 8)])]
    assert gpu.compute.now == 0.0
    gpu.works(2.0)
    assert pending.wait()[2:4].tolist() == sent[1:3].tolist()
    comm.settle()
    assert gpu.compute.now == 5.0
    assert (comm.exposed_seconds, comm.hidden_seconds) == ({"a": 3.0}, {"a": 2.0})
    assert comm.last_exchanges() == [{"stage": "a", "bytes": 32, "state": "over"}]


def test_ranks_between_which_nothing_crosses_make_no_call(gpu, engine):
    comm = engine(2)
    assert len(comm.exchange("a", torch.ones(3, 1), [0, 3], [0, 3], terms=Terms(own=False)).wait()) == 3
    assert comm._peers.queued == []
    assert comm.ledger.calls == {"a": 1}


def test_what_counts_take_behind_all_that_is_queued_is_not_time_of_the_exchange(gpu, engine):
    comm = engine(3)
    coming = comm.counts("forward", torch.ones(3, 2))
    rows = comm.exchange("forward", torch.ones(3, 1), [1] * 3, [1] * 3)
    gpu.works(100.0)  # A step, before anybody looks at the counts.
    comm._host.coming.set_result(torch.ones(3, 2))
    coming.wait()
    rows.wait()
    comm.settle()
    assert comm.exposed_seconds == {"forward counts": 0.0, "forward": 0.0}
    assert comm.hidden_seconds == {"forward counts": 0.0, "forward": 5.0}
