"""L1 and SSIM (Wang et al. 2004) of a region of an image, with the gradient of the whole image's loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cuda_src.camera import TILE
from cuda_src.operators import LOSS_BLOCK, WHOLE_IMAGE, Halo, KernelSet, Loss, LossWindow
from cuda_src.workspace import Workspace

_WINDOW = 11
_SIGMA = 1.5
_C1 = 0.01**2
_C2 = 0.03**2
_REACH = 2 * (_WINDOW // 2)
"""How far a pixel's gradient looks, pixels: 5 to the windows that hold it, and 5 to what those windows hold."""


def _blurred(planes: torch.Tensor) -> torch.Tensor:
    """[n, H, W] under the window, zeros beyond the image."""
    taps = torch.arange(_WINDOW, dtype=planes.dtype, device=planes.device) - _WINDOW // 2
    window = torch.exp(-(taps**2) / (2 * _SIGMA**2))
    window = window / window.sum()
    rows = F.conv2d(planes[:, None], window.view(1, 1, 1, -1), padding=(0, _WINDOW // 2))
    return F.conv2d(rows, window.view(1, 1, -1, 1), padding=(_WINDOW // 2, 0))[:, 0]


def _blurred_blocks(planes: torch.Tensor, offset: tuple[int, int]) -> torch.Tensor:
    """[n, H, W] under windows that see their own block of 32 x 32 and the image alone, renormalised."""
    height, width = planes.shape[1:]
    left, top = offset
    right, bottom = -(left + width) % LOSS_BLOCK, -(top + height) % LOSS_BLOCK

    def sums(values: torch.Tensor) -> torch.Tensor:
        padded = F.pad(values, (left, right, top, bottom))
        rows, columns = padded.shape[1] // LOSS_BLOCK, padded.shape[2] // LOSS_BLOCK
        blocks = padded.view(-1, rows, LOSS_BLOCK, columns, LOSS_BLOCK).transpose(2, 3)
        blurred = _blurred(blocks.reshape(-1, LOSS_BLOCK, LOSS_BLOCK))
        whole = blurred.view(-1, rows, columns, LOSS_BLOCK, LOSS_BLOCK).transpose(2, 3).reshape(padded.shape)
        return whole[:, top : top + height, left : left + width]

    return sums(planes) / sums(torch.ones_like(planes[:1]))


def ssim_map(image: torch.Tensor, target: torch.Tensor, window: LossWindow = WHOLE_IMAGE) -> torch.Tensor:
    """SSIM at each pixel, mean of the colours, [H, W, 3] twice -> [H, W]."""

    def average(planes: torch.Tensor) -> torch.Tensor:
        return _blurred(planes) if window.kind == "exact" else _blurred_blocks(planes, window.offset)

    x, y = image.permute(2, 0, 1), target.permute(2, 0, 1)
    mean_x, mean_y = average(x), average(y)
    variance_x = average(x * x) - mean_x * mean_x
    variance_y = average(y * y) - mean_y * mean_y
    covariance = average(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x * mean_x + mean_y * mean_y + _C1)
    structure = (2 * covariance + _C2) / (variance_x + variance_y + _C2)
    return (luminance * structure).mean(dim=0)


def l1_ssim_value(
    image: torch.Tensor,  # [H, W, 3]
    target: torch.Tensor,  # [H, W, 3] in [0, 1]
    weights: torch.Tensor,  # [H, W]
    ssim_weight: float,
    window: LossWindow = WHOLE_IMAGE,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value, L1 and SSIM over the image's mean, each pixel counted with its weight; 0-d and differentiable."""
    share = weights / weights.numel()
    l1 = (share * (image - target).abs().mean(dim=2)).sum()
    if window.kind == "l1":
        return l1, l1, torch.zeros_like(l1)
    ssim = (share * ssim_map(image, target, window)).sum()
    return (1 - ssim_weight) * l1 + ssim_weight * (share.sum() - ssim), l1, ssim


def _listed(tiles: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """[H, W] bool: pixels of these tiles."""
    columns, rows = -(-width // TILE), -(-height // TILE)
    grid = torch.zeros(rows * columns, dtype=torch.bool, device=tiles.device)
    grid[tiles.long()] = True
    pixels = grid.view(rows, columns).repeat_interleave(TILE, dim=0).repeat_interleave(TILE, dim=1)
    return pixels[:height, :width]


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
    height, width = target.shape[:2]
    x = image.detach().to(kernels.dtype)
    y = target.to(kernels.dtype) / 255
    weights = x.new_ones(height, width) if mask is None else mask.to(kernels.dtype) / 255
    inside = torch.ones(height, width, dtype=torch.bool, device=x.device)
    if tiles is not None:
        inside = _listed(tiles, height, width)
        known = inside
        if halo == "exact":
            known = F.max_pool2d(inside[None].to(kernels.dtype), 2 * _REACH + 1, stride=1, padding=_REACH)[0] > 0
        # Beyond what the gradient sees, the image may hold anything.
        x = torch.where(known[..., None], x, torch.zeros_like(x))
        y = torch.where(known[..., None], y, torch.zeros_like(y))
        weights = torch.where(known, weights, torch.zeros_like(weights))
    x.requires_grad_()
    with torch.enable_grad():
        # The mask scales a pixel's gradient besides its loss: a masked pixel is left alone by its neighbours' windows.
        masked = x.detach() + weights[..., None] * (x - x.detach())
        whole, _, _ = l1_ssim_value(masked, y, weights, ssim_weight, window)
        (gradient,) = torch.autograd.grad(whole, x)
    with torch.no_grad():
        value, l1, ssim = l1_ssim_value(x, y, weights * inside, ssim_weight, window)
    return Loss(value, l1, ssim, gradient * inside[..., None])
