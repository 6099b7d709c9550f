"""Alpha compositing of a tile's splats, front to back (Kerbl et al. 2023, eq. 3 and appendix C), and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.reference.binning import rendered_pixels
from cuda_src.workspace import Workspace


@dataclass(frozen=True)
class _Window:
    """A listed tile: its pixels in the image, and its instances in the bins."""

    rows: slice
    columns: slice
    splats: torch.Tensor
    """[n] int64, front to back."""


def _windows(bins: Bins, camera: Camera) -> Iterator[_Window]:
    starts = bins.starts.tolist()
    for k, tile in enumerate(bins.tiles.tolist()):
        top, left = tile // camera.tiles_x * TILE, tile % camera.tiles_x * TILE
        yield _Window(
            slice(top, min(top + TILE, camera.height)),
            slice(left, min(left + TILE, camera.width)),
            bins.splat[starts[k] : starts[k + 1]].long(),
        )


def splat_alphas(kernels: KernelSet, records: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """alpha = min(alpha_max, opacity exp(-sigma)), zero where skipped: [n, RECORD], [P, 2] -> [P, n].

    pixels: centres x, y. The gradient at the cap is zero, or passes, as the convention says.
    """
    convention = kernels.convention
    offset = pixels[:, None, :] - records[None, :, layout.RECORD_MEAN2D]
    dx, dy = offset.unbind(dim=-1)
    a, b, c = records[:, layout.RECORD_CONIC].unbind(dim=1)
    sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    skipped = sigma < 0
    density = records[:, layout.RECORD_OPACITY] * torch.exp(-torch.where(skipped, torch.zeros_like(sigma), sigma))
    alpha = density.clamp(max=convention.alpha_max)
    if convention.clamp_gradient:
        alpha = density + (alpha - density).detach()
    return torch.where(skipped | (alpha < convention.alpha_min), torch.zeros_like(alpha), alpha)


def _blended(kernels: KernelSet, alphas: torch.Tensor, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which instances are blended, [P, n] bool, and which one, if any, stops the pixel, [P, n] bool.

    The first splat that would bring transmittance below the stop is not blended, nor is anything behind it.
    """
    after = start[:, None] * torch.cumprod(1 - alphas, dim=1)
    below = after <= kernels.stop if kernels.convention.stop_inclusive else after < kernels.stop
    # A skipped splat changes nothing, so it cannot be the one that stops (start may lie below the stop already).
    stopping = below & (alphas > 0)
    behind = torch.cumsum(stopping, dim=1)
    return (alphas > 0) & (behind == 0), stopping & (behind == 1)


def _composited(
    records: torch.Tensor, alphas: torch.Tensor, start: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Colour [P, 3], transmittance [P] and depth [P] of the alphas [P, n] that are blended, zero elsewhere."""
    light = start[:, None] * torch.cumprod(torch.cat([torch.ones_like(start)[:, None], 1 - alphas], dim=1), dim=1)
    weights = light[:, :-1] * alphas
    return weights @ records[:, layout.RECORD_COLOUR], light[:, -1], weights @ records[:, layout.RECORD_DEPTH]


def _centres(window: _Window, like: torch.Tensor) -> torch.Tensor:
    """Pixel centres of the window in row-major order, [P, 2]: x, y."""
    y = torch.arange(window.rows.start, window.rows.stop, device=like.device, dtype=like.dtype) + 0.5
    x = torch.arange(window.columns.start, window.columns.stop, device=like.device, dtype=like.dtype) + 0.5
    return torch.stack([x.repeat(len(y)), y.repeat_interleave(len(x))], dim=1)


def _in_range(window: _Window, records: torch.Tensor, depth_range: torch.Tensor | None) -> torch.Tensor:
    """Which of the window's splats exist at which of its pixels, [P or 1, n] bool. records: its own, [n, RECORD]."""
    depth = records[None, :, layout.RECORD_DEPTH]
    if depth_range is None:
        return torch.ones_like(depth, dtype=torch.bool)
    least, end = depth_range[window.rows, window.columns].reshape(-1, 2)[:, :, None].unbind(dim=1)
    return (least <= depth) & (depth < end)


def composite(
    kernels: KernelSet,
    records: torch.Tensor,
    bins: Bins,
    camera: Camera,
    start_transmittance: torch.Tensor | None = None,
    subtiles: torch.Tensor | None = None,
    depth_range: torch.Tensor | None = None,
) -> Raster:
    """The listed tiles, composited; colour, transmittance and depth are differentiable by records and start."""
    size = (camera.height, camera.width)
    colour, transmittance, depth = records.new_zeros(*size, 3), records.new_zeros(size), records.new_zeros(size)
    stopped = torch.zeros(size, dtype=torch.uint8, device=records.device)
    last = torch.zeros(size, dtype=torch.int32, device=records.device)
    stop_depth = records.new_zeros(size)
    start = records.new_ones(size) if start_transmittance is None else start_transmittance.to(records.dtype)
    rendered = None if subtiles is None else rendered_pixels(camera, subtiles)
    for window in _windows(bins, camera):
        at = (window.rows, window.columns)
        shape = start[at].shape
        own, begin = records[window.splats], start[at].reshape(-1)
        seen = _in_range(window, own.detach(), depth_range)
        if rendered is not None:
            seen = seen & rendered[at].reshape(-1, 1)
        alphas = splat_alphas(kernels, own, _centres(window, records)) * seen
        with torch.no_grad():
            blended, stopping = _blended(kernels, alphas, begin)
            # A zero in front, so that no splats at all is no special case.
            order = torch.arange(len(own) + 1, device=records.device)
            last[at] = (F.pad(blended, (1, 0)) * order).amax(dim=1).view(shape).to(torch.int32)
        c, t, d = _composited(own, alphas * blended, begin)
        colour[at], transmittance[at], depth[at] = c.view(*shape, 3), t.view(shape), d.view(shape)
        stops = stopping.any(dim=1)
        nearest = (stopping * own.detach()[:, layout.RECORD_DEPTH]).sum(dim=1)
        stopped[at] = stops.view(shape).to(torch.uint8)
        stop_depth[at] = torch.where(stops, nearest, torch.inf).view(shape)
    return Raster(colour, transmittance, depth, stopped, last, stop_depth)


@torch.no_grad()
def raster_forward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    workspace: Workspace,
    start_transmittance: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_range: torch.Tensor | None,
    background: torch.Tensor | None = None,
) -> Raster:
    records = splats.records.to(kernels.dtype)
    raster = composite(kernels, records, bins, camera, start_transmittance, subtiles, depth_range)
    if background is not None:
        # In tiles that are not listed transmittance is zero.
        raster.colour.add_(raster.transmittance[..., None] * background.to(records))
    return raster


def raster_backward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    raster: Raster,
    camera: Camera,
    grad_colour: torch.Tensor,
    workspace: Workspace,
    background: torch.Tensor | None,
    grad_transmittance: torch.Tensor | None,
    grad_depth: torch.Tensor | None,
    start_transmittance: torch.Tensor | None,
    depth_range: torch.Tensor | None,
) -> torch.Tensor:
    records = splats.records.detach().to(kernels.dtype)
    size = (camera.height, camera.width)
    upstream_c = grad_colour.detach().to(records)
    upstream_t = records.new_zeros(size) if grad_transmittance is None else grad_transmittance.detach().to(records)
    upstream_d = records.new_zeros(size) if grad_depth is None else grad_depth.detach().to(records)
    if background is not None:
        # The image is colour + transmittance * background.
        upstream_t = upstream_t + (upstream_c * background.to(records)).sum(dim=2)
    start = records.new_ones(size) if start_transmittance is None else start_transmittance.detach().to(records)
    gradients = records.new_zeros(len(records), layout.RECORD)
    # Tile by tile, so that the tape never holds more than one tile.
    for window in _windows(bins, camera):
        if not len(window.splats):
            continue
        at = (window.rows, window.columns)
        own = records[window.splats].requires_grad_()
        order = torch.arange(len(own), device=records.device)
        blended = _in_range(window, own.detach(), depth_range) & (order < raster.last[at].reshape(-1, 1))
        with torch.enable_grad():
            alphas = splat_alphas(kernels, own, _centres(window, records)) * blended
            outputs = _composited(own, alphas, start[at].reshape(-1))
        (gradient,) = torch.autograd.grad(
            outputs,
            own,
            (upstream_c[at].reshape(-1, 3), upstream_t[at].reshape(-1), upstream_d[at].reshape(-1)),
        )
        gradients.index_add_(0, window.splats, gradient)
    return gradients[:, : layout.GRADIENT].contiguous()
