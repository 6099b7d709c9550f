"""Axis-aligned boxes that share space out: the leaves of a kd-tree, and which rank has which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch


@dataclass(frozen=True)
class Cut:
    """A plane across one axis: what is below `at` lies in `low`, the rest in `high`; each a further cut or a leaf."""

    axis: int
    at: float
    low: Cut | None
    high: Cut | None


@dataclass(frozen=True)
class Boxes:
    """Leaves of a kd-tree, numbered from low to high. Half-open, and open to infinity at the outside.

    tree: None for a single box, all of space. ranks: leaves are dealt to so many, the same number to each.
    """

    tree: Cut | None
    ranks: int

    @cached_property
    def _leaves(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """By leaf: [2, 3] lower and upper corner, and [3] its place in the grid of cuts along each axis."""
        everything = np.array([[-np.inf] * 3, [np.inf] * 3])
        return list(_walk(self.tree, everything, np.zeros(3, dtype=np.int64)))

    @property
    def count(self) -> int:
        return len(self._leaves)

    @cached_property
    def corners(self) -> np.ndarray:
        """[boxes, 2, 3] float64, lower and upper; infinite outside."""
        return np.stack([corners for corners, _ in self._leaves])

    @cached_property
    def owner(self) -> np.ndarray:
        """Rank of each box, [boxes] int64.

        Dealt in a checkerboard: boxes on a diagonal of the grid of cuts go to the same rank, so that neighbours do
        not, and what a view sees of one place is spread over all ranks.
        """
        diagonal = np.array([place.sum() % self.ranks for _, place in self._leaves])
        owner = np.empty(self.count, dtype=np.int64)
        owner[np.argsort(diagonal, kind="stable")] = np.arange(self.count) * self.ranks // self.count
        return owner

    def owner_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Rank of the box that holds each position, [n, 3] -> [n] int64."""
        return torch.from_numpy(self.owner).to(positions.device)[self.leaf_of(positions)]

    def of(self, rank: int) -> list[int]:
        """Boxes of that rank, ascending."""
        return np.nonzero(self.owner == rank)[0].tolist()

    def leaf_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Box that holds each position, [n, 3] -> [n] int64."""
        leaf = torch.empty(len(positions), dtype=torch.int64, device=positions.device)
        number = 0
        pending: list[tuple[Cut | None, torch.Tensor]] = [(self.tree, torch.arange(len(positions), device=leaf.device))]
        while pending:
            cut, rows = pending.pop()
            if cut is None:
                leaf[rows] = number
                number += 1
            else:
                below = positions[rows, cut.axis].double() < cut.at
                pending += [(cut.high, rows[~below]), (cut.low, rows[below])]
        return leaf

    def front_to_back(self, centre: np.ndarray) -> list[int]:
        """All boxes, those on the camera's side of each cut first: the order along every ray from there."""
        numbered = iter(range(self.count))

        def visit(cut: Cut | None) -> list[int]:
            if cut is None:
                return [next(numbered)]
            low, high = visit(cut.low), visit(cut.high)
            return low + high if centre[cut.axis] < cut.at else high + low

        return visit(self.tree)


def _walk(cut: Cut | None, corners: np.ndarray, place: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if cut is None:
        yield corners, place
        return
    for side, child in enumerate((cut.low, cut.high)):
        inner, finer = corners.copy(), place.copy()
        inner[1 - side, cut.axis] = cut.at
        finer[cut.axis] = 2 * finer[cut.axis] + side
        yield from _walk(child, inner, finer)


def median_boxes(positions: torch.Tensor, ranks: int, boxes_per_rank: int) -> Boxes:
    """Boxes of equal count: cut on the longest axis where counts stand as leaves do (the median, for two).

    A cut runs midway between its two neighbours, so that few splats straddle it where there is a gap. Positions [n, 3]
    are sorted on the device where they lie; the cuts are the same on every one.
    """
    return Boxes(_median_cut(positions.double(), ranks * boxes_per_rank), ranks)


def _median_cut(positions: torch.Tensor, leaves: int) -> Cut | None:
    if leaves == 1:
        return None
    left = leaves // 2
    if not len(positions):
        return Cut(0, 0.0, _median_cut(positions, left), _median_cut(positions, leaves - left))
    axis = int((positions.amax(0) - positions.amin(0)).argmax())
    along, cut = positions[:, axis], len(positions) * left // leaves
    at = float(along.sort().values[max(0, cut - 1) : cut + 1].mean())
    below = along < at
    return Cut(axis, at, _median_cut(positions[below], left), _median_cut(positions[~below], leaves - left))
