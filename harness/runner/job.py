"""A cell inside its worker process: the scene, the strategy, and what is measured on the way."""

from __future__ import annotations

import json
import resource
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from cuda_src.conventions import CONVENTIONS
from cuda_src.operators import KernelSet
from harness.errors import UserError
from harness.measure import fingerprint
from harness.measure.clock import StageClock
from harness.measure.statistics import median
from harness.records.schema import METRICS, REMARK, Measurement, RecordImage, SceneFacts, WorkerResult
from harness.runner.ranks import Ranks
from harness.runner.result import CELL, write_result
from harness.runner.shared_cores import share_of_cores
from harness.runner.spending import Spending
from harness.runner.whereabouts import Whereabouts
from harness.scenes.held import HeldImages
from harness.scenes.load import load_scene
from harness.scenes.points import PointSource
from harness.scenes.scene import Scene
from harness.suite.cell import Cell
from strategies.base import Context, GaussianSource, Rect, Strategy, World
from strategies.distribution.communicator import Communicator
from strategies.registry import strategy as strategy_info
from strategies.training.config import Training

SAMPLE_COLUMNS = pa.schema(
    [
        ("series", pa.string()),
        ("pass", pa.int64()),
        ("index", pa.int64()),
        ("warmup", pa.bool_()),
        ("images_seen", pa.int64()),
        ("stage", pa.string()),
        ("place", pa.int64()),
        ("peer", pa.int64()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("unit", pa.string()),
    ]
)


@dataclass
class SharedScene:
    """The cell's scene, opened once for all ranks of a process: they take turns, and none of them changes it."""

    scene: Scene | None = None


@dataclass
class Job:
    """One repeat of one cell, in this process. Only rank 0 writes files."""

    folder: Path
    cell: Cell
    ranks: Ranks
    device: torch.device
    kernels: KernelSet
    clock: StageClock
    prepared: Path | None = None
    """Folder whose gaussians.ply replaces the scene's Gaussians."""
    preparation: bool = False
    """Whether others start from what this cell trains, so that it leaves its Gaussians too."""
    invalid: str | None = None
    """Set to the reason when what was measured must not be used."""
    shared: SharedScene = field(default_factory=SharedScene)
    notes: dict[str, str] = field(default_factory=dict)
    """What the record's environment says besides: why something was not measured or not judged."""
    facts: SceneFacts | None = None
    gaussians_hash: str | None = None
    measurements: list[Measurement] = field(default_factory=list)
    images: list[RecordImage] = field(default_factory=list)
    spending: Spending = field(init=False)
    _samples: list[dict[str, Any]] = field(default_factory=list)
    _phases: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spending = Spending(self.ranks)

    @classmethod
    def open(cls, folder: Path, comm: Communicator, whereabouts: Whereabouts, shared: SharedScene | None = None) -> Job:
        """Read cell.json and set this rank up as the cell says. shared: of the ranks in this process."""
        described = json.loads((folder / CELL).read_text())
        cell = Cell.model_validate(described["cell"])
        torch.set_num_threads(cell.threads)
        torch.use_deterministic_algorithms(cell.deterministic)
        device = comm.device
        training = cell.training
        kernels = KernelSet(
            backend=cell.kernels,
            device=device,
            convention=CONVENTIONS[training.convention],
            footprint=training.footprint,
            precision=cell.precision,
            t_stop=training.t_stop,
            threads=cell.threads,
        )
        prepared = Path(described["prepared"]) if described.get("prepared") else None
        clock = StageClock(device, comm.now, whereabouts.enter)
        preparation, shared = described["preparation"], shared or SharedScene()
        return cls(folder, cell, Ranks(comm), device, kernels, clock, prepared, preparation, shared=shared)

    @property
    def leads(self) -> bool:
        return self.ranks.rank == 0

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Of this process: one a place that it drives, each a GPU of its own; several may be the same CPU."""
        places = self.cell.ranks // self.ranks.ranks
        if self.device.type == "cuda" and places > 1:
            return tuple(torch.device("cuda", place) for place in range(places))
        return (self.device,) * places

    def scene(self, from_points: bool) -> tuple[Scene, GaussianSource]:
        """The cell's scene and the Gaussians it starts from: its points, or its ready (or prepared) Gaussians."""
        self.phase("loading the scene")
        with self._share_of_cores():
            scene = self.shared.scene = self.shared.scene or self._opened()
        source: GaussianSource | None
        if self.prepared is not None:
            source = scene.gaussians
        elif from_points and self.cell.scene.model is None:
            source = PointSource(scene.points) if scene.points is not None else None
        else:
            source = scene.gaussians or (PointSource(scene.points) if scene.points is not None else None)
        if source is None:
            raise UserError(f"scene {scene.name}: expected initial points or a Gaussian model, found neither")
        if scene.images is None or not scene.train_views:
            raise UserError(f"scene {scene.name}: expected at least two views with images, found {len(scene.cameras)}")
        self.facts = SceneFacts(
            name=scene.name,
            gaussians=source.count,
            views=len(scene.train_views),
            test_views=len(scene.test_views),
            width=scene.cameras[0].width,
            height=scene.cameras[0].height,
            workload_hash=scene.content_hash,
            credit=scene.credit,
            synthetic_stand_in=self.cell.scene.stand_in,
        )
        return scene, source

    def _opened(self) -> Scene:
        """The cell's scene; on a GPU it keeps there what is asked of its images."""
        prepared = None if self.prepared is None else self.prepared / "gaussians.ply"
        scene = load_scene(self.cell.scene, self.cell.size, self.device, prepared)
        if self.device.type == "cuda" and scene.images is not None:
            return replace(scene, images=HeldImages(scene.images, scene.cameras))
        return scene

    def strategy(self, scene: Scene, source: GaussianSource, training: Training, batch: int | None = None) -> Strategy:
        """The cell's strategy, set up with its share of the Gaussians; batch: the cell's own unless given."""
        assert scene.images is not None
        info = strategy_info(self.cell.strategy)
        self.phase("setting up the strategy")
        strategy: Strategy = info.load()()
        world = World(self.ranks.rank, self.ranks.ranks, self.devices, self.cell.ranks)
        options = info.options.model_validate(self.cell.options)
        if remark := info.remark(options, self.cell.ranks):
            self.notes[REMARK] = remark
        with self._share_of_cores():
            context = Context(
                world=world,
                comm=self.ranks.comm,
                kernels=self.kernels,
                clock=self.clock,
                training=training,
                cameras=scene.cameras,
                batch=batch or self.cell.batch,
                seed=self.cell.seed,
                bounds=source.bounds,
                extent=scene.extent,
            )
            strategy.setup(context, source, scene.images, options)
        return strategy

    def _share_of_cores(self) -> AbstractContextManager[None]:
        return share_of_cores(self.device, 1 if self.ranks.one_process else self.ranks.ranks)

    def read_images(self, scene: Scene, views: tuple[int, ...]) -> None:
        """Bring images into the source's cache, so that no clock sees a decoder or the ray caster."""
        assert scene.images is not None
        self.phase("reading images")
        for device in dict.fromkeys(self.devices):
            for view in views:
                scene.images.region(view, Rect.whole(scene.cameras[view]), device)

    def phase(self, text: str) -> None:
        """What comes from here on, until the next; the last one ends with `finish`."""
        self._phases.append((text, time.perf_counter()))
        self._event({"event": "phase", "text": text})

    def progress(self, done: int, total: int, unit: str, views_per_second: float, loss: float | None) -> None:
        self._event(
            {
                "event": "step",
                "done": done,
                "total": total,
                "unit": unit,
                "views_per_second": views_per_second,
                "loss": loss,
            }
        )

    def sample(self, series: str, metric: str, value: float, **keys: Any) -> None:
        """Keep one raw value; keys are those of SAMPLE_COLUMNS."""
        row = {"series": series, "metric": metric, "value": value, "unit": METRICS[metric][0], "warmup": False}
        self._samples.append(row | keys)

    def measure(self, metric: str, value: float, statistic: str = "median", **keys: Any) -> None:
        self.measurements.append(Measurement.of(metric, value, statistic, **keys))

    def seconds(self, metric: str, value: float, statistic: str = "median", **keys: Any) -> None:
        """A time or rate; marked as modelled where the ranks ran one after another."""
        source = "modelled" if self.ranks.modelled else "measured"
        self.measure(metric, value, statistic, source=source, **keys)

    def memory(self, strategy: Strategy) -> None:
        """Peak tensor bytes of every place, peak memory of every process or GPU, and images kept on a GPU."""
        of_rank = torch.tensor(strategy.tensor_bytes, dtype=torch.float64)
        for place, held in enumerate(self.ranks.by_rank(of_rank).flatten().tolist()):
            self.measure("peak_tensor_bytes", held, "max", place=place)
        mapped = strategy.mapped_bytes
        if self.device.type == "cuda" and len(self.devices) > 1:
            for place, device in enumerate(self.devices):
                for metric, value in self._held(device, mapped[place]).items():
                    self.measure(metric, value, "max", place=place)
            return
        for metric, value in self._held(self.device, sum(mapped)).items():
            if self.ranks.one_process:  # It holds all places.
                self.measure(metric, value, "max")
                continue
            for place, of_place in enumerate(self.ranks.each(value)):
                self.measure(metric, of_place, "max", place=place)

    def _held(self, device: torch.device, mapped: int) -> dict[str, float]:
        """Most memory that this process held on the device, and of it the images that are kept there.

        mapped: bytes of the strategy beside PyTorch's allocator.
        """
        if device.type != "cuda":
            return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
        images = None if self.shared.scene is None else self.shared.scene.images
        return {
            "peak_memory_bytes": float(torch.cuda.max_memory_allocated(device) + mapped),
            "image_bytes": float(images.bytes_on(device) if isinstance(images, HeldImages) else 0),
        }

    def traffic(self, steps: int) -> None:
        """The ledger's bytes and the exchange's seconds a step, since the communicator was last cleared."""
        comm = self.ranks.comm
        comm.settle()
        for metric, tables in (("payload_bytes", comm.ledger.payload), ("metadata_bytes", comm.ledger.metadata)):
            for stage, table in tables.items():
                matrix = self.ranks.by_rank(table).sum(dim=0)
                for place, peer in matrix.nonzero().tolist():
                    value = float(matrix[place, peer]) / steps
                    self.measure(metric, value, "mean", stage=stage, place=place, peer=peer)
        for metric, by_stage in (("exposed_seconds", comm.exposed_seconds), ("hidden_seconds", comm.hidden_seconds)):
            for stage, value in by_stage.items():
                self.seconds(metric, self.ranks.slowest(value) / steps, "mean", stage=stage)
        self.measure("collectives", sum(comm.ledger.calls.values()) / steps, "mean")

    def spent(self, steps_a_window: float) -> None:
        """CPU seconds of the median window and kernel launches, a step, since `spending` was last taken."""
        cpu_seconds, launches = self.spending.take()
        self.measure("cpu_seconds", median(cpu_seconds) / steps_a_window)
        self.measure("kernel_launches", sum(launches) / len(launches) / steps_a_window, "mean")

    def statistics(self, strategy: Strategy, keep: bool = True) -> None:
        """What the strategy counted since the last call; keep: as measurements, otherwise it is dropped."""
        with self.ranks.comm.off_the_record():
            counted = strategy.statistics()
        for metric, value in counted.items() if keep else ():
            self.measure(metric, value, "mean")

    def fingerprint(self, strategy: Strategy) -> None:
        """The hash of what all ranks hold, of a cell that is to end with the same bits every time."""
        if self.cell.deterministic:
            digest = fingerprint.shards_digest(strategy.shards())
            self.gaussians_hash = fingerprint.joined(self.ranks.by_rank(fingerprint.as_tensor(digest)))

    def save_image(self, pixels: torch.Tensor, name: str, **facts: Any) -> None:
        """Keep an [H, W, 3] image in [0, 1] or uint8 beside the record."""
        if pixels.dtype != torch.uint8:
            pixels = (pixels.clamp(0, 1) * 255.0 + 0.5).to(torch.uint8)
        file = Path("images") / f"{name}.png"
        (self.folder / "images").mkdir(exist_ok=True)
        Image.fromarray(np.ascontiguousarray(pixels.cpu().numpy())).save(self.folder / file)
        self.images.append(RecordImage(file=file.as_posix(), **facts))

    def finish(self) -> None:
        """Write samples, then the result, then the marker that the runner trusts."""
        self._phase_seconds()
        table = pa.Table.from_pylist(self._samples, schema=SAMPLE_COLUMNS)
        pq.write_table(table, self.folder / "samples.parquet")
        result = WorkerResult(
            status="invalid" if self.invalid else "ok",
            reason=self.invalid,
            engine=self.cell.engine,
            kernels=self.cell.kernels,
            scene=self.facts,
            measurements=self.measurements,
            images=self.images,
            environment={"torch_threads": torch.get_num_threads(), **self.notes},
            gaussians_hash=self.gaussians_hash,
        )
        write_result(self.folder, result)

    def _phase_seconds(self) -> None:
        seconds: dict[str, float] = {}
        ends = [begin for _, begin in self._phases[1:]] + [time.perf_counter()]
        for (text, begin), end in zip(self._phases, ends, strict=True):
            seconds[text] = seconds.get(text, 0.0) + end - begin
        for text, value in seconds.items():
            self.measure("phase_seconds", value, "sum", stage=text)

    def _event(self, event: dict[str, Any]) -> None:
        if self.leads:
            with (self.folder / "progress.jsonl").open("a") as file:
                file.write(json.dumps(event) + "\n")
