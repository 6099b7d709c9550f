"""Whole cells on GPUs, through the runner: what their counters say beside the ledger, by link."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from harness.evidence.gates import changes
from harness.evidence.measured import read
from harness.records.schema import Record
from harness.records.store import records

SUITE = """\
suite: 1
defaults:
  device: cuda
  strategy: grendel
  scene: {city: anchor_aerial, gaussians: 1e6, views: 16}
  size: [960, 540]
  batch: 2
  repeats: 1
  stop: {noise: 0.5, min_passes: 6, max_seconds: 10}
cases:
"""


def gpus(count: int) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPU{'s' if count > 1 else ''}")


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: str) -> dict[str, Record]:
    """Records by case."""
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SUITE + cases)
    harness.run("s.yaml", out="out")
    return {str(record.cell["name"]): record for _, record in records(tmp_path / "out")}


def values(record: Record, metric: str) -> list[float]:
    assert record.result is not None
    return [m.value for m in record.result.measurements if m.metric == metric and m.stage is None]


@pytest.mark.gpu
def test_a_cell_on_one_gpu_has_energy_and_clocks_and_ranks_that_share_it_their_bytes(tmp_path, monkeypatch):
    gpus(1)
    cases = "  - {name: one, strategy: single}\n  - {name: shared, ranks: 4, engine: virtual}\n"
    cases += "  - {name: boxes, strategy: splaxel, ranks: 4, engine: virtual}\n"
    for record in run(tmp_path, monkeypatch, cases).values():
        # Other tests may use the GPU at the same time, which is a reason of its own.
        assert record.status == "ok" or "foreign process" in (record.reason or "")
        assert values(record, "energy_joules")[0] > 0
        assert values(record, "sm_clock_hertz")[0] > 1e8
        assert values(record, "wire_over_ledger") == []
        assert values(record, "image_bytes") == [14 * 960 * 540 * 3], "of the training views"


@pytest.mark.gpu
def test_sixty_four_ranks_take_turns_on_one_gpu(tmp_path, monkeypatch):
    gpus(1)
    case = "  - {name: many, ranks: 64, engine: virtual, scene: {city: small_aerial, gaussians: 5e4, views: 6}, "
    (record,) = run(tmp_path, monkeypatch, case + "stop: {min_passes: 2, max_seconds: 5}, batch: 1}\n").values()
    assert record.status == "ok" or "foreign process" in (record.reason or ""), record.reason
    assert record.result is not None
    told = record.result.measurements
    assert {m.source for m in told if m.metric == "views_per_second"} == {"modelled"}
    assert {m.place for m in told if m.metric == "peak_tensor_bytes"} == set(range(64))
    assert sum(m.value for m in told if m.metric == "payload_bytes" and m.place != m.peer) > 0
    assert values(record, "gaussians_count") == [50_000]


@pytest.mark.gpu
def test_counts_of_a_gate_whose_gaussians_stay_are_equal_in_every_run(tmp_path, monkeypatch):
    gpus(1)
    settings = "repeats: 2, training: {rate_scale: 0}"
    cases = f"  - {{name: one, strategy: single, {settings}}}\n"
    cases += f"  - {{name: records, ranks: 2, engine: virtual, strategy: bytesplat, {settings}}}\n"
    boxes = "options: {repartition_images: 1000000}"
    cases += f"  - {{name: pixels, ranks: 2, engine: virtual, strategy: splaxel, {boxes}, {settings}}}\n"
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SUITE + cases)
    harness.run("s.yaml", out="out")
    for cell in read([tmp_path / "out"]):
        first, second = (record for _, record in cell.repeats)
        assert (first.status, second.status) == ("ok", "ok"), (first.reason, second.reason)
        assert [str(change) for change in changes(first, second, same_environment=True)] == [], cell.label


@pytest.mark.gpu
def test_the_host_of_one_gpu_is_timed_by_itself(tmp_path, monkeypatch):
    gpus(1)
    cases = "  - {name: one, strategy: single, batch: 1, scene: {city: small_aerial, gaussians: 1e4, views: 10}}\n"
    (record,) = run(tmp_path, monkeypatch, cases).values()
    (host,), (step,) = values(record, "host_seconds"), values(record, "step_seconds")
    assert 0 < host < 10 * step


@pytest.mark.gpu
@pytest.mark.multigpu
def test_the_wire_confirms_the_ledger_on_every_link(tmp_path, monkeypatch):
    gpus(2)
    cases = "".join(f"  - {{name: {link}, ranks: 2, link: '{link}'}}\n" for link in ("native", "host", "paced:0.5"))
    cases += "  - {name: checked, ranks: 2, debug: true}\n"
    # Pixels are few bytes: large views and many passes, so that they are judged.
    cases += "  - {name: pixels, ranks: 2, strategy: splaxel, size: [1920, 1080],\n"
    cases += "     stop: {noise: 0.5, min_passes: 20, max_seconds: 10}}\n"
    found = run(tmp_path, monkeypatch, cases)
    for record in found.values():
        assert record.status == "ok", record.reason
        assert record.result is not None
        assert record.result.engine == "nccl"
        assert record.result.environment["wire"] == "within bounds"
        payload = sum(m.value for m in record.result.measurements if m.metric == "payload_bytes" and m.place != m.peer)
        assert payload > 0
    for name in ("native", "paced:0.5", "pixels"):
        assert values(found[name], "wire_over_ledger")[0] == pytest.approx(1.0, abs=0.05)
    assert values(found["host"], "wire_over_ledger")[0] < 0.01
    assert found["paced:0.5"].result is not None
    uneven = {m.stage: m.value for m in found["native"].result.measurements if m.metric == "stage_imbalance"}
    assert uneven.keys() == {"bin", "raster_forward", "loss", "raster_backward", "region"}
    assert all(1 <= ratio <= 2 for ratio in uneven.values())
    for metric in ("exchange_bandwidth", "all_to_all_bandwidth"):
        told = [m for m in found["native"].result.measurements if m.metric == metric]
        assert {m.stage for m in told} == {"exchange_forward", "exchange_backward"}
        assert all(m.value > 0 for m in told)
    rates = [m for m in found["paced:0.5"].result.measurements if m.metric == "views_per_second"]
    assert rates[0].source == "modelled"
    told = found["paced:0.5"].result.measurements
    sent = sum(m.value for m in told if m.metric == "payload_bytes" and (m.place, m.peer) == (0, 1))
    assert values(found["paced:0.5"], "step_seconds")[0] >= 0.9 * sent / 0.5e9
    assert rates[0].value <= values(found["native"], "views_per_second")[0]


@pytest.mark.gpu
def test_one_process_drives_a_place_on_a_gpu(tmp_path, monkeypatch):
    gpus(1)
    cases = "  - {name: one, strategy: unified}\n  - {name: rows, strategy: unified, kernels: portable}\n"
    found = run(tmp_path, monkeypatch, cases)
    assert found["one"].status == "ok" or "foreign process" in (found["one"].reason or "")
    assert values(found["one"], "views_per_second")[0] > 0
    assert values(found["one"], "peak_memory_bytes")[0] > 708e6, "the table too, which PyTorch has not allocated"
    assert found["rows"].status == "skipped"


@pytest.mark.gpu
@pytest.mark.multigpu
@pytest.mark.parametrize("exchange", ["push", "remote_atomic", "local_reduce"])
def test_the_wire_confirms_the_sectors_of_loads_and_stores(tmp_path, monkeypatch, exchange):
    gpus(2)
    case = f"  - {{name: two, strategy: unified, ranks: 2, options: {{exchange: {exchange}}}}}\n"
    (record,) = run(tmp_path, monkeypatch, case).values()
    assert record.result is not None, record.reason
    assert record.result.engine == "local"
    assert all(of_place > 0.4 * 708e6 for of_place in values(record, "peak_memory_bytes")), "half the table on each"
    assert len(values(record, "peak_memory_bytes")) == 2
    assert 0.85 <= values(record, "wire_over_ledger")[0] <= 1.15
    assert record.status == "ok", record.reason
    assert record.result.environment["wire"] == "within bounds"
