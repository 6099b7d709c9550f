"""l1_ssim: what the kernels of loss.cu are given."""

from __future__ import annotations

import torch

from cuda_src.camera import TILE
from cuda_src.compiled.bindings import ReplayedLaunch, address, count
from cuda_src.compiled.build import LOSS_WINDOWS
from cuda_src.compiled.lent import lent, loss_bytes
from cuda_src.compiled.raster import as_real
from cuda_src.operators import WHOLE_IMAGE, Halo, KernelSet, Loss, LossWindow
from cuda_src.workspace import Workspace


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
    image_tiles = -(-height // TILE) * -(-width // TILE)
    real, target = as_real(image), target.contiguous()
    mask = None if mask is None else mask.contiguous()
    tiles = None if tiles is None else tiles.to(target.device)
    number = 0 if tiles is None else len(tiles)
    scalars = width, height, LOSS_WINDOWS[window.kind], *window.offset, int(halo == "none"), float(ssim_weight)

    def prepared() -> tuple[Loss, ReplayedLaunch]:
        listed = None if tiles is None else workspace.take("loss.listed", (image_tiles,), torch.uint8)
        totals = workspace.take("loss.totals", (3,))
        gradient = workspace.take("loss.gradient", (height, width, 3))
        (derivatives,) = lent(workspace, 0 if window.kind == "l1" else loss_bytes(height, width))
        launch = ReplayedLaunch(
            "l1_ssim", target.device, real, target, mask, tiles, count(number), listed, *scalars,
            derivatives, workspace.take("loss.sums", (image_tiles, 3)), gradient, totals,
        )  # fmt: skip
        value, l1, ssim = totals.unbind()
        return Loss(value, l1, ssim, gradient), launch

    given = address(real), address(target), address(mask), address(tiles), number
    loss, launch = workspace.kept(("l1_ssim", *given, *scalars), prepared)
    launch()
    return loss
