"""Flat streams of pixels between ranks: partial images forward and, with `compose: owner`, their gradients back.

16 B a pixel and partial image each way, whatever the number of Gaussians: colour 3 and transmittance 1, float32 (and
depth, 4 B, with `order: depth`). Positions are implied, since all ranks know who shows and who needs what. The sign of
the transmittance carries the stopped bit: it never reaches zero, and the bit costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from strategies.distribution.communicator import Communicator
from strategies.splaxel.composition import Partials
from strategies.splaxel.sight import Sharing

PIXEL_VALUES = 4
"""Values of a pixel on the wire, either way."""


@dataclass
class PixelCounts:
    """Pixels of partial images this rank sent to others, those of them in which nothing was blended (counted where
    they lie, so that nobody waits), and what whole images to all others would have been."""

    sent: int = 0
    zero: int | torch.Tensor = 0
    whole: int = 0


class PixelExchange:
    """Moves the pixels of all views of a step at once."""

    def __init__(self, comm: Communicator, compose: Literal["all", "owner"], with_depth: bool):
        self._comm = comm
        self._owner_composes = compose == "owner"
        self._with_depth = with_depth
        self.counts = PixelCounts()

    def forward(
        self, sharings: Sequence[Sharing], layers: Sequence[dict[int, Partials]], like: torch.Tensor
    ) -> list[Partials]:
        """By view, all layers at the pixels that this rank composites, in the order of the sight's layers.

        layers: by view, this rank's own, by number of the layer, each [1, H W]. like: of the stream's type and device.
        """
        comm, rank = self._comm, self._comm.rank
        width = PIXEL_VALUES + self._with_depth
        stacks = [Partials.empty(len(s.sight.layers), len(s.needed(rank)[0]), like, self._with_depth) for s in sharings]
        place_of = [s.needed(rank)[1] for s in sharings]
        send: dict[int, list[torch.Tensor]] = {r: [] for r in range(comm.ranks)}
        for other in range(comm.ranks):
            for view, number in _carried(sharings, rank):
                pixels = sharings[view].sent(number, other)
                rows = self._packed(layers[view][number], pixels)
                if other == rank:
                    self._unpack(rows, stacks[view], number, place_of[view][pixels])
                else:
                    send[other].append(rows)
        expected = {
            other: [len(sharings[view].sent(number, rank)) for view, number in _carried(sharings, other)]
            for other in range(comm.ranks)
            if other != rank
        }
        came = self._swap("exchange_forward", send, expected, like.new_empty((0, width)))
        for other, parts in came.items():
            for (view, number), rows in zip(_carried(sharings, other), parts, strict=True):
                at = place_of[view][sharings[view].sent(number, rank)]
                self._unpack(rows, stacks[view], number, at)
        self._count(sharings, send)
        return stacks

    def backward(
        self,
        sharings: Sequence[Sharing],
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        like: torch.Tensor,
    ) -> list[dict[int, torch.Tensor]]:
        """By view and own layer, the gradients of its colour and transmittance, [H W, 4]; zeros where nobody asked.

        With `compose: all` every rank has composited its own pixels itself and nothing is sent.

        gradients: by view, of the pixels this rank composited, [G, P, 3] and [G, P], as `composite_backward` gives.
        """
        comm, rank = self._comm, self._comm.rank
        place_of = [s.needed(rank)[1] for s in sharings]
        totals = [
            {n: like.new_zeros((s.shown.shape[1], PIXEL_VALUES)) for v, n in _carried([s], rank)} for s in sharings
        ]
        send: dict[int, list[torch.Tensor]] = {r: [] for r in range(comm.ranks)}
        for other in range(comm.ranks) if self._owner_composes else (rank,):
            for view, number in _carried(sharings, other):
                pixels = sharings[view].sent(number, rank)
                at = place_of[view][pixels]
                to_colour, to_transmittance = gradients[view]
                rows = torch.cat([to_colour[number, at], to_transmittance[number, at, None]], dim=1)
                if other == rank:
                    totals[view][number][pixels] = rows
                else:
                    send[other].append(rows)
        if not self._owner_composes:
            return totals
        expected = {
            other: [len(sharings[view].sent(number, other)) for view, number in _carried(sharings, rank)]
            for other in range(comm.ranks)
            if other != rank
        }
        came = self._swap("exchange_backward", send, expected, like.new_empty((0, PIXEL_VALUES)))
        for other, parts in came.items():
            for (view, number), rows in zip(_carried(sharings, rank), parts, strict=True):
                totals[view][number][sharings[view].sent(number, other)] = rows
        return totals

    def _swap(
        self, stage: str, send: dict[int, list[torch.Tensor]], expected: dict[int, list[int]], like: torch.Tensor
    ) -> dict[int, list[torch.Tensor]]:
        """The streams of the others, cut into their parts."""
        full = {other: torch.cat(parts) for other, parts in send.items() if parts}
        receive = {other: sum(lengths) for other, lengths in expected.items()}
        came = self._comm.neighbours(stage, full, receive, like)
        return {other: list(came[other].split(lengths)) for other, lengths in expected.items() if lengths}

    def _packed(self, layer: Partials, pixels: torch.Tensor) -> torch.Tensor:
        transmittance = layer.transmittance[0, pixels]
        signed = torch.where(layer.stopped[0, pixels], -transmittance, transmittance)
        columns = [layer.colour[0, pixels], signed[:, None]]
        if layer.depth is not None:
            columns.append(layer.depth[0, pixels, None])
        return torch.cat(columns, dim=1)

    def _unpack(self, rows: torch.Tensor, stack: Partials, number: int, at: torch.Tensor) -> None:
        stack.colour[number, at] = rows[:, :3]
        stack.transmittance[number, at] = rows[:, 3].abs()
        stack.stopped[number, at] = rows[:, 3] < 0
        if stack.depth is not None:
            stack.depth[number, at] = rows[:, 4]

    def _count(self, sharings: Sequence[Sharing], send: dict[int, list[torch.Tensor]]) -> None:
        for rows in (part for parts in send.values() for part in parts):
            self.counts.sent += len(rows)
            self.counts.zero += (rows[:, 3] == 1).sum()
        pixels = sum(s.sight.camera.width * s.sight.camera.height for s in sharings)
        self.counts.whole += pixels * (self._comm.ranks - 1)


def _carried(sharings: Sequence[Sharing], rank: int) -> Iterator[tuple[int, int]]:
    """(view, layer) of every layer that the rank shows."""
    for view, sharing in enumerate(sharings):
        if rank in sharing.takes_part:
            for number, layer in enumerate(sharing.sight.layers):
                if layer.rank == rank:
                    yield view, number
