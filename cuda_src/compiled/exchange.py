"""Routing and packing: what the kernels of exchange.cu and exchange_gradients.cu take; see cuda_src/exchange.py."""

from __future__ import annotations

import ctypes
from itertools import accumulate

import torch

from cuda_src.camera import Camera
from cuda_src.compiled.bindings import address, call, count
from cuda_src.compiled.binning import Given
from cuda_src.compiled.raster import aligned_records, as_real
from cuda_src.compiled.scratch import scratch_for
from cuda_src.compiled.seen import ALIGNMENT
from cuda_src.compiled.view import view_of
from cuda_src.exchange import MOST_RANKS, ROUTE_COUNTS, SENT_GRADIENTS, Hole, Routing
from cuda_src.layout import GRADIENT_STRIDE, RECORD_STRIDE
from cuda_src.operators import KernelSet, Splats
from cuda_src.workspace import Workspace

_BLOCK = 256
"""Splats a block: THREADS in config.h."""

RoomEnds = ctypes.c_int64 * MOST_RANKS
"""Rows up to and with each rank's room."""


class Routes(ctypes.Structure):
    """The same struct as in exchange.cu."""

    _fields_ = (
        ("masks", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("splats", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("overflow", ctypes.c_void_p),
        ("ranks", ctypes.c_int),
        ("roomy", ctypes.c_int),
        ("room_ends", RoomEnds),
    )

    @classmethod
    def of(cls, routing: Routing) -> Routes:
        assert routing.ends is not None
        ranks, blocks = routing.ends.shape
        return cls(
            address(routing.masks), address(routing.ends), len(routing.masks), blocks, address(routing.overflow), ranks,
            routing.rooms is not None, RoomEnds(*accumulate(routing.rooms or ())),
        )  # fmt: skip


def route_splats(
    kernels: KernelSet,
    splats: Splats,
    camera: Camera,
    owners: torch.Tensor,
    ranks: int,
    workspace: Workspace,
    depth_limit: torch.Tensor | None,
    min_opacity: float,
    rooms: tuple[int, ...] | None,
) -> Routing:
    """See `cuda_src.exchange.route_splats`. The host reads nothing."""
    device, n = splats.records.device, splats.count
    blocks = -(-n // _BLOCK)
    routing = Routing(
        workspace.take("exchange.masks", (n,), torch.int64),
        workspace.take("exchange.counts", (ranks, ROUTE_COUNTS), torch.int64),
        workspace.take("exchange.ends", (ranks, blocks), torch.int64),
        rooms,
        splats.overflow,
    )
    if n == 0:
        routing.counts.zero_()
        return routing
    records, depth_limit = aligned_records(splats.records, workspace), as_real(depth_limit)
    given = Given(
        records.data_ptr(), address(splats.ids), n, address(splats.live), address(splats.overflow),
        address(owners), None, address(depth_limit),
    )  # fmt: skip
    call(
        "route_splats", device, ctypes.byref(view_of(kernels, camera)), ctypes.byref(given), float(min_opacity),
        ctypes.byref(Routes.of(routing)), scratch_for(ranks * blocks, workspace),
        workspace.take("exchange.blocks", (ranks * blocks,), torch.int32), routing.counts,
    )  # fmt: skip
    return routing


def pack_records(kernels: KernelSet, splats: Splats, routing: Routing, rank: int, wire: torch.Tensor) -> None:
    """See `cuda_src.exchange.pack_records`."""
    if splats.count == 0 or len(wire) == 0:
        return
    call(
        "pack_records", wire.device, ctypes.byref(Routes.of(routing)), rank, rows_of(splats.records, RECORD_STRIDE),
        splats.ids, wire, count(len(wire)), wire.shape[1],
    )  # fmt: skip


def keep_records(
    kernels: KernelSet,
    splats: Splats,
    routing: Routing,
    rank: int,
    hole: Hole,
    records: torch.Tensor,
    ids: torch.Tensor,
) -> None:
    """See `cuda_src.exchange.keep_records`."""
    if hole.count == 0:
        return
    call(
        "keep_records", ids.device, ctypes.byref(Routes.of(routing)), rank, rows_of(splats.records, RECORD_STRIDE),
        splats.ids, count(hole.first), count(hole.count), rows_of(records, RECORD_STRIDE), ids,
    )  # fmt: skip


def unpack_records(
    kernels: KernelSet, wire: torch.Tensor, hole: Hole, records: torch.Tensor, ids: torch.Tensor
) -> None:
    """See `cuda_src.exchange.unpack_records`."""
    if len(ids) == hole.count:
        return
    call(
        "unpack_records", ids.device, wire, wire.shape[1], count(len(ids)), count(hole.first), count(hole.count),
        rows_of(records, RECORD_STRIDE), ids,
    )  # fmt: skip


def pack_gradients(
    kernels: KernelSet, gradients: torch.Tensor, hole: Hole, out: torch.Tensor, zeros: torch.Tensor
) -> None:
    """See `cuda_src.exchange.pack_gradients`."""
    if len(out) == hole.count:
        return
    call(
        "pack_gradients", out.device, rows_of(gradients, GRADIENT_STRIDE), count(len(out)), count(hole.first),
        count(hole.count), out, zeros,
    )  # fmt: skip


def flag_gradients(
    kernels: KernelSet, overflow: torch.Tensor, rooms: tuple[int, ...], rank: int, out: torch.Tensor
) -> None:
    """See `cuda_src.exchange.flag_gradients`."""
    ends = RoomEnds(*accumulate(rooms))
    call("flag_gradients", out.device, ctypes.byref(ends), len(rooms), rank, overflow, out)


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
    """See `cuda_src.exchange.sum_gradients`."""
    if len(out) == 0:
        return
    if returned.shape[1:] != (SENT_GRADIENTS,):
        raise ValueError(f"expected rows of {SENT_GRADIENTS} gradients, got {tuple(returned.shape)}")
    own = ctypes.c_void_p(None) if gradients is None else rows_of(gradients, GRADIENT_STRIDE)
    call(
        "sum_gradients", out.device, ctypes.byref(Routes.of(routing)), returned, rank, own, count(hole.first),
        count(hole.count), rows_of(out, GRADIENT_STRIDE), zeros,
    )  # fmt: skip


def rows_of(values: torch.Tensor, stride: int) -> ctypes.c_void_p:
    """The address of records or gradients that lie as kernels read them; ValueError for others."""
    if values.dtype != torch.float32 or not values.is_cuda or (len(values) and values.stride() != (stride, 1)):
        raise ValueError(
            f"expected float32 rows {stride} apart on a GPU, got {values.dtype}, {values.device}, {values.stride()}"
        )
    if values.data_ptr() % ALIGNMENT:
        raise ValueError(f"expected rows that begin at a multiple of {ALIGNMENT} bytes")
    return ctypes.c_void_p(values.data_ptr())
