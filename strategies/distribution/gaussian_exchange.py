"""Gaussian-level exchange: splat records go to the ranks whose pixels they touch, gradients come back.

One mechanism for Grendel and ByteSplat: ownership x regions x codec (mechanisms, sections 1 and 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from cuda_src.layout import GRADIENT, RECORD, RECORD_OPACITY
from cuda_src.operators import Bins, Splats
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

    splats: this rank's, by view. sent: by view, the splat of each record, in order of destination. send_counts,
    receive_counts: [views, ranks] int64. order: permutation from view-major to destination-major records, and
    arrived: from source-major to view-major.
    """

    splats: Sequence[Splats]
    sent: Sequence[torch.Tensor]
    send_counts: torch.Tensor
    receive_counts: torch.Tensor
    order: torch.Tensor
    arrived: torch.Tensor


def touched_ranks(bins: Bins, owner: torch.Tensor, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (rank, splat) of which the rank's tiles hold the splat, sorted: two [n] int64 tensors.

    bins: over all tiles of the view. owner: rank of each tile, [tiles].
    """
    lengths = bins.starts[1:] - bins.starts[:-1]
    rank_of_instance = owner[bins.tiles.long()].repeat_interleave(lengths)
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

    pad: records travel as 64 B, aligned; the padding is metadata.
    """

    def __init__(self, comm: Communicator, pad: bool = False):
        self.comm = comm
        self.width = PADDED_RECORD if pad else RECORD

    def forward(
        self,
        splats: Sequence[Splats],
        bins: Sequence[Bins],
        owners: Sequence[torch.Tensor],
        sendable: Callable[[Splats], torch.Tensor] | None = None,
    ) -> tuple[list[Splats], Route]:
        """By view: the records that touch this rank's region, from all ranks, and the way back.

        splats, bins: this rank's Gaussians in each view, binned over the whole image. owners: rank of each tile.
        sendable: a mask of the splats that may be sent. Rows of the received splats number them as they stand; ids
        are the Gaussians' own.
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
        counted = comm.counts("exchange_forward", send_counts.T.contiguous())
        order = _regroup(send_counts)
        records = torch.cat([s.records[rows] for s, rows in zip(splats, sent, strict=True)])[order]
        ids = torch.cat([s.ids[rows] for s, rows in zip(splats, sent, strict=True)])[order]
        receive_counts = counted.wait().T.contiguous()
        to, back = send_counts.sum(0).tolist(), receive_counts.sum(0).tolist()
        # Ids break ties of depth, so that every rank blends in the order of `single`.
        ids_pending = comm.exchange("exchange_forward", ids, to, back, metadata=True)
        records = F.pad(records, (0, self.width - RECORD))
        received = comm.exchange("exchange_forward", records, to, back, padding=self.width - RECORD).wait()
        received_ids = ids_pending.wait()
        arrived = _regroup(receive_counts.T)
        lengths = receive_counts.sum(1).tolist()
        by_view = [
            Splats(torch.arange(len(r)), i, r[:, :RECORD].contiguous())
            for r, i in zip(received[arrived].split(lengths), received_ids[arrived].split(lengths), strict=True)
        ]
        return by_view, Route(splats, sent, send_counts, receive_counts, order, arrived)

    def backward(self, route: Route, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """By view: gradients of this rank's own splats, [V, GRADIENT], summed over the ranks that rendered them.

        gradients: by view [received, GRADIENT], as raster_backward left them.
        """
        stacked = torch.cat([g[:, :GRADIENTS_SENT] for g in gradients])
        rows = torch.empty_like(stacked)
        rows[route.arrived] = stacked
        to, back = route.receive_counts.sum(0).tolist(), route.send_counts.sum(0).tolist()
        received = self.comm.exchange("exchange_backward", rows, to, back).wait()
        partial = torch.empty_like(received)
        partial[route.order] = received
        totals = []
        lengths = route.send_counts.sum(1).tolist()
        for splats, sent, part in zip(route.splats, route.sent, partial.split(lengths), strict=True):
            total = part.new_zeros((splats.count, GRADIENT))
            total[:, :GRADIENTS_SENT].index_add_(0, sent, part)
            totals.append(total)
        return totals


assert FORWARD_BYTES == 4 * RECORD
assert BACKWARD_BYTES == 4 * GRADIENTS_SENT
