"""What counters of a window mean: judged traffic, throttling, foreign processes, and traces of real machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.measure.nvml_trace import LARGE_BYTES, LARGE_COPIES, Moment, Trace, record, replay
from harness.measure.nvml_window import LOAD_STORE_BOUNDS, Drift, Reading, Window, judge_wire

MIB = 1 << 20
TRACES = sorted(Path(__file__).with_name("traces").glob("*.jsonl"))


def window(seconds: float = 1.0, processes: tuple[int, ...] = (), between=(), **rises: int) -> Window:
    """A window in which those counters rose by so much, from a large value."""
    first = Reading(100.0, dict.fromkeys(rises, 10**15), 1.98e9, 0, processes)
    last = Reading(100.0 + seconds, {name: 10**15 + rise for name, rise in rises.items()}, 1.98e9, 0, processes)
    return Window(first, last, tuple(between))


def wire(sent: int, received: int, **settings) -> Window:
    return window(nvlink_sent=sent, nvlink_received=received, **settings)


IDLE = [Drift(), Drift()]


def test_traffic_that_the_ledger_explains_is_within_bounds():
    verdict = judge_wire(
        [wire(100 * MIB, 200 * MIB), wire(200 * MIB, 100 * MIB)], [100 * MIB, 200 * MIB], [200 * MIB, 100 * MIB], IDLE
    )
    assert (verdict.problem, verdict.unjudged) == (None, None)
    assert verdict.ratio == pytest.approx(1.0)
    assert verdict.sent == (100 * MIB, 200 * MIB)


@pytest.mark.parametrize(("share", "judged_well"), [(0.97, False), (0.981, True), (1.049, True), (1.06, False)])
def test_traffic_outside_the_bounds_names_the_place(share: float, judged_well: bool):
    odd = wire(int(share * 100 * MIB), 100 * MIB)
    verdict = judge_wire([wire(100 * MIB, 100 * MIB), odd], [100 * MIB] * 2, [100 * MIB] * 2, IDLE)
    assert (verdict.problem is None) == judged_well
    if not judged_well:
        assert verdict.problem is not None
        assert "place 1 sent" in verdict.problem


def test_loads_and_stores_have_wider_bounds():
    windows = [wire(110 * MIB, 90 * MIB)] * 2
    ledger = [100 * MIB] * 2
    assert judge_wire(windows, ledger, ledger, IDLE, bounds=LOAD_STORE_BOUNDS).problem is None
    assert judge_wire(windows, ledger, ledger, IDLE).problem is not None


def test_too_little_traffic_is_shown_and_not_judged():
    verdict = judge_wire([wire(30 * MIB, 30 * MIB)] * 2, [10 * MIB] * 2, [10 * MIB] * 2, IDLE)
    assert verdict.ratio == pytest.approx(3.0)
    assert verdict.problem is None
    assert verdict.unjudged is not None
    assert "10 MiB" in verdict.unjudged


def test_without_counters_there_is_no_ratio():
    verdict = judge_wire([window(energy=1)] * 2, [100 * MIB] * 2, [100 * MIB] * 2, IDLE)
    assert (verdict.ratio, verdict.sent, verdict.problem) == (None, (), None)


@given(rate=st.floats(0, 1e9), seconds=st.floats(0.1, 100), moved=st.integers(64 * MIB, 10**12))
@settings(max_examples=25, deadline=None)
def test_what_an_idle_gpu_counts_is_taken_off(rate: float, seconds: float, moved: int):
    idle = Drift.of(wire(int(rate * 0.5), int(2 * rate * 0.5), seconds=0.5))
    seen = wire(moved + int(rate * seconds), moved + int(2 * rate * seconds), seconds=seconds)
    verdict = judge_wire([seen], [moved], [moved], [idle])
    assert verdict.problem is None
    assert verdict.ratio == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("nvlink", "well"), [(MIB // 2, True), (2 * MIB, False)])
def test_on_the_host_link_nvlink_must_be_quiet(nvlink: int, well: bool):
    verdict = judge_wire([wire(nvlink, nvlink)] * 2, [100 * MIB] * 2, [100 * MIB] * 2, IDLE, link="host")
    assert (verdict.problem is None) == well


def test_a_counter_that_ran_backwards_says_nothing_and_a_wrapped_one_a_lower_bound():
    first, last = Reading(0.0, {"energy": 9, "pcie_sent": 4 * 2**30 - 1}), Reading(1.0, {"energy": 3, "pcie_sent": 5})
    assert Window(first, last).delta("energy") is None
    assert Window(first, last).delta("pcie_sent") == 6
    assert Window(first, last).joules is None


def test_a_throttled_window_is_disturbed_and_a_blink_is_not():
    assert window(power=5_000_000, seconds=1.0).disturbance([]) is None
    said = window(hw_thermal=20_000_000, power=1, seconds=1.0).disturbance([])
    assert said is not None
    assert "hw_thermal" in said
    assert "2.0%" in said


def test_errors_of_links_and_memory_disturb_but_corrected_ones_do_not():
    assert window(ecc_corrected=3, link_crc=5).disturbance([]) is None
    assert "1 errors of kind link_replay" in str(window(link_replay=1).disturbance([]))


def test_a_foreign_process_in_the_middle_of_a_window_is_found():
    glance = Reading(100.5, {}, None, 0, (1, 2, 77))
    assert "1 foreign process" in str(window(processes=(1, 2), between=[glance]).disturbance([1, 2]))
    assert window(processes=(1, 2)).disturbance([1, 2]) is None


def test_pids_of_another_namespace_are_told_by_their_number():
    assert window(processes=(901, 902)).foreign([1, 2]) == 0
    assert window(processes=(901, 902, 903)).foreign([1, 2]) == 1
    assert window(processes=()).foreign([1, 2]) == 0


@pytest.mark.parametrize("file", TRACES, ids=lambda file: file.stem)
def test_the_counters_of_a_recorded_machine_are_judged_as_the_known_copies(file: Path):
    trace = replay(file)
    idle = [Drift.of(one) for one in trace.windows("idle")]
    for name in ("large", "small"):
        sent = next(m.sent for m in trace.moments if m.name == name)
        received = [sum(sent) if gpu == 1 else 0 for gpu in range(len(sent))]
        for gpu, (one, drift) in enumerate(zip(trace.windows(name), idle, strict=True)):
            out, back = one.delta("nvlink_sent") or 0, one.delta("nvlink_received") or 0
            assert out - drift.sent * one.seconds == pytest.approx(sent[gpu], rel=0.05, abs=4 * MIB)
            assert back - drift.received * one.seconds == pytest.approx(received[gpu], rel=0.05, abs=4 * MIB)
    large = trace.windows("large")
    assert all(one.joules is not None and one.seconds > 0 for one in large)
    # Each GPU's energy moves some ten times a second: within the 70 ms of an early recording not always.
    assert sum(one.joules or 0.0 for one in large) > 0


def test_a_recording_comes_back_as_it_was(tmp_path: Path):
    moments = (
        Moment("begin", (0, 0), (Reading(1.0, {"energy": 5}, 1e9, 4), Reading(1.0, {"nvlink_sent": 7}))),
        Moment("large", (LARGE_BYTES * LARGE_COPIES, 0), (Reading(2.5, {"energy": 9}), Reading(2.5, {}))),
    )
    trace = Trace(("NVIDIA H200", "NVIDIA H200"), "580.1", moments)
    record(trace, tmp_path / "t.jsonl")
    assert replay(tmp_path / "t.jsonl") == trace


@pytest.mark.parametrize("text", ["", "[]", '{"trace": 2, "gpus": [], "driver": ""}', '{"trace": 1}', "{"])
def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path: Path, text: str):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"t\.jsonl"):
        replay(tmp_path / "t.jsonl")


@pytest.mark.gpu
def test_this_machines_counters_see_a_known_copy(tmp_path: Path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    from harness.measure.nvml_trace import capture

    record(capture(), tmp_path / "here.jsonl")
    test_the_counters_of_a_recorded_machine_are_judged_as_the_known_copies(tmp_path / "here.jsonl")
