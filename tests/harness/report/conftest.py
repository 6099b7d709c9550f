"""Runs fabricated on disk, as the runner would leave them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from harness.records.schema import Measurement, Record, RecordImage, SceneFacts, WorkerResult
from harness.records.store import SAMPLES, write_record
from harness.report.build import build_report
from harness.suite.cell import Cell

STAGES = {
    "project": 0.021,
    "bin": 0.009,
    "raster_forward": 0.034,
    "loss": 0.012,
    "raster_backward": 0.061,
    "project_backward": 0.024,
    "optimize": 0.018,
}
"""Seconds of a made-up step on one rank."""


LONG_NAME = "a name as long as those that options give: codec bitmap, prune hardware, boundary exact, budget 30400"


class Run:
    """A folder of records that grows by one with every call of `add`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.number = 0

    def add(
        self,
        measurements: list[Measurement] | None = None,
        samples: list[dict[str, Any]] | None = None,
        images: dict[str, np.ndarray] | None = None,
        status: str = "ok",
        reason: str | None = None,
        log_tail: list[str] | None = None,
        repeat: int = 0,
        code_id: str = "c0de",
        commit: str = "0123456789ab",
        stand_in: bool = False,
        credit: str = "",
        machine: str = "CPU, Model X, 2 cores",
        engine: str = "local",
        psnr: float | None = None,
        run: str = "run-1",
        environment: dict[str, Any] | None = None,
        **cell: Any,
    ) -> Path:
        """Write one record; keywords beyond the named ones are fields of the cell."""
        self.number += 1
        resolved = Cell.model_validate({"suite": "quickstart", "device": "cpu", "kernels": "portable", **cell})
        spec = resolved.model_dump(mode="json", by_alias=True)
        folder = self.folder / f"record-{self.number:03d}"
        (folder / "images").mkdir(parents=True)
        kept = [self._image(folder, kind, pixels, credit, psnr) for kind, pixels in (images or {}).items()]
        if samples:
            pd.DataFrame(samples).to_parquet(folder / SAMPLES, index=False)
        width, height = resolved.size or (640, 480)
        facts = SceneFacts(
            name=resolved.scene.city or "photos",
            gaussians=resolved.scene.gaussians or 20_000,
            views=24,
            test_views=3,
            width=width,
            height=height,
            workload_hash="feed",
            credit=credit,
            synthetic_stand_in=stand_in,
        )
        result = WorkerResult(
            status=status,
            reason=reason,
            engine=engine,
            kernels=resolved.kernels,
            scene=facts,
            measurements=measurements or [],
            images=kept,
            environment={
                "python": "3.12.1",
                "torch": "2.13.0",
                "gpus": [],
                "memory_bytes": 16_000_000_000,
                "nccl": None,
                **(environment or {}),
            },
        )
        record = Record(
            run=run,
            suite=resolved.suite,
            cell_id=f"{abs(hash_of(spec)):012x}"[:12],
            code_id=code_id,
            environment_id=f"{hash_of(machine):08x}",
            repeat=repeat,
            commit=commit,
            machine=machine,
            gpus=0,
            cell=spec,
            command=f"python -m harness run suites/{resolved.suite}.yaml --only {self.number}",
            status=status,
            reason=reason,
            started=f"2026-11-29T10:{self.number:02d}:00Z",
            seconds=8.25,
            result=None if status == "skipped" else result,
            log_tail=log_tail or [],
        )
        write_record(folder, record)
        return folder

    @staticmethod
    def _image(folder: Path, kind: str, pixels: np.ndarray, credit: str, psnr: float | None) -> RecordImage:
        Image.fromarray(pixels).save(folder / "images" / f"{kind}.png")
        quality = {"initial": 11.25, "render": psnr}.get(kind)
        return RecordImage(
            file=f"images/{kind}.png",
            kind=kind,
            view=8,
            view_name="0008.jpg",
            images_seen=300,
            psnr=quality,
            credit=credit,
        )

    def train(
        self, strategy: str = "single", ranks: int = 1, speed: float = 1.0, psnr: float = 18.5, **keys: Any
    ) -> Path:
        """A cell of scenario `train` that saw 300 images."""
        seed = hash_of(strategy) % 1000 + ranks
        generator = np.random.default_rng(seed)
        seen = np.arange(1, 301)
        loss = 0.08 + 0.3 * np.exp(-seen / 70) + 0.02 * generator.standard_normal(300)
        samples = [
            {
                "series": "training",
                "index": int(i),
                "images_seen": int(i),
                "metric": "loss",
                "value": float(v),
                "unit": "1",
            }
            for i, v in zip(seen, loss, strict=True)
        ]
        step = sum(STAGES.values()) / speed
        of = Measurement.of
        measurements = [
            of("train_seconds", 300 * step, "sum", images_seen=300),
            of("views_per_second", 1 / step, "mean", images_seen=300),
            of("optimizer_steps_per_second", 1 / step, "mean", images_seen=300),
            of("step_seconds", step, "mean", images_seen=300),
            of("gaussians_count", 20_000, "last"),
            of("visible_gaussians", 6_400, "mean"),
            of("tile_instances", 25_000, "mean"),
            *stage_measurements(speed, ranks),
            *memory_measurements(ranks),
        ]
        for images_seen, value in ((0, 11.25), (100, psnr - 2.5), (200, psnr - 0.8), (300, psnr)):
            measurements.append(of("psnr", value, "mean", images_seen=images_seen))
            measurements.append(of("ssim", value / 30, "mean", images_seen=images_seen))
        return self.add(
            **{
                "measurements": measurements,
                "samples": samples,
                "psnr": psnr + 0.4,
                "scenario": "train",
                "strategy": strategy,
                "ranks": ranks,
                "images": pictures(seed),
                "engine": "local" if ranks == 1 else "gloo",
                "size": (320, 240),
                **keys,
            }
        )

    def throughput(
        self, strategy: str = "single", ranks: int = 1, speed: float = 1.0, traffic: float = 1.0, **keys: Any
    ) -> Path:
        """A cell of scenario `throughput`; with engine="virtual" its rate is modelled. traffic: scales its bytes."""
        step = sum(STAGES.values()) / speed
        generator = np.random.default_rng(self.number)
        passes = step * (1 + 0.01 * generator.standard_normal(12))
        samples = [
            {"series": "passes", "pass": i, "warmup": i < 2, "metric": "step_seconds", "value": float(v), "unit": "s"}
            for i, v in enumerate(passes)
        ]
        source = "modelled" if keys.get("engine") == "virtual" else "measured"
        of = Measurement.of
        measurements = [
            of("step_seconds", float(np.median(passes[2:])), source=source),
            of("views_per_second", 1 / float(np.median(passes[2:])), source=source),
            of("visible_gaussians", 6_400, "mean"),
            of("tile_instances", 25_000, "mean"),
            of("optimizer_steps_per_second", 1 / float(np.median(passes[2:])) / keys.get("batch", 1), source=source),
            *stage_measurements(speed, ranks),
            *traffic_measurements(ranks, traffic),
            *memory_measurements(ranks),
        ]
        keys = {"scenario": "throughput", "strategy": strategy, "ranks": ranks, "size": (320, 180), **keys}
        return self.add(measurements, samples, **keys)

    def updates(self, rule: str, batch: int, cosine: float) -> Path:
        """A cell of scenario `updates`; the cosine of the means, of the opacities 0.1 less."""
        of = Measurement.of
        measurements = []
        for group, value in (("mean", cosine), ("opacity", cosine - 0.1)):
            measurements += [
                of("update_cosine", value, "last", stage=group, images_seen=64),
                of("update_length_ratio", 0.9, "last", stage=group, images_seen=64),
                of("second_moment_ratio", 1.1, "last", stage=group, images_seen=64),
            ]
        training = {"batch_rule": rule}
        return self.add(measurements, scenario="updates", strategy="grendel", ranks=4, batch=batch, training=training)

    def kernels(self, kernels: str, seconds: float) -> Path:
        """A cell of scenario `kernels`."""
        of = Measurement.of
        names = (
            "project",
            "bin_splats",
            "raster_forward",
            "l1_ssim",
            "raster_backward",
            "project_backward",
            "adam_rows",
        )
        measurements = [of("operator_seconds", seconds * (i + 1), stage=name) for i, name in enumerate(names)]
        measurements.append(of("step_seconds", 28 * seconds))
        return self.add(measurements, scenario="kernels", kernels=kernels, suite="kernels", size=(320, 240))


def hash_of(value: Any) -> int:
    """The same in every process, unlike `hash`."""
    return zlib.crc32(repr(value).encode())


def stage_measurements(speed: float, ranks: int) -> list[Measurement]:
    of = Measurement.of
    found = [of("stage_seconds", seconds / speed, "mean", stage=stage) for stage, seconds in STAGES.items()]
    if ranks > 1:
        found.insert(1, of("stage_seconds", 0.006, "mean", stage="exchange_forward"))
        found.insert(6, of("stage_seconds", 0.007, "mean", stage="exchange_backward"))
    return found


def traffic_measurements(ranks: int, scale: float = 1.0) -> list[Measurement]:
    """The ledger of a step: forward 2,000 B a route and place, backward half of it, counts; as much stays."""
    of = Measurement.of
    found = [of("collectives", 7.0 if ranks > 1 else 0.0, "mean")]
    for place in range(ranks if ranks > 1 else 0):
        for peer in range(ranks):
            route = {"place": place, "peer": peer}
            found.append(of("payload_bytes", 2000 * scale * (place + 1), "mean", stage="exchange_forward", **route))
            found.append(of("payload_bytes", 1000 * scale * (place + 1), "mean", stage="exchange_backward", **route))
            found.append(of("metadata_bytes", 64, "mean", stage="exchange_forward", **route))
    if ranks > 1:
        found.append(of("exposed_seconds", 0.004, "mean", stage="exchange_forward"))
        found.append(of("hidden_seconds", 0.002, "mean", stage="exchange_forward"))
        found.append(of("exposed_seconds", 0.009, "mean", stage="exchange_backward"))
    return found


def memory_measurements(ranks: int) -> list[Measurement]:
    of = Measurement.of
    return [
        *(of("peak_tensor_bytes", 48e6 / ranks + 1e6 * place, "max", place=place) for place in range(ranks)),
        *(of("peak_memory_bytes", 512e6 + 3e6 * place, "max", place=place) for place in range(ranks)),
    ]


def pictures(seed: int) -> dict[str, np.ndarray]:
    """A truth, what training started from, a render and its difference: [120, 160, 3] uint8."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:120, 0:160]
    truth = np.stack([rows * 2, columns, 255 - rows], axis=-1).astype(np.uint8)
    truth[40:100, 30:70] = (180, 120, 90)
    render = np.clip(truth.astype(int) + generator.normal(0, 12, truth.shape), 0, 255).astype(np.uint8)
    difference = np.abs(render.astype(int) - truth.astype(int)).astype(np.uint8)
    initial = np.where(generator.random((120, 160, 1)) < 0.4, truth, 0).astype(np.uint8)
    return {"truth": truth, "initial": initial, "render": render, "difference": difference}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[[str], Run]:
    return lambda name: Run(tmp_path / name)


@pytest.fixture(scope="session")
def lasting_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Makes a run that several tests look at."""
    return lambda name: Run(tmp_path_factory.mktemp(name) / "run")


@pytest.fixture(scope="session")
def mixed_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """report.html of a run with every scenario and every status, beside the report's other files."""
    run = Run(tmp_path_factory.mktemp("mixed") / "run")
    run.train("single", 1, psnr=18.52, credit="Photos: J. Doe, CC BY 4.0")
    run.train("grendel", 2, speed=1.4, psnr=18.5, name=LONG_NAME)
    run.throughput("single", 1)
    run.throughput("grendel", 4, speed=2.5, engine="virtual")
    for ranks, gaussians in ((2, 10_000), (4, 10_000), (8, 10_000), (4, 20_000), (4, 40_000)):
        scene = {"city": "big_street", "gaussians": gaussians}
        run.throughput("grendel", ranks, speed=ranks**0.8, traffic=gaussians / 10_000, scene=scene)
    for name, speed in (("base", 1.0), ("+codec=bitmap", 1.2), ("+prune=hardware", 1.1), ("all-codec", 1.0)):
        run.throughput("bytesplat", 4, speed=speed, name=name, traffic=1 / speed)
    for name, speed in (("as it stands", 1.0), ("unit row", 0.8)):
        run.throughput("grendel", 2, speed=speed, name=name, engine="virtual")
    run.updates("rows", 4, 0.98)
    run.updates("none", 4, 0.91)
    run.add(
        [Measurement.of("flip_rate", 0.004, "mean"), Measurement.of("views_per_second", 3.0)],
        strategy="splaxel",
        ranks=1,
        size=(320, 180),
    )
    run.kernels("reference", 0.01)
    run.kernels("portable", 0.001)
    run.add(
        status="failed", reason="rank 1 ended", strategy="splaxel", ranks=2, log_tail=["Traceback", "ValueError: 7"]
    )
    run.add(status="oom", reason="out of memory", strategy="splaxel", ranks=4)
    run.add(status="timeout", reason="ran past 60 s", strategy="splaxel", ranks=8)
    run.add(status="invalid", reason="tile instances moved", strategy="unified", ranks=8)
    run.add(status="skipped", reason="needs 4 GPUs, 0 present", strategy="unified", ranks=4)
    return build_report([run.folder], run.folder.parent / "out")
