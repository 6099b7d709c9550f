"""Gaussian-level exchange: splat records go to the ranks whose pixels they touch, gradients come back.

One mechanism for Grendel and ByteSplat: ownership x regions x codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F

from cuda_src.layout import GRADIENT, RECORD, RECORD_OPACITY
from cuda_src.operators import Bins, Splats
from strategies.distribution.codec import CODECS, Outgoing, nonzero_rows
from strategies.distribution.communicator import Communicator

FORWARD_BYTES = 44
"""mean2D 2, conic 3, opacity 1, colour 3, depth and radius: 11 float32."""
BACKWARD_BYTES = 36
"""Gradients of the first nine, zeros included."""
GRADIENTS_SENT = 9
PADDED_RECORD = 16
"""64 B, so that scattered access to records runs at the link's rate."""


@dataclass(frozen=True)
class Route:
    """Where the records of a batch went and came from.

    splats: this rank's, by view. sent: the splat of each record, numbered through the views one after another, by
    destination, then view. received: stable ids of the records that came, by source, then view. send_counts,
    receive_counts: [views, ranks] int64. arrived: permutation from source-major to view-major records.
    """

    splats: Sequence[Splats]
    sent: torch.Tensor
    received: torch.Tensor
    send_counts: torch.Tensor
    receive_counts: torch.Tensor
    arrived: torch.Tensor


def touched_ranks(bins: Bins, owner: torch.Tensor, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (rank, splat) of which the rank's tiles hold the splat, sorted: two [n] int64 tensors.

    bins: over all tiles of the view. owner: rank of each tile, [tiles].
    """
    lengths = bins.starts[1:] - bins.starts[:-1]
    rank_of_instance = owner.to(bins.tiles.device)[bins.tiles.long()].repeat_interleave(lengths)
    splats = max(1, len(bins.splat_starts) - 1)
    pairs = torch.unique(rank_of_instance * splats + bins.splat.long())
    return pairs // splats, pairs % splats


def _regroup(counts: torch.Tensor) -> torch.Tensor:
    """Permutation that turns records grouped by (row, column) of `counts` into groups by (column, row)."""
    rows, columns = counts.shape
    group = torch.arange(rows * columns).repeat_interleave(counts.reshape(-1))
    return torch.argsort(group % columns * rows + group // columns, stable=True)


def above_opacity(least: float) -> Callable[[Splats], torch.Tensor] | None:
    """Which splats may be sent at all, as a [V] mask; None for all of them."""
    return (lambda splats: splats.records[:, RECORD_OPACITY] >= least) if least > 0 else None


class GaussianExchange:
    """Sends records forward and gradients backward, on one communicator.

    pad: records travel as 64 B, aligned; the padding is metadata. codec: how gradients travel (`CODECS`).
    `zeros` of `records` sent back since `clear` had a gradient of exactly zero, whatever the codec.
    """

    def __init__(self, comm: Communicator, pad: bool = False, codec: str = "dense"):
        self.comm = comm
        self.width = PADDED_RECORD if pad else RECORD
        self.codec = CODECS[codec]()
        self.zeros = self.records = 0

    def clear(self) -> None:
        """Start a new window of the counters."""
        self.zeros = self.records = 0

    def forward(
        self,
        splats: Sequence[Splats],
        bins: Sequence[Bins],
        owners: Sequence[torch.Tensor],
        sendable: Callable[[Splats], torch.Tensor] | None = None,
        stage: str = "exchange_forward",
    ) -> tuple[list[Splats], Route]:
        """By view: the records that touch this rank's region, from all ranks, and the way back.

        splats, bins: this rank's Gaussians in each view, binned over the whole image. owners: rank of each tile.
        sendable: a mask of the splats that may be sent. Rows of the received splats number them as they stand; ids
        are the Gaussians' own. stage: the ledger's name for it.
        """
        comm, ranks = self.comm, self.comm.ranks
        sent, send_counts = [], torch.zeros((len(splats), ranks), dtype=torch.int64)
        for view in range(len(splats)):
            destination, splat = touched_ranks(bins[view], owners[view], ranks)
            if sendable is not None:
                kept = sendable(splats[view])[splat]
                destination, splat = destination[kept], splat[kept]
            sent.append(splat)
            send_counts[view] = torch.bincount(destination, minlength=ranks)
        counted = comm.counts(stage, send_counts.T.contiguous())
        order = _regroup(send_counts)
        before = [0, *accumulate(s.count for s in splats)]
        numbered = torch.cat([rows + first for rows, first in zip(sent, before, strict=False)])[order]
        records = torch.cat([s.records[rows] for s, rows in zip(splats, sent, strict=True)])[order]
        ids = torch.cat([s.ids[rows] for s, rows in zip(splats, sent, strict=True)])[order]
        receive_counts = counted.wait().T.contiguous()
        to, back = send_counts.sum(0).tolist(), receive_counts.sum(0).tolist()
        # Ids break ties of depth, so that every rank blends in the order of `single`.
        ids_pending = comm.exchange(stage, ids, to, back, metadata=True)
        records = F.pad(records, (0, self.width - RECORD))
        received = comm.exchange(stage, records, to, back, padding=self.width - RECORD).wait()
        received_ids = ids_pending.wait()
        arrived = _regroup(receive_counts.T)
        lengths = receive_counts.sum(1).tolist()
        by_view = [
            Splats(torch.arange(len(r), device=r.device), i, r[:, :RECORD].contiguous())
            for r, i in zip(received[arrived].split(lengths), received_ids[arrived].split(lengths), strict=True)
        ]
        return by_view, Route(splats, numbered, received_ids, send_counts, receive_counts, arrived)

    def backward(self, route: Route, gradients: Sequence[torch.Tensor], views: Sequence[int]) -> list[torch.Tensor]:
        """By view: gradients of this rank's own splats, [V, GRADIENT], summed over the ranks that rendered them.

        gradients: by view [received, GRADIENT], as raster_backward left them. views: the batch's view numbers.
        """
        rows = self._by_source(route, [g[:, :GRADIENTS_SENT] for g in gradients])
        nonzero = nonzero_rows(rows)
        self.records += len(rows)
        self.zeros += len(rows) - int(nonzero.sum())
        outgoing = Outgoing(rows, nonzero, route.receive_counts.T, views, route.received)
        incoming = self.codec.exchange(self.comm, outgoing, route.send_counts.T)
        lengths = [s.count for s in route.splats]
        total = rows.new_zeros((sum(lengths), GRADIENT))
        # Sources one after another, as the positions ascend: a sum has the same bits whatever the codec leaves out.
        total[:, :GRADIENTS_SENT].index_add_(0, route.sent[incoming.positions], incoming.rows)
        return list(total.split(lengths))

    def sums(self, stage: str, route: Route, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """By view: any values of the received records, [received, k], summed at their owners: [V, k]."""
        rows = self._by_source(route, values)
        to, back = route.receive_counts.sum(0).tolist(), route.send_counts.sum(0).tolist()
        received = self.comm.exchange(stage, rows, to, back).wait()
        lengths = [s.count for s in route.splats]
        total = rows.new_zeros((sum(lengths), *rows.shape[1:])).index_add_(0, route.sent, received)
        return list(total.split(lengths))

    def _by_source(self, route: Route, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows by view brought into the order in which their records came."""
        stacked = torch.cat(list(values))
        rows = torch.empty_like(stacked)
        rows[route.arrived] = stacked
        return rows


assert FORWARD_BYTES == 4 * RECORD
assert BACKWARD_BYTES == 4 * GRADIENTS_SENT
