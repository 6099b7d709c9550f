"""Every compiled operator on small views, for compute-sanitizer: run as a program on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.bounds import bound_groups, empty_bounds, groups_seen, widen_groups
from cuda_src.camera import Camera
from cuda_src.conventions import CONVENTIONS
from cuda_src.packing import pack_rows, packed_width, unpack_rows
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
    move(splats, camera, kernels, (parameters, *moments))
    with_rooms(splats, bins, camera, kernels, parameters)
    tables(count, op.project(kernels, parameters, ids, camera, 3, work), camera, kernels, parameters)
    torch.cuda.synchronize()
    assert torch.isfinite(parameters).all()
    print(f"{count} Gaussians, {width} x {height}, {footprint}, limited {limited}: {splats.count} splats, "
          f"{bins.instances} instances, loss {loss.value.item():.4f}")  # fmt: skip


def with_rooms(
    splats: op.Splats, bins: op.Bins, camera: Camera, kernels: op.KernelSet, parameters: torch.Tensor
) -> None:
    """A view given room enough, and then too little: its lists, its image, and rows moved or left alone."""
    device, ids = parameters.device, torch.arange(len(parameters), device=parameters.device)
    for share in (1.5, 0.5):
        most = (max(1, int(share * need)) for need in (splats.count, bins.instances))
        room, work = op.Room(*most, torch.zeros(1, dtype=torch.int32, device=device)), Workspace(device)
        own = op.project(kernels, parameters, ids, camera, 3, work, room)
        lists = op.bin_splats(kernels, own, camera, work, room=room)
        raster = op.raster_forward(kernels, own, lists, camera, work)
        partial = op.raster_backward(kernels, own, lists, raster, camera, raster.colour, work)
        moved = [table.clone() for table in (parameters, parameters, parameters)]
        rates = torch.full((layout.PARAMETERS,), 1e-4)
        op.project_backward_adam(kernels, *moved, [op.Seen(own, camera, partial)], 3, work, rates, 1)
        if room.overflow:
            assert torch.equal(moved[0], parameters)


def move(splats: op.Splats, camera: Camera, kernels: op.KernelSet, tables: Sequence[torch.Tensor]) -> None:
    """Rows of one view and of three, by every rule."""
    device = splats.rows.device
    gradients = torch.randn(splats.count, layout.GRADIENT, device=device)
    gradients[::2] = 0
    half = op.Splats(splats.rows[::2], splats.ids[::2], splats.records[::2])
    nothing = op.Splats(splats.rows[:0], splats.ids[:0], splats.records[:0])
    views = [
        op.Seen(splats, camera, gradients),
        op.Seen(nothing, camera, gradients[:0]),
        op.Seen(half, camera, gradients[::2]),
    ]
    rates = torch.full((layout.PARAMETERS,), 1e-4)
    for step in (views[:1], views):
        for rows in ("visible", "touched", "dense"):
            op.project_backward_adam(kernels, *tables, step, 3, Workspace(device), rates, 1, rows=rows)


def tables(count: int, splats: op.Splats, camera: Camera, kernels: op.KernelSet, parameters: torch.Tensor) -> None:
    """Operators on whole tables: statistics, packing and there back, bounds of groups."""
    device, rows = parameters.device, splats.rows
    gradients = torch.randn(splats.count, layout.GRADIENT, device=device)
    statistics = torch.zeros(count, layout.STATISTICS, device=device)
    op.densification_statistics(kernels, splats, camera, gradients, statistics)
    ids = torch.arange(count, device=device)
    packed = torch.zeros(len(rows), packed_width([parameters, statistics]), device=device)
    pack_rows(kernels, ids, [parameters, statistics], rows, packed)
    unpack_rows(kernels, packed, ids, [parameters, statistics], rows)
    bounds = empty_bounds(count, torch.float32, device)
    bound_groups(kernels, parameters, bounds)
    seen = torch.zeros(len(bounds), dtype=torch.bool, device=device)
    groups_seen(kernels, bounds, camera, seen)
    assert seen[rows // layout.GROUP].all()
    parameters[:, layout.MEAN] *= 1.1
    widen_groups(kernels, parameters, rows.flip(0), bounds)


def composite_long_lists(count: int, opacity: float) -> None:
    """Lists of four tiles that are composited in segments, by blocks that wait for one another."""
    generator = torch.Generator().manual_seed(count)
    device = torch.device("cuda")
    kernels = op.KernelSet("compiled", device)
    camera = Camera(23, 19, 20.0, 20.0, 8.0, 8.0, torch.eye(4, dtype=torch.float64).numpy())
    work = Workspace(device)
    records = torch.zeros(count, layout.RECORD)
    records[:, layout.RECORD_MEAN2D] = 24 * torch.rand(count, 2, generator=generator)
    records[:, layout.RECORD_CONIC] = torch.tensor([0.01, 0.0, 0.01])
    records[:, layout.RECORD_OPACITY] = opacity
    records[:, layout.RECORD_COLOUR] = torch.rand(count, 3, generator=generator)
    records[:, layout.RECORD_DEPTH] = 1 + torch.arange(count) / 64
    records[:, layout.RECORD_RADIUS] = 40.0
    numbers = torch.arange(count, device=device)
    splats = op.Splats(numbers, numbers, records.to(device))
    bins = op.bin_splats(kernels, splats, camera, work)
    for _ in range(3):
        raster = op.raster_forward(kernels, splats, bins, camera, work)
        gradients = op.raster_backward(kernels, splats, bins, raster, camera, raster.colour, work)
    torch.cuda.synchronize()
    assert torch.isfinite(gradients).all()
    print(f"lists of up to {bins.starts.diff().max().item()}, {raster.stopped.sum().item()} pixels stop")


if __name__ == "__main__":
    for count, width, height in ((0, 20, 20), (1, 1, 1), (33, 17, 33), (1500, 130, 70)):
        for footprint in ("ellipse", "square"):
            for limited in (False, True):
                train_step(count, width, height, footprint, limited)
    for opacity in (0.005, 0.02, 0.9):
        composite_long_lists(3100, opacity)
