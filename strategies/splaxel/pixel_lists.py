"""Which pixels of a visit a rank composites, sends and gets, and those of its halo, as lists of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from strategies.distribution.host_copies import HostCopies
from strategies.splaxel import subtiles


class PixelLists:
    """Numbers y W + x of pixels, ascending, [n] int64 where images lie.

    Making one queues the masks, and how many pixels they flag is on its way to the host from then on. Who asks for a
    list first waits for that: nobody, where the host has waited for work that was queued behind.
    """

    def __init__(
        self,
        shown: torch.Tensor,
        owners: Sequence[int],
        needs: torch.Tensor,
        rank: int,
        copies: HostCopies,
        near: torch.Tensor | None = None,
    ):
        """shown: what each layer sends to whoever needs it, [layers, H W] bool. owners: rank of each layer. needs: what
        each rank composites, [ranks, H W] bool. rank: whose lists these are. near: pixels that each rank's loss looks
        at, where ranks composite each their own and have a halo, [ranks, H W] bool."""
        self._ranks, self._rank = len(needs), rank
        own = needs[rank : rank + 1]
        parts, self._pairs = [own], []
        for layer, owner in enumerate(owners):
            parts.append(shown[layer] & (needs if owner == rank else own))
            self._pairs += [(layer, other) for other in (range(self._ranks) if owner == rank else (rank,))]
        if near is not None:
            gives, takes = own & near, needs & near[rank]
            parts += [gives, takes]
            for side in (gives, takes):
                side[rank].fill_(False)
        self._masks: torch.Tensor | None = torch.cat(parts)
        self._sizes = copies.start(self._masks.sum(dim=1))
        # Place of each pixel among those needed; of others, that of the one before.
        self._place_of = own[0].cumsum(0).sub_(1)
        self._places: dict[int, torch.Tensor] = {}

    @property
    def needed(self) -> torch.Tensor:
        """Pixels that the rank composites."""
        return self._found[0]

    def sent(self, layer: int, rank: int) -> torch.Tensor:
        """Pixels of a layer that go to a rank; this one's own layers, or this rank."""
        return self._sent[layer, rank]

    def places(self, layer: int) -> torch.Tensor:
        """Where the pixels of a layer that come to this rank stand among those that it composites."""
        if layer not in self._places:
            self._places[layer] = self._place_of[self.sent(layer, self._rank)]
        return self._places[layer]

    @property
    def gives(self) -> list[torch.Tensor]:
        """Of the halo, by rank, what goes there once it is composited."""
        return self._found[-2 * self._ranks : -self._ranks]

    @property
    def takes(self) -> list[torch.Tensor]:
        """Of the halo, by rank, what comes from there."""
        return self._found[-self._ranks :]

    @cached_property
    def _found(self) -> list[torch.Tensor]:
        masks, self._masks = self._masks, None
        assert masks is not None
        return subtiles.numbers_of(masks, self._sizes.read(torch.Tensor.tolist))

    @cached_property
    def _sent(self) -> dict[tuple[int, int], torch.Tensor]:
        return dict(zip(self._pairs, self._found[1:], strict=False))  # And behind them the halo.
