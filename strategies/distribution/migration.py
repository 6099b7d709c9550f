"""Gaussians change owner together with their ids and optimizer state."""

from __future__ import annotations

import torch

from cuda_src.layout import PARAMETERS
from strategies.distribution.communicator import Communicator
from strategies.gaussians import Gaussians


def migrate(comm: Communicator, gaussians: Gaussians, destination: torch.Tensor) -> Gaussians:
    """Send each row to its destination rank; rows come back sorted by id.

    destination: [N] int64. Payload: 3 x 59 values a row; ids are metadata.
    """
    order = torch.argsort(destination, stable=True)
    send = torch.bincount(destination, minlength=comm.ranks)
    receive = comm.counts("migrate", send[:, None]).wait()[:, 0].tolist()
    to = send.tolist()
    ids_pending = comm.exchange("migrate", gaussians.ids[order], to, receive, metadata=True)
    table = torch.cat([gaussians.parameters, gaussians.moment1, gaussians.moment2], dim=1)[order]
    rows = comm.exchange("migrate", table, to, receive).wait()
    ids = ids_pending.wait()
    sorting = torch.argsort(ids)
    parameters, moment1, moment2 = rows[sorting].split(PARAMETERS, dim=1)
    return Gaussians(ids[sorting], parameters.contiguous(), moment1.contiguous(), moment2.contiguous())
