"""Routing and packing in plain PyTorch, on the tile lists that any back end makes; see cuda_src/exchange.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch

from cuda_src.camera import Camera
from cuda_src.exchange import (
    OVERFLOWED,
    OWN_SPLATS,
    ROUTE_COUNTS,
    SENT_GRADIENTS,
    SENT_INSTANCES,
    SENT_RECORDS,
    Hole,
    RankRooms,
    Routing,
)
from cuda_src.layout import RECORD, RECORD_DEPTH, RECORD_OPACITY
from cuda_src.operators import ELSEWHERE, NOWHERE, KernelSet, Splats
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
    rooms: RankRooms | None,
) -> Routing:
    used = _in_use(splats)
    bins = kernels.module.bin_splats(kernels, used, camera, workspace, None, None, depth_limit)
    device = splats.records.device
    rank = owners.to(device, torch.int64)[bins.tiles.long()].repeat_interleave(bins.starts.diff())
    pairs = torch.bincount(bins.splat.long() * ranks + rank, minlength=used.count * ranks)
    instances = pairs.view(used.count, ranks)
    instances = torch.where((used.records[:, RECORD_OPACITY] >= min_opacity)[:, None], instances, 0)
    sent = (instances > 0).to(torch.int64)
    counts = torch.zeros((ranks, ROUTE_COUNTS), dtype=torch.int64, device=device)
    counts[:, SENT_RECORDS], counts[:, SENT_INSTANCES], counts[:, OWN_SPLATS] = sent.sum(0), instances.sum(0), len(sent)
    masks = torch.zeros(splats.count, dtype=torch.int64, device=device)
    masks[: used.count] = (sent << torch.arange(ranks, device=device)).sum(1)
    if splats.live is not None:
        counts[:, OWN_SPLATS] = splats.live[0]
        counts[:, OVERFLOWED] = splats.live[0] > splats.count
    if rooms is not None:
        assert splats.overflow is not None
        most = torch.tensor([rooms.rows, rooms.instances], device=device) - torch.tensor([[1], [0]], device=device)
        if (torch.stack([sent.sum(0), instances.sum(0)]) > most).any():
            splats.overflow.fill_(1)
    return Routing(masks, counts, rooms=None if rooms is None else rooms.rows, overflow=splats.overflow)


def pack_records(kernels: KernelSet, splats: Splats, routing: Routing, rank: int, wire: torch.Tensor) -> None:
    for destination, (rows, place) in enumerate(_segments(routing, wire)):
        if destination == rank:
            continue
        if routing.rooms is not None:
            assert routing.overflow is not None
            place[:, RECORD_DEPTH] = math.nan
            place[-1, 0] = routing.overflow[0]
        rows_there = rows[: len(place)]
        place[: len(rows_there), :RECORD] = splats.records[rows_there]
        # As the bits of reals: a copy keeps every bit.
        bits = splats.ids[rows_there].unsqueeze(1).view(wire.dtype)
        place[: len(rows_there), RECORD : RECORD + bits.shape[1]] = bits


def take_flags(
    kernels: KernelSet, wire: torch.Tensor, rooms: tuple[int, ...], rank: int, overflow: torch.Tensor
) -> None:
    for source, room in enumerate(wire.split(rooms)):
        if source != rank and room[-1, 0] != 0:
            overflow.fill_(1)


def keep_records(
    kernels: KernelSet,
    splats: Splats,
    routing: Routing,
    rank: int,
    hole: Hole,
    arrivals: Splats,
    places: torch.Tensor | None,
) -> None:
    rows = routing.splats_to(rank)
    if routing.rooms is not None:
        rows = rows[: hole.count - 1]
    place = slice(hole.first, hole.first + len(rows))
    records, ids = arrivals.records, arrivals.ids
    if routing.rooms is not None:
        records[hole.first : hole.first + hole.count, RECORD_DEPTH] = math.nan
    records[place], ids[place] = splats.records[rows], splats.ids[rows]
    if places is not None:
        places.fill_(NOWHERE)
        places[rows] = torch.arange(place.start, place.stop, dtype=torch.int32)
        places[(routing.masks & routing.others_of(rank)) != 0] = ELSEWHERE


def unpack_records(kernels: KernelSet, wire: torch.Tensor, hole: Hole, arrivals: Splats) -> None:
    records, ids, columns = arrivals.records, arrivals.ids, slice(RECORD, RECORD + id_words(wire.dtype))
    for part in _outside(hole, arrivals.count):
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
    shared: bool,
) -> None:
    written = torch.ones_like(routing.masks, dtype=torch.bool)
    if shared:
        written = (routing.masks & routing.others_of(rank)) != 0
    total = out.new_zeros(out.shape)
    own = None if gradients is None else gradients[hole.first : hole.first + hole.count, :SENT_GRADIENTS]
    for destination, (rows, those) in enumerate(_segments(routing, returned)):
        if destination == rank and own is not None:
            those = own[: len(rows)]
            zeros += _zero_rows(those[written[rows[: len(those)]]])
        there = min(len(rows), len(those))
        total[rows[:there], :SENT_GRADIENTS] += those[:there]
    out[written] = total[written]


def _segments(routing: Routing, buffer: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """By rank: the splats that it is sent, and the part of the buffer that is theirs, as far as it reaches."""
    rows = [routing.splats_to(rank) for rank in range(routing.ranks)]
    ends = list(accumulate(map(len, rows) if routing.rooms is None else routing.rooms))
    if routing.rooms is not None:
        rows = [own[: room - 1] for own, room in zip(rows, routing.rooms, strict=True)]
    return [(own, buffer[first:end]) for own, first, end in zip(rows, [0, *ends], ends, strict=False)]


def _in_use(splats: Splats) -> Splats:
    if splats.live is None:
        return splats
    live = min(int(splats.live[0]), splats.count)
    return Splats(splats.rows[:live], splats.ids[:live], splats.records[:live].contiguous())


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
