"""Gaussians change owner together with their ids and optimizer state."""

from __future__ import annotations

import torch

from cuda_src.layout import MEAN
from cuda_src.operators import KernelSet
from cuda_src.packing import id_words, pack_rows, packed_ids, packed_width, unpack_rows
from strategies.distribution.communicator import Communicator
from strategies.gaussians import Gaussians
from strategies.morton import morton_order


def migrate(comm: Communicator, kernels: KernelSet, gaussians: Gaussians, destination: torch.Tensor) -> Gaussians:
    """Send each row to its destination rank; rows come back in Morton order.

    destination: [N] int64. One packed row a Gaussian: 3 x 59 values are payload, the id behind them is metadata.
    """
    destination = destination.to(gaussians.ids.device)
    order = torch.argsort(destination, stable=True)
    send = torch.bincount(destination, minlength=comm.ranks).cpu()
    receive = comm.counts("migrate", send[:, None]).wait()[:, 0].tolist()
    tables = gaussians.tables
    packed = tables[0].new_empty((gaussians.count, packed_width(tables)))
    pack_rows(kernels, gaussians.ids, tables, order, packed)
    padding = id_words(packed.dtype)
    rows = comm.exchange("migrate", packed, send.tolist(), receive, padding=padding).wait()
    # The parameters' table comes first, so that a row begins with its mean.
    order = morton_order(rows[:, MEAN], packed_ids(rows))
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    arrived = Gaussians.empty(len(rows), rows.device, rows.dtype)
    unpack_rows(kernels, rows, arrived.ids, arrived.tables, places)
    return arrived
