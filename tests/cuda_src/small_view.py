"""Every compiled operator on small views, for compute-sanitizer: run as a program on a machine with a GPU."""

from __future__ import annotations

import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.conventions import CONVENTIONS
from cuda_src.workspace import Workspace


def gaussians(count: int, generator: torch.Generator) -> torch.Tensor:
    """[count, 59] before a camera at the origin that looks along z; a few are large."""
    parameters = 0.3 * torch.randn(count, layout.PARAMETERS, generator=generator)
    parameters[:, 0:2] *= 6.0
    parameters[:, 2] = 1.0 + 4.0 * torch.rand(count, generator=generator)
    parameters[:, layout.LOG_SCALE] -= 3.0
    parameters[::17, layout.LOG_SCALE] += 2.5
    return parameters


def train_step(count: int, width: int, height: int, footprint: op.Footprint, limited: bool) -> None:
    """All operators once; limited: some tiles and sub-tiles, depth limits and ranges, a mask, a window of tiles."""
    generator = torch.Generator().manual_seed(count)
    device = torch.device("cuda")
    kernels = op.KernelSet("compiled", device, CONVENTIONS["standard"], footprint)
    pose = torch.eye(4, dtype=torch.float64).numpy()
    camera = Camera(width, height, 80.0, 82.0, width / 2, height / 2, pose)
    work = Workspace(device)
    parameters = gaussians(count, generator).to(device)
    ids = torch.arange(count, device=device).flip(0)
    target = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator).to(device)
    tiles = subtiles = limit = ranges = mask = None
    if limited:
        tiles = torch.arange(0, camera.tiles, 2, dtype=torch.int32, device=device)
        subtiles = torch.randint(0, 256, (camera.tiles,), dtype=torch.uint8, generator=generator).to(device)
        limit = torch.full((camera.tiles,), 4.0, device=device)
        ranges = torch.tensor([1.5, 4.5], device=device).expand(height, width, 2).contiguous()
        mask = torch.randint(0, 256, (height, width), dtype=torch.uint8, generator=generator).to(device)
    splats = op.project(kernels, parameters, ids, camera, 3, work)
    if count > 20:
        splats.records[::3, layout.RECORD_DEPTH] = 2.0  # Ties.
    bins = op.bin_splats(kernels, splats, camera, work, tiles, subtiles, limit)
    raster = op.raster_forward(kernels, splats, bins, camera, work, None, subtiles, ranges)
    loss = op.l1_ssim(kernels, raster.colour, target, work, mask, tiles)
    op.l1_ssim(kernels, raster.colour, target, Workspace(device), window=op.LossWindow("tile", (3, 5)))
    partial = op.raster_backward(
        kernels, splats, bins, raster, camera, loss.gradient, work, grad_depth=raster.depth, depth_range=ranges
    )
    gradients = op.project_backward(kernels, parameters, splats, camera, 3, partial, work)
    moments = torch.zeros_like(parameters), torch.zeros_like(parameters)
    views = torch.randint(1, 4, (splats.count,), dtype=torch.int32, generator=generator).to(device)
    rates = torch.full((layout.PARAMETERS,), 1e-3, device=device)
    op.adam_rows(kernels, parameters, *moments, splats.rows, gradients, views, rates, 1)
    torch.cuda.synchronize()
    assert torch.isfinite(parameters).all()
    print(f"{count} Gaussians, {width} x {height}, {footprint}, limited {limited}: {splats.count} splats, "
          f"{bins.instances} instances, loss {loss.value.item():.4f}")  # fmt: skip


if __name__ == "__main__":
    for count, width, height in ((0, 20, 20), (1, 1, 1), (33, 17, 33), (1500, 130, 70)):
        for footprint in ("ellipse", "square"):
            for limited in (False, True):
                train_step(count, width, height, footprint, limited)
