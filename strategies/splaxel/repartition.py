"""Boxes cut anew when the ranks' work has drifted apart (Splaxel)."""

from __future__ import annotations

import torch

from strategies.distribution.communicator import Communicator
from strategies.splaxel.boxes import Boxes, Cut

BINS = 1024
"""Bins of a node's histogram: a cut is within a thousandth of the node's side of where it should be."""
_STAGE = "repartition"


def imbalance(comm: Communicator, work: float) -> float:
    """max / mean - 1 of the ranks' work. Collective."""
    every = torch.cat(comm.gather(_STAGE, torch.tensor([work], dtype=torch.float64)))
    mean = float(every.mean())
    return float(every.max()) / mean - 1 if mean > 0 else 0.0


def balanced_boxes(comm: Communicator, positions: torch.Tensor, work: torch.Tensor, boxes_per_rank: int) -> Boxes:
    """Boxes of equal work, cut level by level on the longest axis from local histograms. Collective.

    positions: [N, 3] of this rank's Gaussians; work: [N], what each costs. No Gaussian moves yet.
    """
    nodes: list[int] = [0]
    cuts: dict[int, tuple[int, float]] = {}
    node = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
    along, weight = positions.double(), work.double()
    # Nodes are numbered as in a heap: 2 n + 1 and 2 n + 2 lie below n.
    shares = {0: comm.ranks * boxes_per_rank}
    while nodes := [n for n in nodes if shares[n] > 1]:
        axes, low, high = _longest_axes(comm, along, node, nodes)
        totals = _histograms(comm, along, weight, node, nodes, axes, low, high)
        children = []
        for number, n in enumerate(nodes):
            left = shares[n] // 2
            before = totals[number].cumsum(0)
            target = before[-1] * left / shares[n]
            bin_after = int(torch.searchsorted(before, target)) + 1
            at = float(low[number] + (high[number] - low[number]) * min(bin_after, BINS) / BINS)
            cuts[n] = (axes[number], at)
            shares[2 * n + 1], shares[2 * n + 2] = left, shares[n] - left
            mine = node == n
            node[mine] = 2 * n + 1 + (along[mine, axes[number]] >= at).long()
            children += [2 * n + 1, 2 * n + 2]
        nodes = children
    return Boxes(_tree(cuts, 0), comm.ranks)


def _longest_axes(
    comm: Communicator, positions: torch.Tensor, node: torch.Tensor, nodes: list[int]
) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """By node, its longest axis and its bounds along that axis over all ranks; an empty node has bounds 0."""
    bounds = torch.full((len(nodes), 2, 3), -torch.inf, dtype=torch.float64)
    for number, n in enumerate(nodes):
        mine = positions[node == n]
        if len(mine):
            bounds[number, 0], bounds[number, 1] = -mine.amin(dim=0), mine.amax(dim=0)
    bounds = torch.stack(comm.gather(_STAGE, bounds)).amax(dim=0)
    lower, upper = -bounds[:, 0], bounds[:, 1]
    empty = (lower > upper).any(dim=1, keepdim=True)
    lower, upper = torch.where(empty, 0.0, lower), torch.where(empty, 0.0, upper)
    axes = (upper - lower).argmax(dim=1)
    return axes.tolist(), lower.gather(1, axes[:, None])[:, 0], upper.gather(1, axes[:, None])[:, 0]


def _histograms(
    comm: Communicator,
    positions: torch.Tensor,
    work: torch.Tensor,
    node: torch.Tensor,
    nodes: list[int],
    axes: list[int],
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor:
    """By node, work along its axis over all ranks, [nodes, BINS] on the host. Sums of whole numbers have no order."""
    local = torch.zeros((len(nodes), BINS), dtype=torch.float64, device=work.device)
    for number, n in enumerate(nodes):
        mine = node == n
        start, side = float(low[number]), float(high[number] - low[number])
        unit = (positions[mine, axes[number]] - start) / (side if side > 0 else 1.0)
        bins = (unit * BINS).long().clamp(0, BINS - 1)
        local[number].index_add_(0, bins, work[mine])
    return comm.reduce(_STAGE, local.cpu())


def _tree(cuts: dict[int, tuple[int, float]], n: int) -> Cut | None:
    if n not in cuts:
        return None
    axis, at = cuts[n]
    return Cut(axis, at, _tree(cuts, 2 * n + 1), _tree(cuts, 2 * n + 2))
