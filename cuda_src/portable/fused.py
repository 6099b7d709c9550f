"""Forward, loss and backward of a view in one pass over rows of tiles, which keeps three rows of the image at hand.

F(row r) composites a row of tiles. The loss then fills in its gradient as far down as its windows are complete, and
B(row t) takes every row of tiles whose gradient is: with exact SSIM t = r - 1, since its gradient sees 10 px <= 16;
with blocks that lie across rows of tiles t may be r - 2. So three rows of tiles hold all that lives at once
(ByteSplat's fusion by rows). The same loops run as in the separate operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, Fused, KernelSet, LossWindow, Splats
from cuda_src.portable.arrays import array, optional_map
from cuda_src.portable.compositing import SCRATCH, TILE_COST, composite_tiles, cut_off
from cuda_src.portable.compositing_gradient import background_map, differentiate_tiles
from cuda_src.portable.loss import Strip, WindowedLoss, windowed_loss
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import LARGEST, finite_or_zero, loop
from cuda_src.portable.threads import run_ranges, weighted_ranges
from cuda_src.workspace import Workspace

_ROWS = 3
"""Rows of tiles alive at once."""


@loop
def _compose(colour, transmittance, background, image):
    """Colour over the background, [rows, W, 3] -> [rows, 3 W]."""
    rows, width = transmittance.shape
    for y in range(rows):
        for x in range(width):
            for c in range(3):
                image[y, 3 * x + c] = colour[y, x, c] + transmittance[y, x] * background[c]


@loop
def _add_instances(splat, instances, gradients):
    """Add a row's instances to their splats, tiles ascending: the order in which the separate operator sums them."""
    for i in range(splat.size):
        for k in range(layout.GRADIENT):
            gradients[splat[i], k] += instances[i, k]


@loop
def _clear_non_finite(gradients):
    for v in range(gradients.shape[0]):
        for k in range(layout.GRADIENT):
            gradients[v, k] = finite_or_zero(gradients[v, k])


@loop
def _count_contributors(tiles, tiles_x, first_row, last, contributors):
    height, width = last.shape
    for k in range(tiles.size):
        top, left = (tiles[k] // tiles_x - first_row) * TILE, (tiles[k] % tiles_x) * TILE
        total = 0
        for y in range(top, min(top + TILE, height)):
            for x in range(left, min(left + TILE, width)):
                total += last[y, x]
        contributors[k] = total


@dataclass(frozen=True)
class _Bands:
    """Three rows of tiles of every map that the separate operators hold whole: [48, W, ...] each."""

    colour: np.ndarray
    transmittance: np.ndarray
    depth: np.ndarray
    stopped: np.ndarray
    last: np.ndarray
    stop_depth: np.ndarray
    image: np.ndarray
    gradient: np.ndarray

    @classmethod
    def of(cls, width: int, workspace: Workspace) -> _Bands:
        def band(name: str, columns: tuple[int, ...], dtype: torch.dtype = torch.float32) -> np.ndarray:
            return workspace.take(f"fused.{name}", (_ROWS * TILE, *columns), dtype).numpy()

        return cls(
            band("colour", (width, 3)),
            band("transmittance", (width,)),
            band("depth", (width,)),
            band("stopped", (width,), torch.uint8),
            band("last", (width,), torch.int32),
            band("stop_depth", (width,)),
            band("image", (3 * width,)),
            band("gradient", (3 * width,)),
        )

    def slide(self) -> None:
        """Forget the uppermost row of tiles."""
        for band in (self.transmittance, self.last, self.image, self.gradient):
            band[:-TILE] = band[TILE:]


class _Pass:
    """One view's way down its rows of tiles."""

    def __init__(
        self,
        kernels: KernelSet,
        splats: Splats,
        bins: Bins,
        camera: Camera,
        workspace: Workspace,
        background: torch.Tensor | None,
        loss: WindowedLoss,
    ):
        self._kernels, self._camera, self._workspace, self.loss = kernels, camera, workspace, loss
        self._tiles, self._starts, self._splat = array(bins.tiles), array(bins.starts), array(bins.splat)
        self._records = array(splats.records)
        # Where each row of tiles begins in the list.
        self._rows = np.searchsorted(self._tiles, np.arange(camera.tiles_y + 1) * camera.tiles_x)
        self._background = background_map(background, workspace)
        self.bands = _Bands.of(camera.width, workspace)
        self.gradients = workspace.zeros("fused.gradients", (splats.count, layout.GRADIENT))
        self.contributors = workspace.take("fused.contributors", (len(bins.tiles),), torch.int64)
        longest = max((int(self._instances(r)) for r in range(camera.tiles_y)), default=0)
        self._instance_gradients = workspace.take("fused.instances", (longest, layout.GRADIENT)).numpy()
        self._slot = torch.arange(longest, out=workspace.take("fused.slot", (longest,), torch.int64)).numpy()
        self._absent = optional_map(None, 0.0, "fused.absent", workspace)

    def forward(self, row: int, first_row: int, end: int) -> np.ndarray:
        """F: composite a row of tiles into the bands; its rows of the image, [rows, 3 W]."""
        bands, lo, hi = self.bands, *self._rows[row : row + 2]
        known = end - first_row * TILE
        maps = (
            *optional_map(None, 1.0, "fused.no_start", self._workspace),
            *optional_map(None, 255, "fused.no_subtiles", self._workspace, torch.uint8),
            *self._absent,
        )
        written = (bands.colour, bands.transmittance, bands.depth, bands.stopped, bands.last, bands.stop_depth)
        outputs = tuple(band[:known] for band in written)
        rows = slice((row - first_row) * TILE, known)
        if hi - lo < self._camera.tiles_x:
            for band in outputs:
                band[rows] = 0
        arrays = self._tiles, self._starts, self._splat, self._records
        limits = cut_off(self._kernels)

        def work(scratch: np.ndarray, a: int, b: int) -> None:
            composite_tiles(lo + a, lo + b, first_row, *arrays, scratch, *maps, *limits, *outputs)

        self._spread(lo, hi, work)
        _compose(bands.colour[rows], bands.transmittance[rows], self._background[0], bands.image[rows])
        _count_contributors(
            self._tiles[lo:hi], self._camera.tiles_x, first_row, outputs[4], self.contributors.numpy()[lo:hi]
        )
        return bands.image[rows]

    def backward(self, row: int, first_row: int) -> None:
        """B: the gradient of a row of tiles, added to the splats'."""
        bands, lo, hi = self.bands, *self._rows[row : row + 2]
        known = min(self._camera.height - first_row * TILE, _ROWS * TILE)
        first, count = self._starts[lo], self._instances(row)
        splat, instances = self._splat[first : first + count], self._instance_gradients[:count]
        width = self._camera.width
        upstream = (
            bands.transmittance[:known],
            bands.last[:known],
            bands.gradient[:known].reshape(known, width, 3),
            *self._background,
            *self._absent,
            *self._absent,
            *self._absent,
        )
        alpha_min, alpha_max, _ = cut_off(self._kernels)
        past_clamp = LARGEST if self._kernels.convention.clamp_gradient else alpha_max
        # The row's own numbering of instances, so that their gradients need no more room than the row's.
        arrays = self._tiles[lo:hi], self._starts[lo : hi + 1] - first, splat, self._slot[:count], self._records

        def work(scratch: np.ndarray, a: int, b: int) -> None:
            differentiate_tiles(
                a, b, first_row, *arrays, scratch, *upstream, alpha_min, alpha_max, past_clamp, instances
            )

        self._spread(lo, hi, work)
        _add_instances(splat, instances, self.gradients.numpy())

    def _instances(self, row: int) -> int:
        lo, hi = self._rows[row : row + 2]
        return int(self._starts[hi] - self._starts[lo])

    def _spread(self, lo: int, hi: int, work: Callable[[np.ndarray, int, int], None]) -> None:
        """Call work(scratch, a, b) on ranges of tiles lo + a to lo + b, over the threads."""
        ranges = weighted_ranges(self._starts[lo : hi + 1] - self._starts[lo], TILE_COST, self._kernels.threads)
        scratch = self._workspace.take("raster.scratch", (len(ranges), SCRATCH)).numpy()
        run_ranges(self._kernels.threads, ranges, lambda c, a, b: work(scratch[c], a, b))


@by_device
def raster_fused(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    target: torch.Tensor,
    workspace: Workspace,
    background: torch.Tensor | None,
    mask: torch.Tensor | None,
    ssim_weight: float,
    window: LossWindow,
    image: torch.Tensor | None,
) -> Fused:
    """See `cuda_src.operators.raster_fused`."""
    loss = windowed_loss(
        kernels, target, workspace, mask, bins.tiles, "exact", ssim_weight, window, capacity=_ROWS * TILE
    )
    way = _Pass(kernels, splats, bins, camera, workspace, background, loss)
    first_row = done = 0
    for row in range(camera.tiles_y):
        if row - first_row == _ROWS:
            first_row += 1
            way.bands.slide()
            loss.slide(TILE)
        end = min((row + 1) * TILE, camera.height)
        composed = way.forward(row, first_row, end)
        if image is not None:
            image.view(camera.height, -1).numpy()[row * TILE : end] = composed
        loss.advance(Strip(first_row * TILE, way.bands.image, way.bands.gradient), end)
        while done < camera.tiles_y and min((done + 1) * TILE, camera.height) <= loss.ready:
            way.backward(done, first_row)
            done += 1
    _clear_non_finite(way.gradients.numpy())
    result = loss.loss(way.gradients)
    return Fused(result.value, result.l1, result.ssim, way.gradients, way.contributors)
