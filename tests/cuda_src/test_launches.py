"""Calls of the kernel library from Python, on a stand-in for it: when a call becomes a graph, and what of its end."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

from cuda_src import launches
from cuda_src.compiled import bindings
from cuda_src.compiled.bindings import REPLAYED_FROM, Launch, Queue, ReplayedLaunch

GPU = torch.device("cuda", 0)
STREAM, RECORDING = 5, 6


class Library:
    """Notes what is called on which stream; `fails`: errors by function, or by it and its stream."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.collects: list[bool] = []
        """Whether garbage may be found, at each of the calls."""
        self.graphs = 0
        self.fails: dict[str | tuple[str, int], int] = {}
        self.error_text = lambda code: b"out of luck"
        for name in ("work", "replay", "begin_recording", "end_recording", "forget_recording"):
            setattr(self, name, self._function(name))

    def _function(self, name: str):
        def called(where, *arguments) -> int:
            self.calls.append((name, where.stream if isinstance(where, Queue) else where))
            self.collects.append(gc.isenabled())
            if name == "begin_recording":
                arguments[0]._obj.value = RECORDING
            if name == "end_recording" and not (arguments[0] or name in self.fails):
                self.graphs += 1
                arguments[1]._obj.value = self.graphs
            if name == "forget_recording":
                self.graphs -= 1
            if name == "end_recording" and arguments[0]:
                return arguments[0]
            return self.fails.get((name, self.calls[-1][1]), self.fails.get(name, 0))

        return called

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def library(monkeypatch) -> Library:
    own = Library()
    monkeypatch.setattr(bindings, "library", lambda: own)
    monkeypatch.setattr(bindings, "queue_of", lambda device: Queue(0, STREAM))
    monkeypatch.setattr(bindings, "_FUNCTIONS", {})
    return own


def test_a_launch_calls_its_function_with_the_same_arguments_every_time(library):
    launch, before = Launch("work", GPU, 1, 2.0, None), launches.counted()
    for _ in range(5):
        launch()
    assert library.calls == [("work", STREAM)] * 5
    assert launches.counted() == before + 5


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [None, "begin_recording", "end_recording"])
def test_no_garbage_is_found_while_a_launch_is_recorded(library, collects, fails):
    if not collects:
        gc.disable()
    try:
        library.fails = {} if fails is None else {fails: 1}
        launch = ReplayedLaunch("work", GPU, 1)
        for _ in range(REPLAYED_FROM):
            launch()
        during = [collects and not name.endswith("recording") and where != RECORDING for name, where in library.calls]
        assert library.collects == during
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_a_replayed_launch_is_recorded_once_on_a_stream_of_its_own_and_then_replayed(library):
    launch, before = ReplayedLaunch("work", GPU, 1), launches.counted()
    for _ in range(REPLAYED_FROM - 1):
        launch()
    assert library.calls == [("work", STREAM)] * (REPLAYED_FROM - 1)
    library.calls.clear()
    launch()
    assert library.calls == [
        ("begin_recording", 0), ("work", RECORDING), ("end_recording", RECORDING), ("replay", STREAM)
    ]  # fmt: skip
    library.calls.clear()
    launch()
    assert library.calls == [("replay", STREAM)]
    assert launches.counted() == before + REPLAYED_FROM + 1


def test_a_graph_goes_with_its_launch(library):
    launch = ReplayedLaunch("work", GPU)
    for _ in range(REPLAYED_FROM):
        launch()
    assert library.graphs == 1
    del launch
    gc.collect()
    assert library.graphs == 0


def test_beyond_so_many_graphs_launches_stay_as_they_are(library, monkeypatch):
    monkeypatch.setattr(bindings, "MOST_RECORDED", len(bindings._RECORDED) + 1)
    first, second = ReplayedLaunch("work", GPU), ReplayedLaunch("work", GPU)
    for _ in range(2 * REPLAYED_FROM):
        first(), second()
    assert library.graphs == 1
    assert library.names().count("work") == 3 * REPLAYED_FROM
    assert library.calls[-2:] == [("replay", STREAM), ("work", STREAM)]


@pytest.mark.parametrize("fails", [("work", RECORDING), "begin_recording", "end_recording"])
def test_what_cannot_be_recorded_is_launched_plainly_and_leaves_no_stream_recording(library, fails):
    launch = ReplayedLaunch("work", GPU)
    for _ in range(REPLAYED_FROM - 1):
        launch()
    library.fails[fails] = 700
    for _ in range(3):
        launch()
    names = library.names()
    assert names.count("begin_recording") == 1  # Tried once.
    assert names.count("end_recording") == (fails != "begin_recording")
    assert "replay" not in names
    assert library.calls[-3:] == [("work", STREAM)] * 3
    assert library.graphs == 0


@pytest.mark.parametrize("fails", ["work", "replay"])
def test_an_error_of_the_call_itself_raises(library, fails):
    launch = ReplayedLaunch("work", GPU)
    for _ in range(REPLAYED_FROM - (fails == "work")):
        launch()
    library.fails[fails] = 700
    with pytest.raises(RuntimeError, match=f"{fails}: out of luck"):
        launch()


def test_while_the_caller_records_its_own_stream_launches_are_plain(library):
    launch = ReplayedLaunch("work", GPU)
    for _ in range(REPLAYED_FROM):
        launch()
    library.fails["replay"] = bindings._CALLER_RECORDS
    library.calls.clear()
    launch()
    assert library.calls == [("replay", STREAM), ("work", STREAM)]
    library.fails.clear()
    library.calls.clear()
    launch()
    assert library.calls == [("replay", STREAM)]


def test_structs_given_by_address_stay_alive_as_long_as_the_launch(library):
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int))

    launch = Launch("work", GPU, ctypes.byref(Pair(3, 4)))
    gc.collect()
    assert launch._arguments[0]._obj.b == 4


def test_only_cuda_tensors_are_launched_on(library):
    with pytest.raises(ValueError, match="on CUDA tensors, not on cpu"):
        Launch("work", torch.device("cpu"))
    with pytest.raises(ValueError, match="contiguous CUDA tensor"):
        Launch("work", GPU, torch.zeros(3))
    assert library.calls == []


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1, 0x7F1200000000])
def test_numbers_that_32_bits_do_not_hold_are_refused_and_not_cut_off(library, number):
    with pytest.raises(ValueError, match=f"work: expected 32 bits, got {number}"):
        Launch("work", GPU, number)
