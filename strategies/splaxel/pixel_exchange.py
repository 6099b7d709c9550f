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
        stacks = [self._nothing(len(s.sight.layers), len(s.lists.needed), like) for s in sharings]
        send: dict[int, list[torch.Tensor]] = {r: [] for r in range(comm.ranks)}
        packed = {(view, number): _packed(layers[view][number]) for view, number in _carried(sharings, rank)}
        for other in range(comm.ranks):
            for (view, number), rows in packed.items():
                lists = sharings[view].lists
                part = rows.index_select(0, lists.sent(number, other))
                if other == rank:
                    stacks[view][number].index_copy_(0, lists.places(number), part)
                else:
                    send[other].append(part)
        expected = {
            other: [len(sharings[view].lists.sent(number, rank)) for view, number in _carried(sharings, other)]
            for other in range(comm.ranks)
            if other != rank
        }
        came = self._swap("exchange_forward", send, expected, self._nothing(1, 0, like)[0])
        for other, parts in came.items():
            for (view, number), part in zip(_carried(sharings, other), parts, strict=True):
                stacks[view][number].index_copy_(0, sharings[view].lists.places(number), part)
        self._count(sharings, send)
        return [_unpacked(stack) for stack in stacks]

    def backward(
        self,
        sharings: Sequence[Sharing],
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        like: torch.Tensor,
    ) -> list[dict[int, tuple[torch.Tensor, torch.Tensor]]]:
        """By view and own layer, the gradients of its colour and transmittance, [H W, 3] and [H W]; zeros where nobody
        asked.

        With `compose: all` every rank has composited its own pixels itself and nothing is sent.

        gradients: by view, of the pixels this rank composited, [G, P, 3] and [G, P], as `composite_backward` gives.
        """
        comm, rank = self._comm, self._comm.rank
        totals = []
        for sharing in sharings:
            pixels = sharing.shown.shape[1]
            own = [number for _, number in _carried([sharing], rank)]
            totals.append({number: (like.new_zeros((pixels, 3)), like.new_zeros(pixels)) for number in own})
        send: dict[int, list[torch.Tensor]] = {r: [] for r in range(comm.ranks)}
        for other in range(comm.ranks) if self._owner_composes else (rank,):
            for view, number in _carried(sharings, other):
                lists, of_view = sharings[view].lists, gradients[view]
                parts = [of_all[number].index_select(0, lists.places(number)) for of_all in of_view]
                if other == rank:
                    _put(totals[view][number], lists.sent(number, rank), parts)
                else:
                    send[other].append(torch.cat([parts[0], parts[1][:, None]], dim=1))
        if not self._owner_composes:
            return totals
        expected = {
            other: [len(sharings[view].lists.sent(number, other)) for view, number in _carried(sharings, rank)]
            for other in range(comm.ranks)
            if other != rank
        }
        came = self._swap("exchange_backward", send, expected, like.new_empty((0, PIXEL_VALUES)))
        for other, streams in came.items():
            for (view, number), rows in zip(_carried(sharings, rank), streams, strict=True):
                parts = [rows[:, :3], rows[:, 3]]
                _put(totals[view][number], sharings[view].lists.sent(number, other), parts)
        return totals

    def _swap(
        self, stage: str, send: dict[int, list[torch.Tensor]], expected: dict[int, list[int]], like: torch.Tensor
    ) -> dict[int, list[torch.Tensor]]:
        """The streams of the others, cut into their parts."""
        full = {other: parts[0] if len(parts) == 1 else torch.cat(parts) for other, parts in send.items() if parts}
        receive = {other: sum(lengths) for other, lengths in expected.items()}
        came = self._comm.neighbours(stage, full, receive, like)
        return {other: list(came[other].split(lengths)) for other, lengths in expected.items() if lengths}

    def _nothing(self, count: int, pixels: int, like: torch.Tensor) -> torch.Tensor:
        """Rows of partial images in which nothing is blended, as they cross: [count, pixels, values]."""
        rows = like.new_zeros((count, pixels, PIXEL_VALUES + self._with_depth))
        rows[..., 3].fill_(1)
        return rows

    def _count(self, sharings: Sequence[Sharing], send: dict[int, list[torch.Tensor]]) -> None:
        for rows in (part for parts in send.values() for part in parts):
            self.counts.sent += len(rows)
            self.counts.zero += (rows[:, 3] == 1).sum()
        pixels = sum(s.sight.camera.width * s.sight.camera.height for s in sharings)
        self.counts.whole += pixels * (self._comm.ranks - 1)


def _packed(layer: Partials) -> torch.Tensor:
    """Rows of one partial image as they cross, [H W, values]."""
    transmittance = layer.transmittance[0]
    signed = torch.where(layer.stopped[0], -transmittance, transmittance)
    depth = [] if layer.depth is None else [layer.depth[0, :, None]]
    return torch.cat([layer.colour[0], signed[:, None], *depth], dim=1)


def _unpacked(rows: torch.Tensor) -> Partials:
    """The reverse, [G, P, values]."""
    signed = rows[..., 3]
    return Partials(rows[..., :3], signed.abs(), signed < 0, rows[..., 4] if rows.shape[2] > PIXEL_VALUES else None)


def _put(total: tuple[torch.Tensor, torch.Tensor], pixels: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Write gradients of colour and transmittance at these pixels."""
    for whole, part in zip(total, parts, strict=True):
        whole.index_copy_(0, pixels, part)


def _carried(sharings: Sequence[Sharing], rank: int) -> Iterator[tuple[int, int]]:
    """(view, layer) of every layer that the rank shows."""
    for view, sharing in enumerate(sharings):
        if rank in sharing.takes_part:
            for number, layer in enumerate(sharing.sight.layers):
                if layer.rank == rank:
                    yield view, number
