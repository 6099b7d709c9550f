"""Where the one table lies, what an inbox keeps, and how places run side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cuda_src.layout import RECORD
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace
from strategies.unified.arenas import Streams
from strategies.unified.info import MEBIBYTE, ROW_BYTES, UnifiedOptions
from strategies.unified.placement import rows_of, spans_of
from strategies.unified.push import Addressed, Route


class Inboxed:
    """What `Route` needs of an arena."""

    def __init__(self) -> None:
        self.works = [Workspace()]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 400),
    st.integers(1, 8),
    st.integers(ROW_BYTES, 40 * ROW_BYTES),
    st.sampled_from(["round_robin", "striped"]),
)
def test_every_row_lies_on_one_place_and_round_robin_follows_its_first_byte(count, places, stripe, placement):
    options = UnifiedOptions(placement=placement, stripe_bytes=stripe)
    spans = [spans_of(options, count, place, places) for place in range(places)]
    rows = [rows_of(of_place) for of_place in spans]
    assert torch.cat(rows).sort().values.tolist() == list(range(count))
    for place, of_place in enumerate(rows):
        assert torch.equal(of_place, of_place.sort().values)
        assert all(span.count > 0 for span in spans[place])
        if placement == "round_robin":
            assert all(row * ROW_BYTES // stripe % places == place for row in of_place.tolist())
    if placement == "striped":
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
        assert all(len(of_place) <= 1 for of_place in spans)


def test_a_stripe_of_two_mebibytes_holds_8886_rows_and_a_part_of_one():
    first, second = (spans_of(UnifiedOptions(), 20_000, place, 2) for place in range(2))
    assert [(s.offset, s.count) for s in first] == [(0, 8887), (17773, 2227)]
    assert [(s.offset, s.count) for s in second] == [(8887, 8886)]
    assert 8886 * ROW_BYTES < 2 * MEBIBYTE < 8887 * ROW_BYTES


@pytest.mark.parametrize("options", [{"stripe_bytes": ROW_BYTES - 1}, {"record": 44}, {"exchange": "pull"}])
def test_options_outside_the_mechanism_are_refused(options):
    with pytest.raises(ValidationError):
        UnifiedOptions(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("record", [48, 64])
def test_an_inbox_keeps_every_bit_of_records_and_rows(dtype, record):
    """Rows whose bits read as not-a-number, infinity or a negative integer come out as they went in."""
    rows = torch.tensor([0, 1, 2**31 - 1, 2**31, 0x7FC00000, 0x7F800001, 0xFF800000, 2**32 - 1])
    records = torch.randn(len(rows), RECORD, dtype=dtype, generator=torch.Generator().manual_seed(0))
    half = torch.arange(4)
    owners = [
        Addressed([Splats(half, rows[:4], records[:4])], [[half[:1], half[1:]]], [[1, 3]]),
        Addressed([Splats(half, rows[4:], records[4:])], [[half, half[2:2]]], [[4, 0]]),
    ]
    route = Route.reserve(owners, [Inboxed(), Inboxed()], record, dtype)
    for source in (0, 1):
        route.store(source)
    kernels = KernelSet("reference", precision="float64" if dtype == torch.float64 else "float32")
    first, second = (route.received(0, place, kernels, Workspace()) for place in (0, 1))
    assert first.ids.tolist() == [rows[0], *rows[4:]]
    assert second.ids.tolist() == rows[1:4].tolist()
    assert [route.instances(0, place) for place in (0, 1)] == [5, 3]
    assert torch.equal(first.records, torch.cat([records[:1], records[4:]]))
    assert torch.equal(second.records, records[1:4])
    assert route.stored_bytes == ([[64, 192], [256, 0]] if record == 64 else [[64, 160], [224, 0]])


def test_a_stream_is_one_thread_that_runs_what_is_launched_in_order():
    ran: dict[str, list[tuple[int, int]]] = {"a": [], "b": [], "c": []}
    streams = Streams(list(ran))
    gate = threading.Event()

    def work(step: int, place: str) -> str:
        if step == 0:
            gate.wait(10)
        ran[place].append((step, threading.get_ident()))
        return f"{place}{step}"

    launched = [streams.launch(lambda place, step=step: work(step, place)) for step in range(3)]
    assert not any(future.done() for futures in launched for future in futures)
    gate.set()
    assert [streams.join(futures) for futures in launched] == [[f"{p}{step}" for p in "abc"] for step in range(3)]
    assert all([step for step, _ in of_place] == [0, 1, 2] for of_place in ran.values())
    threads = [{thread for _, thread in of_place} for of_place in ran.values()]
    assert all(len(of_place) == 1 for of_place in threads)
    assert len(set.union(*threads)) == 3


def test_on_gpus_the_caller_queues_each_place_with_its_gpu_as_the_current_one(monkeypatch):
    """Two places share a GPU; what one place failed at does not keep the others from theirs."""
    current, waited, here = [9], [], threading.get_ident()

    @contextmanager
    def device(gpu: int) -> Iterator[None]:
        current.append(gpu)
        try:
            yield
        finally:
            current.pop()

    def stream(gpu: int) -> SimpleNamespace:
        return SimpleNamespace(record_event=lambda: f"end of {gpu}", wait_event=lambda end: waited.append((gpu, end)))

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    streams = Streams("abc", [torch.device("cuda", gpu) for gpu in (1, 1, 4)])
    ran = []

    def work(place: str) -> str:
        ran.append((place, current[-1], threading.get_ident()))
        if place == "b":
            raise RuntimeError("b cannot")
        return place

    with pytest.raises(RuntimeError, match="b cannot"):
        streams.join(streams.launch(work))
    assert ran == [("a", 1, here), ("b", 1, here), ("c", 4, here)]
    assert waited == []
    assert streams.join(streams.launch(str.upper)) == ["A", "B", "C"]
    assert waited == [(4, "end of 1"), (1, "end of 4")]
    assert current == [9]


def test_join_waits_for_every_place_before_it_raises_the_first_ones_exception():
    finished = []
    gate = threading.Event()

    def work(place: int) -> None:
        if place == 2:
            gate.wait(10)
            finished.append(place)
        else:
            gate.set()
            raise RuntimeError(f"place {place}")

    streams = Streams([0, 1, 2])
    with pytest.raises(RuntimeError, match="place 0"):
        streams.join(streams.launch(work))
    assert finished == [2]
