"""Records as TensorBoard event files: an optional sink beside the report (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.errors import UserError
from harness.evidence.measured import MeasuredCell, read

CURVES = ("loss", "step_seconds")
"""Samples of training, by images seen."""
QUALITY = ("psnr", "ssim", "lpips")


def write_events(folders: Iterable[Path], out: Path) -> list[Path]:
    """One run of TensorBoard a repeat of each cell with training samples, below `out`; their folders.

    Steps are images seen by the job, so that strategies with other batches lie over one another. UserError without the
    package, or for a folder that is not there.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "tensorboard: the package is not installed; expected it from pip install 'splat-harness[tensorboard]'"
        ) from None
    written = []
    for cell in read(folders):
        for curves, repeat in _curves(cell):
            place = out / f"{cell.label}-{cell.key[0]}-r{repeat}".replace("/", "_")
            with SummaryWriter(str(place)) as writer:
                for metric, points in curves.items():
                    for images, value in points:
                        writer.add_scalar(metric, value, images)
            written.append(place)
    return written


def _curves(cell: MeasuredCell) -> Iterable[tuple[dict[str, list[tuple[int, float]]], int]]:
    """By metric, (images seen, value) of each repeat that has any."""
    from harness.records.load import samples_of

    for folder, record in cell.repeats:
        curves: dict[str, list[tuple[int, float]]] = {}
        frame = samples_of([(folder, record, {})])
        for metric in CURVES:
            rows = frame[(frame["series"] == "training") & (frame["metric"] == metric)].dropna(subset="images_seen")
            if len(rows):
                curves[metric] = [(int(n), float(v)) for n, v in zip(rows["images_seen"], rows["value"], strict=True)]
        for measurement in record.result.measurements if record.result else ():
            if measurement.metric in QUALITY and measurement.images_seen is not None and measurement.place is None:
                curves.setdefault(measurement.metric, []).append((measurement.images_seen, measurement.value))
        if curves:
            yield curves, record.repeat
