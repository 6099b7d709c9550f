"""L1 + SSIM of an image, or of its rows as they become known.

`windowed_loss` gives the loss of a window (`LossWindow`) as an object that is told how far down the image is known
and fills in the gradient as far as it is settled: the operator tells it once, a fused raster row by row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from cuda_src.camera import TILE
from cuda_src.operators import LOSS_BLOCK, WHOLE_IMAGE, Halo, KernelSet, Loss, LossWindow
from cuda_src.portable.arrays import array
from cuda_src.portable.loss_blocks import BLOCK_SCRATCH, block_losses
from cuda_src.portable.loss_rows import (
    AVERAGES,
    COLUMNS,
    DERIVATIVES,
    PAD,
    average_rows,
    differentiate_rows,
    gradient_rows,
    l1_rows,
    needed_spans,
)
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import f32
from cuda_src.portable.scalar_loss import REACH
from cuda_src.portable.threads import even_ranges, run_ranges
from cuda_src.workspace import Workspace


@dataclass(frozen=True)
class Strip:
    """Rows of the image from `top`, a multiple of 16, on: values and their gradient, each [rows, 3 W] float32."""

    top: int
    image: np.ndarray
    gradient: np.ndarray


@dataclass(frozen=True)
class Truth:
    """What an image is compared with. target: [H, 3 W] uint8. mask: [H, W] uint8, or [1, 1] and not `masked`.

    listed: [tiles_y, tiles_x] uint8, not zero where a tile counts.
    """

    target: np.ndarray
    mask: np.ndarray
    masked: bool
    listed: np.ndarray

    @property
    def height(self) -> int:
        return self.target.shape[0]

    @property
    def width(self) -> int:
        return self.target.shape[1] // 3

    def rows(self, top: int, end: int) -> tuple[np.ndarray, np.ndarray, bool, np.ndarray]:
        """Target, mask, masked and listed tiles of those rows, as loops take them."""
        mask = self.mask[top:end] if self.masked else self.mask
        return self.target[top:end], mask, self.masked, self.listed[top // TILE :]


class WindowedLoss(ABC):
    """The loss of an image whose rows become known from the top; `ready` rows have their gradient.

    totals: [n, 2] float32, weighted sums of L1 and SSIM that add up to the listed tiles'.
    """

    totals: torch.Tensor

    def __init__(self, truth: Truth, threads: int, ssim_weight: float):
        self.truth, self.threads, self.ssim_weight = truth, threads, ssim_weight
        self.ready = 0
        values = 3 * truth.height * truth.width
        self.scales = f32((1 - ssim_weight) / values), f32(-ssim_weight / values)

    @abstractmethod
    def advance(self, strip: Strip, end: int) -> None:
        """Rows up to `end` of the image are known; the strip holds those from the first one not ready on."""

    def slide(self, rows: int) -> None:
        """The next strip begins so many rows further down."""
        return

    def loss(self, gradient: torch.Tensor) -> Loss:
        """The finished loss; gradient as it was filled in."""
        truth = self.truth
        height, width = truth.height, truth.width
        l1, similarity = (self.totals.sum(dim=0, dtype=torch.float64) / (3 * height * width)).unbind()
        pixels = np.repeat(np.repeat(truth.listed, TILE, axis=0), TILE, axis=1)[:height, :width]
        weight = (pixels * truth.mask.astype(np.int64)).sum() / 255 if truth.masked else pixels.sum()
        share = float(weight) / (height * width)
        value = (1 - self.ssim_weight) * l1 + self.ssim_weight * (share - similarity)
        return Loss(value.float(), l1.float(), similarity.float(), gradient)

    def _ranges(self, rows: int) -> list[tuple[int, int]]:
        return even_ranges(max(0, rows), self.threads, least=8)


class ExactLoss(WindowedLoss):
    """Windows see the whole image: 10 rows below must be known before a row is ready.

    cut: only listed tiles count as image. capacity: rows that a strip holds at most.
    """

    def __init__(self, truth: Truth, threads: int, ssim_weight: float, cut: bool, capacity: int, workspace: Workspace):
        super().__init__(truth, threads, ssim_weight)
        self._cut = cut
        self._spans = needed_spans(truth.listed, truth.height, truth.width, not cut)
        chunks = len(self._ranges(capacity + 2 * REACH))
        values = 3 * truth.width
        self._scratch = workspace.take("loss.rows", (chunks, 5, values + 2 * PAD)).numpy()
        self._sums = workspace.take("loss.sums", (chunks, AVERAGES * COLUMNS)).numpy()
        self._planes = workspace.take("loss.averages", (AVERAGES, capacity + 2 * REACH, values)).numpy()
        self._derivatives = workspace.take("loss.derivatives", (DERIVATIVES, capacity + 2 * REACH, values)).numpy()
        self.totals = workspace.zeros("loss.totals", (truth.height, 2))
        # Rows 5 above and below the image have averages (of nothing) and derivatives (zero) too.
        self._averaged = self._differentiated = -REACH

    def slide(self, rows: int) -> None:
        for planes in (self._planes, self._derivatives):
            planes[:, :-rows] = planes[:, rows:]

    def advance(self, strip: Strip, end: int) -> None:
        top, last = strip.top, end == self.truth.height
        target, mask, masked, listed = self.truth.rows(top, end)
        image, spans, totals = strip.image[: end - top], self._spans, self.totals.numpy()[top:]
        averages, maps, blurred = spans.averages[top:], spans.maps[top:], spans.blurred[top:]
        planes, derivatives = self._planes, self._derivatives

        first, averaged = self._averaged - top + REACH, end + REACH if last else end

        def average(chunk: int, lo: int, hi: int) -> None:
            rows = first + lo, first + hi
            average_rows(*rows, image, target, listed, self._cut, averages, self._scratch[chunk], planes)

        run_ranges(self.threads, self._ranges(averaged - self._averaged), average)
        self._averaged = averaged
        start, differentiated = self._differentiated - top + REACH, end + REACH if last else end - REACH

        def differentiate(chunk: int, lo: int, hi: int) -> None:
            scratch = self._scratch[chunk], self._sums[chunk]
            truth = image, target, mask, masked, listed
            differentiate_rows(
                start + lo, start + hi, *truth, self._cut, maps, blurred, *scratch, planes, derivatives, totals
            )

        run_ranges(self.threads, self._ranges(differentiated - self._differentiated), differentiate)
        self._differentiated = differentiated
        ready, settled = self.ready - top, end if last else max(0, end - 2 * REACH)

        def chain(chunk: int, lo: int, hi: int) -> None:
            scratch = self._scratch[chunk], self._sums[chunk]
            truth = image, target, mask, masked, listed
            gradient_rows(ready + lo, ready + hi, *truth, derivatives, *scratch, *self.scales, strip.gradient)

        run_ranges(self.threads, self._ranges(settled - self.ready), chain)
        self.ready = settled


class BlockLoss(WindowedLoss):
    """Windows see their own block of 32 x 32: a block is done when its last row is known."""

    def __init__(self, truth: Truth, threads: int, ssim_weight: float, offset: tuple[int, int], workspace: Workspace):
        super().__init__(truth, threads, ssim_weight)
        self._rows = _block_edges(truth.height, offset[1])
        self._columns = np.array(_block_edges(truth.width, offset[0]))
        down, across = len(self._rows) - 1, len(self._columns) - 1
        self._across = even_ranges(across, threads, least=1)
        self._scratch = workspace.take("loss.blocks", (len(self._across), BLOCK_SCRATCH)).numpy()
        self.totals = workspace.zeros("loss.block_totals", (down * across, 2))
        self._done = 0

    def advance(self, strip: Strip, end: int) -> None:
        truth = self.truth.rows(strip.top, end)
        while self._done < len(self._rows) - 1 and self._rows[self._done + 1] <= end:
            self._row_of_blocks(strip, truth)
            self._done += 1
        self.ready = self._rows[self._done]

    def _row_of_blocks(self, strip: Strip, truth: tuple[np.ndarray, np.ndarray, bool, np.ndarray]) -> None:
        lower, upper = (edge - strip.top for edge in self._rows[self._done : self._done + 2])
        across = len(self._columns) - 1
        totals = self.totals.numpy()[self._done * across : (self._done + 1) * across]

        def work(chunk: int, lo: int, hi: int) -> None:
            scratch = self._scratch[chunk]
            block_losses(
                lo, hi, lower, upper, self._columns, strip.image, *truth, scratch, *self.scales, strip.gradient, totals
            )

        run_ranges(self.threads, self._across, work)


class L1Loss(WindowedLoss):
    """No window: a row is ready when it is known."""

    def __init__(self, truth: Truth, threads: int, workspace: Workspace):
        super().__init__(truth, threads, 0.0)
        self._weights = workspace.take("loss.weights", (threads * 4, 3 * truth.width)).numpy()
        self.totals = workspace.zeros("loss.totals", (truth.height, 2))

    def advance(self, strip: Strip, end: int) -> None:
        first = self.ready - strip.top
        truth = self.truth.rows(strip.top, end)
        totals = self.totals.numpy()[strip.top :]

        def work(chunk: int, lo: int, hi: int) -> None:
            rows, weights = (first + lo, first + hi), self._weights[chunk]
            l1_rows(*rows, strip.image, *truth, weights, self.scales[0], strip.gradient, totals)

        run_ranges(self.threads, self._ranges(end - self.ready), work)
        self.ready = end


def _block_edges(size: int, offset: int) -> list[int]:
    """Borders of blocks along one axis of the image: 0, multiples of 32 less the offset, the size."""
    return [0, *range(LOSS_BLOCK - offset % LOSS_BLOCK, size, LOSS_BLOCK), size]


def windowed_loss(
    kernels: KernelSet,
    target: torch.Tensor,
    workspace: Workspace,
    mask: torch.Tensor | None,
    tiles: torch.Tensor | None,
    halo: Halo,
    ssim_weight: float,
    window: LossWindow,
    capacity: int,
) -> WindowedLoss:
    """The loss of that window; capacity: rows that a strip holds at most. Arguments as of `l1_ssim`."""
    height, width = target.shape[:2]
    grid = (-(-height // TILE), -(-width // TILE))
    inside = workspace.take("loss.inside", grid, torch.uint8).fill_(1 if tiles is None else 0)
    if tiles is not None:
        inside.view(-1)[tiles.long()] = 1
    no_mask = workspace.zeros("loss.no_mask", (1, 1), torch.uint8)
    truth = Truth(
        array(target).reshape(height, 3 * width),
        array(no_mask if mask is None else mask),
        mask is not None,
        inside.numpy(),
    )
    if window.kind == "l1":
        return L1Loss(truth, kernels.threads, workspace)
    if window.kind == "tile":
        return BlockLoss(truth, kernels.threads, ssim_weight, window.offset, workspace)
    cut = halo == "none" and tiles is not None
    return ExactLoss(truth, kernels.threads, ssim_weight, cut, capacity, workspace)


@by_device
def l1_ssim(
    kernels: KernelSet,
    image: torch.Tensor,
    target: torch.Tensor,
    workspace: Workspace,
    mask: torch.Tensor | None,
    tiles: torch.Tensor | None,
    halo: Halo,
    ssim_weight: float,
    window: LossWindow = WHOLE_IMAGE,
) -> Loss:
    """See `cuda_src.operators.l1_ssim`."""
    height, width = target.shape[:2]
    gradient = (workspace.take if tiles is None else workspace.zeros)("loss.gradient", (height, width, 3))
    whole = Strip(0, array(image).reshape(height, 3 * width), gradient.view(height, 3 * width).numpy())
    loss = windowed_loss(kernels, target, workspace, mask, tiles, halo, ssim_weight, window, height)
    loss.advance(whole, height)
    return loss.loss(gradient)
