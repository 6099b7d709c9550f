"""Floors: the least time in which a device could do an operator's counted work.

    floor = max(compulsory bytes / measured bandwidth, warp instructions / issue rate)

Both sides come from counted work by the formulas of OPERATORS. Bytes are those that must cross the memory bus at least
once: what an operator must read that it did not make itself, and what it must leave behind; what a good kernel keeps in
caches or registers counts once. They go by how data lie (records, bounds of 32 Gaussians, list entries), not by how a
kernel is written. Instructions of compositing do go by that: they are those of our own inner loops, COMPOSITE and
UNCOMPOSITE, over cells of 4 x 4 pixels, a choice of our kernels. Beside such a floor a kernel shows what it spends
around its loop; a better loop, or cells of another shape, would lower the floor itself. Those of the loss are its
windows', whatever the kernel. (Williams et al. 2009, the roofline model, with instruction issue in the place of
floating-point peaks.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cuda_src.layout import BOUND, GRADIENT, GROUP, PARAMETERS, RECORD
from cuda_src.workload import Workload

REAL, ROW_NUMBER, SPLAT_NUMBER, START = 4, 8, 4, 8
"""Bytes of a float32, and of the integers of Splats and Bins."""

ROW = PARAMETERS * REAL
MOVED_ROW = 6 * ROW
"""1416 B: parameters and two moments, read and written."""

CULLED = BOUND * REAL / GROUP
"""1 B: what tells that a Gaussian is not seen is a bound of 32 B around 32 of them."""
SHAPE = 11 * REAL
"""Mean, scales, quaternion and opacity: what a splat's footprint is made of."""
BINNED = 8 * REAL
"""Of a record, what binning needs: mean, conic, opacity, depth, radius."""

ENTRY = 2 * 4
"""A depth and a splat's number, 32 bits each: what a list is sorted by."""

PIXEL_OUT = 3 * REAL + REAL + REAL + 1 + 4 + REAL
"""What `Raster` holds of a pixel: colour, transmittance, depth, stopped, last, stop depth."""
PIXEL_BACK = 3 * REAL + REAL + 4
"""What the backward needs of a pixel: gradient of the colour, transmittance, last."""
PIXEL_LOSS = 3 * REAL + 3 + 3 * REAL
"""Image, 8-bit target, gradient."""

COMPOSITE = 29
"""Warp instructions of the forward an evaluation, two cells side by side: machine code of `composite` has 116 for four
of them. Lists and batches, which a kernel may arrange otherwise, are left out, here and below."""
UNCOMPOSITE = 52
"""Warp instructions of the backward an evaluation of two cells: machine code of `uncomposite` has 142 for four
that blend, and 256 for every 16 to sum their pixels' gradients, a lane a splat, and to add them to the splats."""
LOSS_TAPS = 3 * 11 * 2 * (4 + 3) / 32
"""Warp instructions of SSIM a pixel: 3 colours, 11 taps along 2 axes, 4 windowed sums forward (both images, the sum of
their squares, which SSIM asks for together, and their product) and 3 backward (Wang et al. 2004, with separable
windows), one multiply-add each."""

CELLS_OF_A_WARP = 2


@dataclass(frozen=True)
class Work:
    """A view's counted work, and the SH degree, which decides how much of a row is read."""

    counted: Workload
    sh_degree: int

    @property
    def colour(self) -> int:
        """Bytes of the spherical harmonics that the degree uses."""
        return 3 * REAL * (self.sh_degree + 1) ** 2


@dataclass(frozen=True)
class Demand:
    """What one operator demands of any device. why: of its bytes, one sentence."""

    bytes: Callable[[Work], float]
    why: str
    instructions: Callable[[Work], float] | None = None
    """Warp instructions; None where memory alone is the floor."""


def _project(work: Work) -> float:
    w = work.counted
    seen = SHAPE + work.colour + ROW_NUMBER + RECORD * REAL
    return w.gaussians * CULLED + w.visible * seen


def _bin(work: Work) -> float:
    w = work.counted
    return w.visible * BINNED + w.instances * (2 * ENTRY + SPLAT_NUMBER) + (w.tiles + 1) * START


def _raster_forward(work: Work) -> float:
    w = work.counted
    records = min(w.visible, w.instances_forward) * RECORD * REAL
    return records + w.instances_forward * SPLAT_NUMBER + w.pixels * PIXEL_OUT


def _raster_backward(work: Work) -> float:
    w = work.counted
    records = min(w.visible, w.instances_backward) * RECORD * REAL
    return records + w.instances_backward * SPLAT_NUMBER + w.pixels * PIXEL_BACK + w.visible * GRADIENT * REAL


def _carried(work: Work) -> float:
    """Bytes a splat that carry its gradient to its row: record, gradient, row number."""
    return work.counted.visible * (RECORD * REAL + GRADIENT * REAL + ROW_NUMBER)


OPERATORS: dict[str, Demand] = {
    "project": Demand(
        _project,
        "1 B of every Gaussian, its share of a bound around 32, to cull it; of a visible one its shape and the "
        "harmonics of the degree, and out go its record and row number.",
    ),
    "bin_splats": Demand(
        _bin,
        "32 B of each record; 8 B an instance are written and read once, as lists fit where they are sorted; "
        "out go the lists and where they start.",
    ),
    "raster_forward": Demand(
        _raster_forward,
        "each record once, each list up to where its tile's last pixel ends, and 29 B of pictures a pixel.",
        lambda work: work.counted.cells_forward / CELLS_OF_A_WARP * COMPOSITE,
    ),
    "l1_ssim": Demand(
        lambda work: work.counted.pixels * PIXEL_LOSS,
        "image, target and gradient once.",
        lambda work: work.counted.pixels * LOSS_TAPS,
    ),
    "raster_backward": Demand(
        _raster_backward,
        "each record once, each list up to what its tile blends last, 20 B a pixel, and out go 40 B of gradient a "
        "splat.",
        lambda work: work.counted.cells_backward / CELLS_OF_A_WARP * UNCOMPOSITE,
    ),
    "project_backward": Demand(
        lambda work: _carried(work) + work.counted.visible * (SHAPE + work.colour + ROW),
        "record, gradient and row of a visible Gaussian in, the gradient of its 59 parameters out.",
    ),
    "adam_rows": Demand(
        lambda work: work.counted.visible * (ROW + MOVED_ROW + ROW_NUMBER),
        "the gradient of a visible row, and the row with both moments read and written.",
    ),
    "project_backward_adam": Demand(
        lambda work: _carried(work) + work.counted.visible * MOVED_ROW,
        "record and gradient of a splat, and 1416 B of a visible row: parameters and moments read and written.",
    ),
}
"""Operators in the order of a step; a step has either the last or the two before it."""


@dataclass(frozen=True)
class Rates:
    """What the device was measured to do. bandwidth: bytes/s of a large copy, read and written bytes together.

    issue: warp instructions/s of the whole device; None where there are no warps.
    """

    bandwidth: float
    issue: float | None


def floor_seconds(operator: str, work: Work, rates: Rates) -> float:
    """The floor of one call of the operator on that view."""
    demand = OPERATORS[operator]
    seconds = demand.bytes(work) / rates.bandwidth
    if demand.instructions is not None and rates.issue:
        seconds = max(seconds, demand.instructions(work) / rates.issue)
    return seconds
