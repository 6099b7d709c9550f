"""Draws a code word: what one rank sends back to another for one view, dense and as a bitmap.

python -m strategies.bytesplat.draw_codeword strategies/bytesplat/codeword.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.exchange import SENT_GRADIENTS
from cuda_src.workspace import Workspace
from strategies.distribution.codec import nonzero_rows
from strategies.distribution.codec_bits import pack_bits
from strategies.distribution.gaussian_exchange import BACKWARD_BYTES

RECORDS = 56
SENT, ZERO, BIT = "#4477aa", "#dddddd", "#ee6677"
KERNELS = op.KernelSet("reference")


def partial_gradients() -> torch.Tensor:
    """Gradients of the splats of a view of a wall and of what it hides, [RECORDS, SENT_GRADIENTS]."""
    generator = torch.Generator().manual_seed(4)
    parameters = torch.zeros(RECORDS, layout.PARAMETERS)
    parameters[:, layout.MEAN] = torch.randn(RECORDS, 3, generator=generator) * torch.tensor([0.8, 0.5, 0.6])
    parameters[:, layout.LOG_SCALE] = -2.2
    parameters[:, layout.OPACITY_LOGIT] = 1.0
    wall = torch.rand(RECORDS, generator=generator) < 0.3
    parameters[wall, 2] = -1.5
    parameters[wall, layout.LOG_SCALE] = 0.0
    parameters[wall, layout.OPACITY_LOGIT] = 8.0
    pose = np.eye(4)
    pose[2, 3] = 4.0
    camera, work = Camera(96, 64, 70.0, 70.0, 48.0, 32.0, pose), Workspace()
    splats = op.project(KERNELS, parameters, torch.arange(RECORDS), camera, 0, work)
    bins = op.bin_splats(KERNELS, splats, camera, work)
    raster = op.raster_forward(KERNELS, splats, bins, camera, work)
    upstream = torch.randn(64, 96, 3, generator=generator)
    return op.raster_backward(KERNELS, splats, bins, raster, camera, upstream, work)[:, :SENT_GRADIENTS]


def cell(axes: Axes, x: float, y: float, colour: str, width: float = 1.0, height: float = 1.0) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=0.4))


def draw(path: Path) -> None:
    """Write the figure; its format is the file name's."""
    rows = partial_gradients()
    count = len(rows)
    kept = nonzero_rows(rows)
    packed = pack_bits(kept, [count])
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    dense, code = figure.subplots(2, 1, sharex=True)
    for record in range(count):
        for value in range(SENT_GRADIENTS):
            cell(dense, record, value, SENT if rows[record, value] != 0 else ZERO)
    dense.set_ylim(SENT_GRADIENTS, 0)
    dense.set_title(
        f"dense: {count} records x {BACKWARD_BYTES} B = {count * BACKWARD_BYTES} B, "
        f"{count - int(kept.sum())} of them exactly zero (grey)",
        loc="left",
        fontsize=9,
    )
    for byte, value in enumerate(packed.tolist()):
        for bit in range(8):
            if 8 * byte + bit < count:
                cell(code, 8 * byte + bit, 0, BIT if value >> bit & 1 else ZERO)
        code.text(8 * byte + 4, -0.4, f"{value:02x}", ha="center", fontsize=7, family="monospace")
    for place in range(int(kept.sum())):
        for value in range(SENT_GRADIENTS):
            cell(code, place, 2 + value, SENT)
    code.set_ylim(2 + SENT_GRADIENTS, -1.6)
    code.set_title(
        f"bitmap: {len(packed)} B of bits (red: 1) and {int(kept.sum())} records "
        f"= {len(packed) + int(kept.sum()) * BACKWARD_BYTES} B",
        loc="left",
        fontsize=9,
    )
    for axes in (dense, code):
        axes.set_xlim(0, count)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
