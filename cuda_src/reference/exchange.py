"""Routing and packing in plain PyTorch, on the tile lists that any back end makes; see cuda_src/exchange.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.camera import Camera
from cuda_src.exchange import OWN_SPLATS, ROUTE_COUNTS, SENT_GRADIENTS, SENT_INSTANCES, SENT_RECORDS, Hole, Routing
from cuda_src.layout import RECORD, RECORD_OPACITY
from cuda_src.operators import KernelSet, Splats
from cuda_src.packing import id_words
from cuda_src.workspace import Workspace


def route_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    owners: torch.Tensor,
    ranks: int,
    workspace: Workspace,
    depth_limit: torch.Tensor | None,
    min_opacity: float,
) -> Routing:
    bins = kernels.module.bin_splats(kernels, splats, camera, workspace, None, None, depth_limit)
    device = splats.records.device
    rank = owners.to(device, torch.int64)[bins.tiles.long()].repeat_interleave(bins.starts.diff())
    pairs = torch.bincount(bins.splat.long() * ranks + rank, minlength=splats.count * ranks)
    instances = pairs.view(splats.count, ranks)
    instances = torch.where((splats.records[:, RECORD_OPACITY] >= min_opacity)[:, None], instances, 0)
    sent = (instances > 0).to(torch.int64)
    counts = torch.zeros((ranks, ROUTE_COUNTS), dtype=torch.int64, device=device)
    counts[:, SENT_RECORDS], counts[:, SENT_INSTANCES], counts[:, OWN_SPLATS] = sent.sum(0), instances.sum(0), len(sent)
    return Routing((sent << torch.arange(ranks, device=device)).sum(1), counts)


def pack_records(kernels: KernelSet, splats: Splats, routing: Routing, rank: int, wire: torch.Tensor) -> None:
    first = 0
    for destination in range(routing.ranks):
        rows = routing.splats_to(destination)
        if destination != rank:
            place = wire[first : first + len(rows)]
            rows_there = rows[: len(place)]
            place[:, :RECORD] = splats.records[rows_there]
            # As the bits of reals: a copy keeps every bit.
            bits = splats.ids[rows_there].unsqueeze(1).view(wire.dtype)
            place[:, RECORD : RECORD + bits.shape[1]] = bits
        first += len(rows)


def keep_records(
    kernels: KernelSet,
    splats: Splats,
    routing: Routing,
    rank: int,
    hole: Hole,
    records: torch.Tensor,
    ids: torch.Tensor,
) -> None:
    rows = routing.splats_to(rank)
    records[hole.first : hole.first + hole.count] = splats.records[rows]
    ids[hole.first : hole.first + hole.count] = splats.ids[rows]


def unpack_records(
    kernels: KernelSet, wire: torch.Tensor, hole: Hole, records: torch.Tensor, ids: torch.Tensor
) -> None:
    columns = slice(RECORD, RECORD + id_words(wire.dtype))
    for part in _outside(hole, len(ids)):
        records[part] = wire[part, :RECORD]
        ids[part] = wire[part, columns].clone(memory_format=torch.contiguous_format).view(torch.int64).flatten()


def pack_gradients(
    kernels: KernelSet, gradients: torch.Tensor, hole: Hole, out: torch.Tensor, zeros: torch.Tensor
) -> None:
    for part in _outside(hole, len(out)):
        out[part] = gradients[part, :SENT_GRADIENTS]
        zeros += _zero_rows(out[part])


def sum_gradients(
    kernels: KernelSet,
    routing: Routing,
    returned: torch.Tensor,
    rank: int,
    gradients: torch.Tensor | None,
    hole: Hole,
    out: torch.Tensor,
    zeros: torch.Tensor,
) -> None:
    out.zero_()
    first = 0
    for destination in range(routing.ranks):
        rows = routing.splats_to(destination)
        if destination == rank and gradients is not None:
            part = gradients[hole.first : hole.first + hole.count, :SENT_GRADIENTS]
            zeros += _zero_rows(part)
        else:
            part = returned[first : first + len(rows)]
        out[rows, :SENT_GRADIENTS] += part
        first += len(rows)


def _outside(hole: Hole, rows: int) -> tuple[slice, slice]:
    return slice(0, hole.first), slice(hole.first + hole.count, rows)


def _zero_rows(rows: torch.Tensor) -> torch.Tensor:
    """How many are exactly zero, 0-d; not a number is not zero."""
    return (rows == 0).all(dim=1).sum()


def add_to_owners(
    kernels: KernelSet,
    gradients: torch.Tensor,
    slots: torch.Tensor,
    walked: torch.Tensor,
    accumulators: Sequence[torch.Tensor],
) -> None:
    first = 0
    for rows in accumulators:
        own = walked & (slots >= first) & (slots < first + len(rows))
        rows[:, :SENT_GRADIENTS].index_add_(0, slots[own].long() - first, gradients[own, :SENT_GRADIENTS])
        first += len(rows)
