"""Counts that must not change: what is exact, what may round, and how a change is named."""

from __future__ import annotations

import pytest

from harness.evidence.gates import changes
from harness.evidence.measured import read


def both(folder, cell=None, **counts):
    """Records of two sides; the second with other counts."""
    a, b = folder("a"), folder("b")
    a.cell(**cell or {})
    b.cell(counts=counts, **cell or {})
    return tuple(read([side.path])[0].first for side in (a, b))


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ({"payload_bytes": 176_001.0}, "payload_bytes of exchange_forward 176,000 B → 176,001 B"),
        ({"metadata_bytes": None}, "metadata_bytes of exchange_forward 640 B → 0 B (−100 %)"),
        ({"collectives": 8.0}, "collectives 7 → 8 (+14 %)"),
        ({"kernel_launches": 17.0}, "kernel_launches 16 → 17 (+6.2 %)"),
        ({"tile_instances": 4321.25}, "tile_instances 4,321.125 → 4,321.25"),
        ({"peak_tensor_bytes": 1_000_004.0}, "peak_tensor_bytes 1,000,000 B → 1,000,004 B"),
        ({"loss": 0.2325371}, "loss 0.2325361 → 0.2325371"),
        ({"loss": float("nan")}, "loss 0.2325361 → nan"),
        ({"psnr": 16.97}, "psnr 17.27 dB → 16.97 dB (−0.30 dB)"),
        ({"psnr": None}, "psnr is not measured any more"),
    ],
)
def test_every_count_is_a_gate_that_names_what_changed(folder, counts, named):
    (change,) = changes(*both(folder, **counts), same_environment=True)
    assert str(change) == named


def test_a_count_in_which_repeats_of_the_base_differ_may_be_what_they_span(folder):
    sides = {name: folder(name) for name in ("base", "other", "between", "beyond")}
    for side, launches in zip(sides.values(), (7.80, 7.90, 7.85, 8.85), strict=True):
        side.cell(counts={"kernel_launches": launches})
    base, other, between, beyond = (read([side.path])[0].first for side in sides.values())
    assert [str(change) for change in changes(base, between, same_environment=True)] == [
        "kernel_launches 7.8 → 7.85 (+0.6 %)"
    ]
    assert changes(base, between, same_environment=True, repeats=[other]) == []
    (change,) = changes(base, beyond, same_environment=True, repeats=[other])
    assert str(change) == "kernel_launches 7.8 → 8.85 (+13 %)"


def test_equal_records_change_nothing(folder):
    assert changes(*both(folder), same_environment=True) == []


def test_elsewhere_what_floats_decide_may_round_and_what_the_program_decides_may_not(folder):
    rounded = both(folder, tile_instances=4321.2, loss=0.23260, psnr=17.2, payload_bytes=176_010.0)
    assert changes(*rounded, same_environment=False) == []


def test_on_a_gpu_sums_take_another_order_in_every_run_and_launches_do_not(folder):
    gpu = {"device": "cuda", "kernels": "compiled"}
    rounded = both(folder, gpu, tile_instances=4321.2, loss=0.23260, payload_bytes=176_010.0)
    assert changes(*rounded, same_environment=True) == []


def test_on_a_gpu_a_byte_a_record_a_launch_and_quality_still_show(folder):
    gpu = {"device": "cuda", "kernels": "compiled"}
    found = changes(*both(folder, gpu, payload_bytes=180_000.0, kernel_launches=17.0, psnr=17.2), same_environment=True)
    assert [change.metric for change in found] == ["payload_bytes", "kernel_launches", "psnr"]


def test_elsewhere_an_integer_that_no_float_decides_shows_by_one(folder):
    (change,) = changes(*both(folder, metadata_bytes=641.0), same_environment=False)
    assert str(change).startswith("metadata_bytes of exchange_forward 640 B → 641 B")


def test_elsewhere_a_byte_a_record_and_a_collective_still_show(folder):
    found = changes(*both(folder, payload_bytes=180_000.0, collectives=8.0, psnr=16.97), same_environment=False)
    assert [change.metric for change in found] == ["payload_bytes", "collectives", "psnr"]


def test_a_count_that_the_older_version_did_not_take_is_no_change(folder):
    a, b = folder("a"), folder("b")
    a.cell(counts={"kernel_launches": None})
    b.cell()
    records = [read([side.path])[0].first for side in (a, b)]
    assert changes(*records, same_environment=True) == []
