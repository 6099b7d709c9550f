"""Workload and memory: what one GPU holds beside its tables, and what is allowed."""

from __future__ import annotations

import pytest

from harness.records.schema import Measurement
from harness.report import drawing, frames
from harness.report.sections import workload

of = Measurement.of
GAUSSIANS, IMAGES = 20_000_000, 99_532_800


def held(peak: float, images: float | None = IMAGES) -> list[Measurement]:
    found = [of("views_per_second", 250.0), of("gaussians_count", GAUSSIANS, "last")]
    found += [of("peak_memory_bytes", peak, "max", place=0), of("peak_tensor_bytes", peak - IMAGES, "max", place=0)]
    return found + ([] if images is None else [of("image_bytes", images, "max", place=0)])


def rows(run) -> dict[str, dict[str, str]]:
    with drawing.style():
        (table,) = [part for part in workload.section(frames.read([run.folder])).parts if part.kind == "table"]
    return {r[0].text: dict(zip(table.columns, (v.text for v in r), strict=True)) for r in table.rows}


@pytest.mark.parametrize(("batch", "allowed"), [(1, "1.69 GB"), (2, "2.11 GB")])
def test_what_one_gpu_holds_beside_tables_and_images_stands_beside_what_is_allowed(run, batch: int, allowed: str):
    run.add(held(708.0 * GAUSSIANS + IMAGES + 1.5e9), size=(1920, 1080), batch=batch)
    (row,) = rows(run).values()
    assert row["beside tables"] == "1.50 GB"
    assert row["allowed"] == allowed


def test_records_without_images_and_cells_of_several_ranks_are_held_to_nothing(run):
    run.add(held(15e9), size=(1920, 1080))
    run.add(held(15e9, images=None), size=(1920, 1080), strategy="gsplat")
    run.add(held(15e9), size=(1920, 1080), strategy="grendel", ranks=2)
    assert [row["allowed"] for row in rows(run).values()] == ["1.69 GB", "–", "–"]
