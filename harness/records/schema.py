"""The record of one finished cell, and the fixed names of what is measured.

A record is a folder: record.json (this schema), samples.parquet (raw values), log.txt, and images beside them.
Columns may be added, never renamed; SCHEMA follows semantic versioning: readers accept every record of their
major version.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

SCHEMA = "1.1.0"

REMARK = "remark"
"""Under this key of a result's environment: what readers of its figures must know of how the strategy ran."""

Status = Literal["ok", "failed", "oom", "timeout", "skipped", "invalid"]

METRICS: dict[str, tuple[str, str]] = {
    # name: (unit, meaning)
    "views_per_second": ("1/s", "views of the whole job, trained on or rendered, by its slowest rank"),
    "optimizer_steps_per_second": ("1/s", "optimizer steps of the whole job"),
    "step_seconds": ("s", "one step, by its slowest rank"),
    "render_seconds": ("s", "one image, forward only, by its slowest rank"),
    "stage_seconds": ("s", "one named stage of a step, all its views together"),
    "stage_imbalance": ("1", "slowest rank over the mean of ranks, step by step, of a stage or of a region's stages"),
    "exposed_seconds": ("s", "exchange that computation waited for"),
    "hidden_seconds": ("s", "exchange that ran beside computation"),
    "cpu_seconds": ("s", "CPU time of a step, of all its processes and threads together"),
    "kernel_launches": (
        "1",
        "calls on kernels of a step, all ranks together: functions of the CUDA library, or operators on a CPU",
    ),
    "phase_seconds": ("s", "wall time of a cell's phase (stage), the start of its processes left out"),
    "host_seconds": ("s", "host time of a step that begins on an idle device: launches and Python"),
    "payload_bytes": ("B", "payload of a step, by stage, source and destination"),
    "metadata_bytes": ("B", "padding, counts and ids of a step"),
    "collectives": ("1", "collective calls of a rank and step"),
    "wire_bytes": ("B", "bytes the interconnect's counters saw"),
    "wire_over_ledger": ("1", "wire bytes over payload and metadata moved by the engine"),
    "link_bandwidth": ("B/s", "what a rank sends in an exchange of known size between all ranks, receiving as much"),
    "exchange_bandwidth": (
        "B/s",
        "what a rank sends others in a step's exchange alone, packing and unpacking included",
    ),
    "all_to_all_bandwidth": ("B/s", "the same rows between the same ranks, by NCCL's own all-to-all"),
    "dram_bytes": ("B", "off-chip memory traffic"),
    "peak_memory_bytes": ("B", "most memory a place held"),
    "peak_tensor_bytes": ("B", "most bytes of tensors a place held: parameters, moments, workspaces"),
    "image_bytes": ("B", "images that a GPU keeps, of its peak memory"),
    "psnr": ("dB", "mean over held-out views"),
    "ssim": ("1", "mean over held-out views"),
    "lpips": ("1", "mean over held-out views"),
    "loss": ("1", "training loss"),
    "visible_gaussians": ("1", "Gaussians with a footprint in a view, mean over views"),
    "tile_instances": ("1", "(tile, splat) pairs of a view, mean over views"),
    "update_cosine": ("1", "cosine between the summed updates of a batched run and of batch 1, by parameter group"),
    "update_length_ratio": ("1", "length of those updates over that of batch 1"),
    "second_moment_ratio": ("1", "second moments times the batch, over those of batch 1"),
    "flip_rate": ("1", "pruned pairs that turned out to matter"),
    "zero_pixel_share": ("1", "pixels of exchanged partial images in which nothing was blended"),
    "region_pixel_share": ("1", "pixels of partial images sent, over whole images from each rank to each other"),
    "saturated_pair_share": ("1", "(pixel, box) pairs of visible regions that masks left out as saturated"),
    "supervised_pixel_share": ("1", "pixels on which a loss was computed, over ranks x pixels"),
    "mask_hit_share": ("1", "of the saturated (pixel, box) pairs, those that a mask had left out already"),
    "mask_age_images": ("1", "images since a pair was left out, mean over pairs left out"),
    "views_together": ("1", "views that ran at once, mean over steps"),
    "zero_gradient_share": ("1", "records whose gradient is exactly zero"),
    "fused_tiles_share": ("1", "tiles that the fused kernel handled"),
    "tiles_in_budget_share": ("1", "tiles whose list fits the budget"),
    "max_gaussians": ("1", "largest count that trained"),
    "energy_joules": ("J", "of all devices over the measured passes"),
    "pcie_bytes": ("B", "bytes a step that a GPU sent over PCIe on `link: host`; a lower bound, as the counter wraps"),
    "sm_clock_hertz": ("Hz", "clock of a GPU's multiprocessors, between the measured passes"),
    "throttled_seconds": ("s", "for which a reason (stage) held a GPU's clock down during the measured passes"),
    "device_errors": ("1", "ECC and link errors (stage) that a GPU counted during the measured passes"),
    "sm_utilization": ("1", "multiprocessors that were busy, by GPM: a rate, not a count"),
    "dram_utilization": ("1", "of the memory's bandwidth, by GPM: a rate, not a count of bytes"),
    "seconds_to_psnr": ("s", "training time to a given quality"),
    "roofline_seconds": ("s", "floor from counted work and measured rates, of an operator (stage) or a whole step"),
    "operator_seconds": ("s", "one call of an operator"),
    "kernel_seconds": ("s", "kernels of one call of an operator, by the profiler, gaps left out"),
    "compulsory_bytes": ("B", "what one call of an operator must move at least, from counted work"),
    "dram_over_compulsory": ("1", "DRAM bytes of an operator over its compulsory bytes, on the profiled view"),
    "l2_bytes": ("B", "traffic of the L2 cache"),
    "l2_reductions": ("1", "requests for reductions that arrived at the L2 cache"),
    "warp_instructions": ("1", "instructions that warps executed"),
    "issue_active": ("1", "share of the cycles of an operator's kernels in which a scheduler issued an instruction"),
    "warps_active": ("1", "share of a multiprocessor's warps that were resident while an operator's kernels ran"),
    "copy_bandwidth": ("B/s", "bytes read and written of a large copy within the device's memory"),
    "issue_rate": ("1/s", "warp instructions that the device can issue at the SM clock of the run"),
    "step_over_floor": ("1", "seconds of a single step over the floor of its own view"),
    "instances_forward": ("1", "tile instances up to where their tile's last pixel ends, mean over views"),
    "instances_backward": ("1", "tile instances up to the last that their tile blends, mean over views"),
    "blended_pairs": ("1", "(pixel, splat) pairs blended in a view, mean over views"),
    "evaluations_forward": ("1", "(8 x 4 px, splat) pairs a view must look at going forward, mean over views"),
    "evaluations_backward": ("1", "(8 x 4 px, splat) pairs a view must look at going back, mean over views"),
    "evaluations_blending": ("1", "(8 x 4 px, splat) pairs of which a pixel blends, mean over views"),
    "cells_forward": ("1", "(4 x 4 px, splat) pairs a view must look at going forward, mean over views"),
    "cells_backward": ("1", "(4 x 4 px, splat) pairs a view must look at going back, mean over views"),
    "active_lanes": ("1", "pixels of 32 that blend in an evaluation of the forward, mean over views"),
    "train_seconds": ("s", "training alone, evaluation and set-up left out"),
    "gaussians_count": ("1", "Gaussians of the model"),
}
"""Every metric's unit and meaning; a measurement with another name is refused."""

COLUMNS = (
    (
        "run, suite, scenario, cell_id, code_id, environment_id, commit, machine, device, engine, link, kernels, "
        "strategy, options, scene, gaussians, width, height, ranks, gpus, batch, seed, repeat, status, reason, "
        "images_seen, stage, place, peer, metric, statistic, source, value, unit, name"
    )
    .replace(" ", "")
    .split(",")
)
"""Columns of `records.load`, the same whatever the scenario. `name` is the case's."""


# A loss or quality that is not a number must stay one: pydantic would write null, which no reader takes back.
_CONFIG = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Frozen(BaseModel):
    model_config = _CONFIG


# With slots: a run holds a hundred thousand of them, and a model takes 1.3 kB for what a dataclass has in 0.3.
@dataclass(slots=True, config=_CONFIG)
class Measurement:
    """One measured value. place and peer: null for the whole job; both set for traffic from place to peer."""

    metric: str
    value: float
    unit: str
    statistic: str = "median"
    """median, mean, sum, max, last, p99, ..."""
    source: Literal["measured", "modelled", "published"] = "measured"
    images_seen: int | None = None
    stage: str | None = None
    place: int | None = None
    peer: int | None = None

    @classmethod
    def of(cls, metric: str, value: float, statistic: str = "median", **keys: Any) -> Measurement:
        """A measurement in the metric's own unit; KeyError for a name that is not in METRICS."""
        return cls(metric=metric, value=float(value), unit=METRICS[metric][0], statistic=statistic, **keys)


class RecordImage(Frozen):
    """A picture beside the record. file: relative to the record's folder. view: the scene's view number."""

    file: str
    kind: Literal["truth", "render", "difference", "initial"]
    view: int
    view_name: str = ""
    images_seen: int | None = None
    psnr: float | None = None
    credit: str = ""


class SceneFacts(Frozen):
    """What a cell ran on. width, height: pixels of the first view. workload_hash: cameras, images and Gaussians."""

    name: str
    gaussians: int
    views: int
    test_views: int
    width: int
    height: int
    workload_hash: str
    credit: str = ""
    synthetic_stand_in: bool = False
    """A CPU-size scene in the place of a larger one; reports mark it."""


class WorkerResult(Frozen):
    """What the worker of a cell leaves in result.json."""

    status: Status
    reason: str | None = None
    engine: str = ""
    kernels: str = ""
    scene: SceneFacts | None = None
    measurements: list[Measurement] = Field(default_factory=list)
    images: list[RecordImage] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)
    gaussians_hash: str | None = None
    """Of a deterministic cell: SHA-256 of its Gaussians and their moments as its last step left them."""


class Record(Frozen):
    """record.json: one repeat of one cell, whatever its status.

    cell: the resolved cell. command: what repeats it, relative paths only. log_tail: last lines of the log when it
    did not end ok.
    """

    schema_version: str = Field(SCHEMA, alias="schema")
    run: str
    suite: str
    cell_id: str
    code_id: str
    environment_id: str
    repeat: int
    commit: str
    machine: str
    gpus: int
    cell: dict[str, Any]
    command: str
    status: Status
    reason: str | None = None
    started: str
    """UTC, ISO 8601."""
    seconds: float
    """Wall time of the cell's processes, start-up included."""
    result: WorkerResult | None = None
    log_tail: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
