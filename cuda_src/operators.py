"""The public operators: one function each, with shapes and units; dispatch to a back end.

Shapes: N Gaussians of this place, V splats (visible Gaussians of one view), M tile instances, K listed tiles,
H x W pixels. `real` is the kernel set's precision (float32, or float64 with the `reference` back end).
Images are [H, W, 3] in [0, 1]; targets uint8. Operators write only into the caller's workspace and outputs,
on the caller's stream, and hold no state. Non-finite values never leave an operator: Gaussians whose projection
is not finite are culled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cuda_src.camera import Camera
from cuda_src.operands import (
    ELSEWHERE,
    LOSS_BLOCK,
    NOWHERE,
    WHOLE_IMAGE,
    BatchRule,
    Bins,
    Footprint,
    Fused,
    Halo,
    Kept,
    KernelSet,
    Loss,
    LossWindow,
    MovedRows,
    Pace,
    Part,
    Raster,
    Room,
    Seen,
    Splats,
)
from cuda_src.workspace import Workspace

__all__ = [
    "ELSEWHERE",
    "LOSS_BLOCK",
    "NOWHERE",
    "WHOLE_IMAGE",
    "BatchRule",
    "Bins",
    "Footprint",
    "Fused",
    "Halo",
    "Kept",
    "KernelSet",
    "Loss",
    "LossWindow",
    "MovedRows",
    "Pace",
    "Part",
    "Raster",
    "Room",
    "Seen",
    "Splats",
    "adam_rows",
    "begin_bins",
    "bin_splats",
    "densification_statistics",
    "l1_ssim",
    "project",
    "project_backward",
    "project_backward_adam",
    "raster_backward",
    "raster_forward",
    "raster_fused",
]


def project(
    kernels: KernelSet,
    parameters: torch.Tensor,  # [N, 59]
    ids: torch.Tensor,  # [N] int64
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
    room: Room | None = None,
    bounds: torch.Tensor | None = None,  # [groups, BOUND]
    ids_by_row: bool = False,
    into: torch.Tensor | None = None,  # [room.splats, RECORD], of `take_records`
) -> Splats:
    """Cull, project and colour the Gaussians that touch at least one tile of the view.

    EWA splatting (Zwicker et al. 2002) with the 2-D covariance dilated by the convention's amount; colour is
    max(0, SH(direction) + 0.5). Culled: depth < near or > camera.far, opacity < alpha_min, non-finite projection,
    no tile touched. room: nothing is read by the host; only for back ends with `KernelSet.takes_rooms`. bounds: of
    groups of the rows (cuda_src/bounds.py), so that only groups are read that may be seen; only with
    `KernelSet.reads_bounds`. ids_by_row: who asks needs ids only to bin these splats, so that they need not be copied;
    only with `KernelSet.leaves_ids`. into: where records go, with their ids, and instances are counted (`Splats.live`);
    only with a room and `KernelSet.projects_in_place`.
    """
    given: dict[str, Any] = {} if room is None else {"room": room}
    given |= {} if bounds is None else {"bounds": bounds}
    given |= {"ids_by_row": True} if ids_by_row else {}
    given |= {} if into is None else {"into": into}
    return kernels.called.project(kernels, parameters, ids, camera, sh_degree, workspace, **given)


def bin_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None = None,  # [K] int32 ascending; None: all tiles of the image
    subtiles: torch.Tensor | None = None,  # [tiles of the image] uint8; None: all sub-tiles
    depth_limit: torch.Tensor | None = None,  # [tiles of the image] real, world units; None: no limit
    room: Room | None = None,
    begun: range = range(0),
) -> Bins:
    """List, for each listed tile, the splats whose footprint meets it, front to back.

    `ellipse`: the level set alpha = alpha_min, tested exactly against the rectangle of the tile's pixel centres
    (clipped to the image). `square`: mean2d +- radius.
    subtiles: which 8 x 4 px sub-tiles of a tile are rendered, bit row * 2 + column of 4 rows and 2 columns. The
    footprint must meet the pixel centres of one of them; a tile with all bits (255) is tested as one rectangle.
    depth_limit: splats of a greater view depth are left out of that tile.
    room: as given to `project`. begun: splats for which `begin_bins` has been called.
    """
    given = () if room is None else (room, begun)
    return kernels.called.bin_splats(kernels, splats, camera, workspace, tiles, subtiles, depth_limit, *given)


def begin_bins(
    kernels: KernelSet,  # one that takes rooms
    splats: Splats,
    camera: Camera,
    workspace: Workspace,
    tiles: torch.Tensor | None,
    depth_limit: torch.Tensor | None,
    room: Room,
    there: range,
) -> None:
    """Begin a `bin_splats` of the same arguments while only some of the splats are there, with what they alone decide.

    there: those, one after another. The workspace's other operators have to wait for that call.
    """
    kernels.called.begin_bins(kernels, splats, camera, workspace, tiles, depth_limit, room, there)


def raster_forward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    workspace: Workspace,
    start_transmittance: torch.Tensor | None = None,  # [H, W]; None: 1
    subtiles: torch.Tensor | None = None,  # [tiles of the image] uint8, as given to `bin_splats`
    depth_range: torch.Tensor | None = None,  # [H, W, 2] real, world units; None: every depth
    background: torch.Tensor | None = None,  # [3] or [H, W, 3] real; None: black
) -> Raster:
    """Alpha-composite the listed tiles front to back (Kerbl et al. 2023, eq. 3 and appendix C).

    subtiles: pixels of sub-tiles that are not rendered stay as if no splat met them: nothing blended, transmittance
    as it starts, not stopped. depth_range: a splat exists at a pixel only if range[0] <= its view depth < range[1],
    compared exactly; others neither blend nor stop there. background: what shows through, added to the colour as
    transmittance * background.
    """
    return kernels.called.raster_forward(
        kernels, splats, bins, camera, workspace, start_transmittance, subtiles, depth_range, background
    )


def raster_backward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    raster: Raster,
    camera: Camera,
    grad_colour: torch.Tensor,  # [H, W, 3], dL / d(colour + transmittance * background)
    workspace: Workspace,
    background: torch.Tensor | None = None,  # [3] or [H, W, 3]; None: black
    grad_transmittance: torch.Tensor | None = None,  # [H, W], beyond what the background implies
    grad_depth: torch.Tensor | None = None,  # [H, W]
    start_transmittance: torch.Tensor | None = None,  # [H, W], as given to the forward
    depth_range: torch.Tensor | None = None,  # [H, W, 2], as given to the forward
) -> torch.Tensor:
    """Gradient of each splat, [V, GRADIENT] real, over exactly the instances that the forward blended.

    Which those are at a pixel follows from `raster.last` and depth_range, so that sub-tiles need not be given again.

    The image is colour + transmittance * background; a per-pixel background is what lies behind this partial
    image (Splaxel's S_m), so the gradient of alpha includes what it hides.
    """
    return kernels.called.raster_backward(
        kernels,
        splats,
        bins,
        raster,
        camera,
        grad_colour,
        workspace,
        background,
        grad_transmittance,
        grad_depth,
        start_transmittance,
        depth_range,
    )


def l1_ssim(
    kernels: KernelSet,
    image: torch.Tensor,  # [H, W, 3] real; pixels within 10 of the listed tiles must be filled in
    target: torch.Tensor,  # [H, W, 3] uint8
    workspace: Workspace,
    mask: torch.Tensor | None = None,  # [H, W] uint8, divided by 255
    tiles: torch.Tensor | None = None,  # [K] int32 ascending; None: the whole image
    halo: Halo = "exact",
    ssim_weight: float = 0.2,
    window: LossWindow = WHOLE_IMAGE,
) -> Loss:
    """(1 - w) L1 + w (1 - SSIM) of the listed tiles, with its gradient in the same pass.

    SSIM (Wang et al. 2004) by colour with an 11 x 11 Gaussian window, sigma 1.5, zeros beyond the image.
    The mask multiplies each pixel's loss, and the gradient of each pixel. `halo: exact`: the gradient at
    a listed pixel is the whole image's (windows reach 10 px beyond the tiles); `none`: windows are cut at the
    tiles' border, as if the image ended there. With a window of kind `tile` pixels beyond the image count nothing;
    with `l1` the value is L1 and `ssim` is 0. ValueError for `halo: none` with a window that is not exact.
    """
    if halo == "none" and window.kind != "exact":
        raise ValueError(f"halo none cuts exact windows at the region's border; window {window.kind} has none there")
    return kernels.called.l1_ssim(kernels, image, target, workspace, mask, tiles, halo, ssim_weight, window)


def raster_fused(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    target: torch.Tensor,  # [H, W, 3] uint8
    workspace: Workspace,
    background: torch.Tensor | None = None,  # [3]; None: black
    mask: torch.Tensor | None = None,  # [H, W] uint8, divided by 255
    ssim_weight: float = 0.2,
    window: LossWindow = WHOLE_IMAGE,
    image: torch.Tensor | None = None,  # [H, W, 3] real, written if given
) -> Fused:
    """raster_forward, l1_ssim and raster_backward of the listed tiles, leaving no image of any kind in memory.

    Equal to the three operators one after another with the same window. A tile's gradient waits for the rows below
    that its windows see, so tiles are done in rows: forward of row r, then backward of the rows whose windows are
    complete (ByteSplat's fusion with SSIM exact). ValueError unless the listed tiles
    are the whole image, or none, or the window is `l1`: another rank's pixels are not at hand.
    """
    if window.kind != "l1" and len(bins.tiles) not in (0, camera.tiles):
        raise ValueError(
            f"a fused raster with window {window.kind} needs the whole image, but only {len(bins.tiles)} of its "
            f"{camera.tiles} tiles are listed"
        )
    return kernels.called.raster_fused(
        kernels, splats, bins, camera, target, workspace, background, mask, ssim_weight, window, image
    )


def project_backward(
    kernels: KernelSet,
    parameters: torch.Tensor,  # [N, 59]
    splats: Splats,
    camera: Camera,
    sh_degree: int,
    gradients: torch.Tensor,  # [V, GRADIENT]
    workspace: Workspace,
) -> torch.Tensor:
    """Gradient of the parameters of the splats' rows, [V, 59] real, in the order of `splats.rows`."""
    return kernels.called.project_backward(kernels, parameters, splats, camera, sh_degree, gradients, workspace)


def adam_rows(
    kernels: KernelSet,
    parameters: torch.Tensor,  # [N, 59], updated in place
    moment1: torch.Tensor,  # [N, 59], updated in place
    moment2: torch.Tensor,  # [N, 59], updated in place
    rows: torch.Tensor,  # [U] int64, distinct
    gradients: torch.Tensor,  # [U, 59], summed over the views of the step
    views: torch.Tensor,  # [U] int32 >= 1, the number of views v each row averages over
    rates: torch.Tensor,  # [59] real, learning rate of each column at batch 1
    images_seen: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-15,
) -> None:
    """One Adam step (Kingma & Ba 2015) on the given rows, with the batch rule applied row by row.

    A row seen by v views of the step takes gradient / v, rate sqrt(v), beta^v, epsilon / sqrt(v) (Grendel,
    section 4, with v in place of the batch). Bias correction is 1 - beta^images_seen: it follows the job's
    images, so that it depends on neither ranks nor order.
    """
    kernels.called.adam_rows(
        kernels,
        parameters,
        moment1,
        moment2,
        rows,
        gradients,
        views,
        rates,
        images_seen,
        beta1,
        beta2,
        epsilon,
    )


def project_backward_adam(
    kernels: KernelSet,
    parameters: torch.Tensor,  # [N, 59], updated in place
    moment1: torch.Tensor,  # [N, 59], updated in place
    moment2: torch.Tensor,  # [N, 59], updated in place
    views: Sequence[Seen],  # of one step, at least one
    sh_degree: int,
    workspace: Workspace,
    pace: Pace,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-15,
    rows: MovedRows = "visible",
    batch_rule: BatchRule = "rows",
    bounds: torch.Tensor | None = None,  # [groups, BOUND], widened in place
    part: Part = "all",
) -> None:
    """project_backward of all views of a step, and one adam_rows of the sums, in one pass.

    The gradient of the parameters is never written. rows: those that move, every row with a splat in a view
    (`visible`), those of them whose summed gradient is not all zero (`touched`), or all (`dense`). batch_rule: what a
    row's gradient is averaged over, as adam_rows' views: the views that see it, with `dense` all of them (`rows`); all
    views (`batch`); or all views, but with rate and decay of one (`none`). While the overflow of any view's splats is
    set, nothing is written. Splats whose record has a depth that is not a number do not count. bounds: of groups of the
    rows (cuda_src/bounds.py), which then hold them where they have moved to. part: "find" moves nothing, but finds
    which rows move; calls with the same views then move them, in any order: "own" those whose gradients no other rank
    has a share of, as many of these as the back end likes to, and "rest" all that are left.

    Only back ends that gain by it have this operator: see `KernelSet.moves_at_once`.
    """
    kernels.called.project_backward_adam(
        kernels,
        parameters,
        moment1,
        moment2,
        views,
        sh_degree,
        workspace,
        pace,
        beta1,
        beta2,
        epsilon,
        rows,
        batch_rule,
        bounds,
        part,
    )


def densification_statistics(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    gradients: torch.Tensor,  # [V, GRADIENT], as of raster_backward
    statistics: torch.Tensor,  # [N, STATISTICS] real, updated in place at the splats' rows
) -> None:
    """Add one view to what densification decides by (Kerbl et al. 2023, section 5.2), columns as in layout.py.

    The mean's gradient is taken in normalised device units, x * width / 2 and y * height / 2, to which the paper's
    threshold 2e-4 refers; one that is not finite adds zero. Every splat counts as a view in which its row was seen.
    Splats made with a room add nothing while its overflow is set: call this when all views of the step are listed,
    so that a step that is done again counts once.
    """
    kernels.called.densification_statistics(kernels, splats, camera, gradients, statistics)
