"""Splats that cross a face: `boundary: exact` shows them to every rank whose box their plate meets.

After RetinaGS (Li et al. 2024): the oracle blends by mean depth, so the splat belongs, pixel by pixel, to the box that
holds the ray's point at that depth. Records go out, gradients come home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cuda_src.exchange import SENT_GRADIENTS
from cuda_src.layout import GRADIENT
from cuda_src.operators import Splats
from strategies.distribution.communicator import Communicator
from strategies.splaxel.subtiles import numbers_of

STAGE = "exchange_boundary"


@dataclass(frozen=True)
class Copies:
    """Where a step's splats went and came from, by view, then rank.

    sent: rows of this rank's splats that went to each rank. received: how many came from each.
    """

    splats: Sequence[Splats]
    sent: Sequence[Sequence[torch.Tensor]]
    received: Sequence[Sequence[int]]


def send_copies(
    comm: Communicator, splats: Sequence[Splats], wanted: Sequence[Sequence[torch.Tensor]]
) -> tuple[list[Splats], Copies]:
    """By view: this rank's splats and, behind them, the copies from the other ranks, by rank.

    wanted: by view and rank, which of this rank's splats go there, [V] bool; of this rank itself it is not read.
    A copy's row is its own number; ids are the Gaussian's.
    """
    views, ranks = range(len(splats)), range(comm.ranks)
    # All numbers come to the host at once.
    counted = torch.stack([torch.stack([w.sum() for w in of]) for of in wanted]).tolist()
    sent = [
        [
            numbers_of(w[None], [n])[0] if r != comm.rank else w.new_empty(0, dtype=torch.int64)
            for r, (w, n) in enumerate(zip(of, counts, strict=True))
        ]
        for of, counts in zip(wanted, counted, strict=True)
    ]
    lengths = torch.tensor([[len(sent[v][r]) for v in views] for r in ranks], dtype=torch.int64)
    came = comm.counts(STAGE, lengths).wait()
    to, back = lengths.sum(dim=1).tolist(), came.sum(dim=1).tolist()
    ids = torch.cat([splats[v].ids[sent[v][r]] for r in ranks for v in views])
    records = torch.cat([splats[v].records[sent[v][r]] for r in ranks for v in views])
    # Ids break ties of depth, so that a box blends in the order of `single`.
    ids_pending = comm.exchange(STAGE, ids, to, back, metadata=True)
    records = comm.exchange(STAGE, records, to, back).wait()
    parts = list(
        zip(ids_pending.wait().split(came.flatten().tolist()), records.split(came.flatten().tolist()), strict=True)
    )
    everything = []
    for v in views:
        of_view = [parts[r * len(splats) + v] for r in ranks]
        all_ids = torch.cat([splats[v].ids, *(i for i, _ in of_view)])
        table = torch.cat([splats[v].records, *(t for _, t in of_view)])
        everything.append(Splats(torch.arange(len(all_ids), device=all_ids.device), all_ids, table))
    return everything, Copies(splats, sent, came.T.tolist())


def return_gradients(comm: Communicator, copies: Copies, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """By view: gradients of this rank's own splats, [V, GRADIENT], copies' included.

    gradients: by view, of the splats that `send_copies` returned, in their order.
    """
    views, ranks = range(len(gradients)), range(comm.ranks)
    own = [len(s.rows) for s in copies.splats]
    parts = [gradients[v][own[v] :, :SENT_GRADIENTS].split(copies.received[v]) for v in views]
    send = torch.cat([parts[v][r] for r in ranks for v in views])
    to = [sum(copies.received[v][r] for v in views) for r in ranks]
    lengths = [len(copies.sent[v][r]) for r in ranks for v in views]
    back = [sum(len(copies.sent[v][r]) for v in views) for r in ranks]
    came = comm.exchange(STAGE, send, to, back).wait().split(lengths)
    totals = [g[:n].clone() for g, n in zip(gradients, own, strict=True)]
    for r in ranks:
        for v in views:
            totals[v][:, :SENT_GRADIENTS].index_add_(0, copies.sent[v][r], came[r * len(gradients) + v])
    return totals


assert GRADIENT > SENT_GRADIENTS
