"""Every compiled operator on small views, for compute-sanitizer: run as a program on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cuda_src import exchange as ex
from cuda_src import layout
from cuda_src import operators as op
from cuda_src.bounds import bound_groups, empty_bounds, groups_seen, widen_groups
from cuda_src.camera import Camera
from cuda_src.conventions import CONVENTIONS
from cuda_src.packing import pack_rows, packed_width, unpack_rows
from cuda_src.workload import workload
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
    if not limited:
        workload(kernels, count, splats, bins, raster, camera)
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
        op.project_backward_adam(kernels, *moved, [op.Seen(own, camera, partial)], 3, work, op.Pace(rates, 1))
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
            op.project_backward_adam(kernels, *tables, step, 3, Workspace(device), op.Pace(rates, 1), rows=rows)


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


def spread_splats(count: int, camera: Camera, sharpness: float, opacity: float) -> op.Splats:
    """Round splats of one size anywhere in the image, in no order of their depths, of which each is there twice."""
    generator = torch.Generator().manual_seed(count)
    records = torch.zeros(count, layout.RECORD)
    size = torch.tensor([camera.width, camera.height])
    records[:, layout.RECORD_MEAN2D] = size * torch.rand(count, 2, generator=generator)
    records[:, layout.RECORD_CONIC] = torch.tensor([sharpness, 0.0, sharpness])
    records[:, layout.RECORD_OPACITY] = opacity
    records[:, layout.RECORD_COLOUR] = torch.rand(count, 3, generator=generator)
    records[:, layout.RECORD_DEPTH] = 1 + torch.randperm(count, generator=generator).div(2, rounding_mode="floor") / 64
    records[:, layout.RECORD_RADIUS] = 40.0
    numbers = torch.arange(count, device="cuda")
    return op.Splats(numbers, numbers, records.to("cuda"))


def bin_spread(count: int, width: int, height: int, sharpness: float) -> None:
    """Lists that are split into buckets, or that are too many to be counted in shared memory."""
    kernels = op.KernelSet("compiled", torch.device("cuda"))
    camera = Camera(width, height, 20.0, 20.0, 8.0, 8.0, np.eye(4))
    splats = spread_splats(count, camera, sharpness, 0.5)
    bins = op.bin_splats(kernels, splats, camera, Workspace(kernels.device))
    depths = splats.records[bins.splat.long(), layout.RECORD_DEPTH]
    ends = bins.starts[1:-1]
    begins = torch.zeros(bins.instances + 1, dtype=torch.bool, device="cuda").index_fill_(0, ends, True)
    assert ((depths.diff() >= 0) | begins[1:-1]).all()
    print(f"{camera.tiles} lists of up to {bins.starts.diff().max().item()}, {bins.instances} instances")


def composite_long_lists(count: int, opacity: float) -> None:
    """Lists of four tiles that are composited in segments, by blocks that wait for one another."""
    kernels = op.KernelSet("compiled", torch.device("cuda"))
    camera = Camera(23, 19, 20.0, 20.0, 8.0, 8.0, np.eye(4))
    work, splats = Workspace(kernels.device), spread_splats(count, camera, 0.01, opacity)
    bins = op.bin_splats(kernels, splats, camera, work)
    for _ in range(3):
        raster = op.raster_forward(kernels, splats, bins, camera, work)
        gradients = op.raster_backward(kernels, splats, bins, raster, camera, raster.colour, work)
    torch.cuda.synchronize()
    assert torch.isfinite(gradients).all()
    print(f"lists of up to {bins.starts.diff().max().item()}, {raster.stopped.sum().item()} pixels stop")


def exchange_round(count: int, spare: int | None) -> None:
    """Two ranks on one device: the splats of each go to whose tiles they meet, and gradients come back.

    spare: rows that rooms have beside their records' and the flag's, or lack; None without rooms.
    """
    device = torch.device("cuda")
    kernels = op.KernelSet("compiled", device)
    camera = Camera(130, 70, 80.0, 82.0, 65.0, 35.0, np.eye(4))
    owners = (torch.arange(camera.tiles, device=device) >= camera.tiles // 2).int()
    own, routings, wires = [], [], []
    for rank in (0, 1):
        splats, routing = routed(kernels, count, rank, camera, owners, spare)
        wire = torch.zeros(sum(rows_to(routing)), ex.wire_width(kernels), device=device)
        ex.pack_records(kernels, splats, routing, rank, wire)
        own.append(splats)
        routings.append(routing)
        wires.append(wire.split(rows_to(routing)))
    zeros, returned = torch.zeros(1, dtype=torch.int64, device=device), []
    for rank in (0, 1):
        arrived = torch.cat([wire[rank] for wire in wires])
        sizes = [len(wire[rank]) for wire in wires]
        hole, work = ex.Hole(sum(sizes[:rank]), sizes[rank]), Workspace(device)
        if spare is not None:
            ex.take_flags(kernels, arrived, sizes, rank, own[rank].overflow)
        drawn, tiles = ex.take_arrivals(kernels, work, "arrived", len(arrived)), (owners == rank).nonzero()[:, 0].int()
        ex.unpack_records(kernels, arrived, hole, drawn)
        places = torch.empty(own[rank].count, dtype=torch.int32, device=device)
        ex.keep_records(kernels, own[rank], routings[rank], rank, hole, drawn, places)
        bins = op.bin_splats(kernels, drawn, camera, work, tiles)
        raster = op.raster_forward(kernels, drawn, bins, camera, work)
        gradients = op.raster_backward(kernels, drawn, bins, raster, camera, raster.colour, work)
        rows = torch.zeros(len(arrived), ex.SENT_GRADIENTS, device=device)
        ex.pack_gradients(kernels, gradients, hole, rows, zeros)
        returned.append((rows.split(sizes), gradients, hole))
    for rank in (0, 1):
        back = torch.cat([rows[rank] for rows, _, _ in returned])
        total = torch.zeros(own[rank].count, layout.GRADIENT_STRIDE, device=device)[:, : layout.GRADIENT]
        for shared in (False, True):
            ex.sum_gradients(kernels, routings[rank], back, rank, *returned[rank][1:], total, zeros, shared)
        assert torch.isfinite(total).all()
        assert total.any()
    print(f"{count} Gaussians a rank, spare {spare}: {[rows_to(routing) for routing in routings]} rows")


def routed(
    kernels: op.KernelSet, count: int, rank: int, camera: Camera, owners: torch.Tensor, spare: int | None
) -> tuple[op.Splats, ex.Routing]:
    """A rank's splats and where they go, in rooms of so many spare rows."""
    device, work = owners.device, Workspace(owners.device)
    parameters = gaussians(count, torch.Generator().manual_seed(rank)).to(device)
    ids = torch.arange(count, device=device)
    splats = op.project(kernels, parameters, ids, camera, 3, work)
    routing = ex.route_splats(kernels, splats, camera, owners, 2, work)
    if spare is None:
        return splats, routing
    rows = tuple(max(1, records + 1 + spare) for records in routing.counts[:, ex.SENT_RECORDS].tolist())
    rooms = ex.RankRooms(rows, tuple(routing.counts[:, ex.SENT_INSTANCES].tolist()))
    room, work = op.Room(splats.count + 40, 0, torch.zeros(1, dtype=torch.int32, device=device)), Workspace(device)
    splats = op.project(kernels, parameters, ids, camera, 3, work, room)
    return splats, ex.route_splats(kernels, splats, camera, owners, 2, work, rooms=rooms)


def whole_view(count: int, whole: int, spare: int) -> None:
    """A view that one of two ranks renders whole, as the first sees it; spare: as above. Gaussians move by rows that
    came back, or that were kept."""
    device, generator = torch.device("cuda"), torch.Generator().manual_seed(count)
    kernels, work = op.KernelSet("compiled", device), Workspace(device)
    camera = Camera(130, 70, 80.0, 82.0, 65.0, 35.0, np.eye(4))
    parameters, ids = gaussians(count, generator).to(device), torch.arange(count, device=device)
    seen = op.project(kernels, parameters, ids, camera, 3, Workspace(device)).count
    rows = [8, 8]
    rows[whole] = max(1, seen + 1 + spare)
    wire = torch.zeros(sum(rows), ex.wire_width(kernels), device=device)
    hole = ex.Hole(3, rows[0])
    arrived = ex.take_arrivals(kernels, work, "arrived", hole.first + hole.count)
    memory, first = (wire, rows[0]) if whole else (arrived.records, hole.first)
    room = op.Room(rows[whole] - 1, 0, torch.zeros(1, dtype=torch.int32, device=device))
    into = memory[first : first + room.splats, : layout.RECORD]
    splats = op.project(kernels, parameters, ids, camera, 3, work, room, into=into)
    routing = ex.route_whole(kernels, splats, whole, work, ex.RankRooms(tuple(rows), (100 * count + 1,) * 2))
    ex.pack_records(kernels, splats, routing, 0, wire)
    ex.keep_records(kernels, splats, routing, 0, hole, arrived)
    zeros = torch.zeros(1, dtype=torch.int64, device=device)
    columns = ex.SENT_GRADIENTS if whole else layout.GRADIENT_STRIDE
    gradients = torch.randn(room.splats, columns, device=device)
    gradients = gradients if whole else gradients[:, : layout.GRADIENT]
    step = [op.Seen(splats, camera, gradients, op.Kept(None, None if whole else gradients, zeros))]
    tables = [parameters, torch.zeros_like(parameters), torch.zeros_like(parameters)]
    for views in (step, step * 2):
        shared, pace = Workspace(device), op.Pace(torch.full((layout.PARAMETERS,), 1e-3), 1)
        for part in ("find", "own", "rest"):
            op.project_backward_adam(kernels, *tables, views, 3, shared, pace, part=part)
    assert torch.isfinite(parameters).all()
    assert bool(tables[1].any()) == (seen > 0 and spare >= 0)
    print(f"{seen} splats for rank {whole}, spare {spare}: overflow {int(room.overflow)}")


def rows_to(routing: ex.Routing) -> list[int]:
    """Rows that go to each rank."""
    return list(routing.rooms or routing.counts[:, ex.SENT_RECORDS].tolist())


def add_instances(count: int) -> None:
    """Gradients by instance into the accumulators of three owners, one of them without any."""
    device, lengths = torch.device("cuda"), (70, 0, 130)
    gradients = torch.randn(count, layout.GRADIENT_STRIDE, device=device)[:, : layout.GRADIENT]
    slots = torch.randint(0, sum(lengths), (count,), dtype=torch.int32, device=device)
    walked = torch.rand(count, device=device) < 0.8
    accumulators = [torch.zeros(length, layout.ACCUMULATOR_STRIDE, device=device) for length in lengths]
    ex.add_to_owners(op.KernelSet("compiled", device), gradients, slots, walked, accumulators)
    assert all(torch.isfinite(accumulator).all() for accumulator in accumulators)


if __name__ == "__main__":
    for count, width, height in ((0, 20, 20), (1, 1, 1), (33, 17, 33), (1500, 130, 70)):
        for footprint in ("ellipse", "square"):
            for limited in (False, True):
                train_step(count, width, height, footprint, limited)
    for opacity in (0.005, 0.02, 0.9):
        composite_long_lists(3100, opacity)
    # The longest has a bucket for 2400 of its entries, so that one in ten has more than a block sorts.
    for count in (5000, 20_000, 2_500_000):
        bin_spread(count, 16, 16, 0.05)
    for sharpness in (0.05, 1e-3):  # Spans that a thread tests, and wide ones.
        bin_spread(300, 2000, 1700, sharpness)
    for spare in (None, 30, -5):
        exchange_round(900, spare)
    for whole in (0, 1):
        for spare in (30, -5):
            whole_view(900, whole, spare)
    add_instances(5000)
