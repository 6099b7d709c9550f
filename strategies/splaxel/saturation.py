"""Saturation redundancy: sub-tiles of a box that no light reaches are left out of later visits of the view.

Splaxel's masks: behind a stopped prefix, or one whose transmittance is below eps, a box is
neither rendered nor exchanged nor supervised. The rank that counts a tile judges it; one bit a (box, sub-tile) is
told to all, so that masks are known alike everywhere and positions stay implied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from strategies.distribution.communicator import Communicator
from strategies.distribution.host_copies import HostCopies, HostCopy
from strategies.splaxel import subtiles
from strategies.splaxel.composition import Partials, light_in_front
from strategies.splaxel.info import SplaxelOptions
from strategies.splaxel.sight import Sharing


@dataclass
class PairCounts:
    """(pixel, box) pairs over visits, in whole sub-tiles, the same on all ranks.

    seen: in visible regions. pruned: left out. saturated: found so by the visit. hits: of those, left out already.
    flipped: left out, though light reaches them. age: images since a pair was left out, summed over those pruned.
    """

    seen: int = 0
    pruned: int = 0
    saturated: int = 0
    hits: int = 0
    flipped: int = 0
    age: int = 0


@dataclass
class _Mask:
    """Of one box in one view. active: grid of what is shown. since: images seen when a sub-tile was left out."""

    active: torch.Tensor
    since: torch.Tensor


@dataclass
class _ViewMasks:
    """Masks of a view by box, its visits, and by layer what its pruned pixels' light was when last shown.

    kept: by the layer's boxes, pixel numbers (int32) and transmittances, negative where compositing stopped, on the
    device; only on the rank that counts the pixel.
    """

    visits: int = 0
    boxes: dict[int, _Mask] = field(default_factory=dict)
    kept: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


class Masks:
    """Masks of all views. `active` before a visit, `judge` and `learn` after it."""

    def __init__(self, comm: Communicator, options: SplaxelOptions):
        self._comm, self._options = comm, options
        self._views: dict[int, _ViewMasks] = {}
        self._copies = HostCopies()
        self.counts = PairCounts()

    def forget(self) -> None:
        """The boxes, or which Gaussians they hold, have changed: masks mean nothing any more."""
        self._views = {}

    def active(self, view: int) -> dict[int, torch.Tensor]:
        """By box, the grid that this visit shows; boxes left out of it show everything."""
        known = self._views.get(view)
        if known is None or self._shows_all(known):
            return {}
        return {box: mask.active for box, mask in known.boxes.items()}

    def judge(self, views: Sequence[int], sharings: Sequence[Sharing], stacks: Sequence[Partials]) -> list[HostCopy]:
        """Judge what each visit showed, for `learn`: by view, sub-tiles that light reaches, on their way to the host.

        stacks: by view, all layers' partials at the pixels that this rank composited. A rank judges the tiles that it
        counts, front to back by the boxes' order.
        """
        if self._options.saturation == "off":
            return []
        return [
            self._copies.start(self._lit(self._views.setdefault(view, _ViewMasks()), sharing, stack))
            for view, sharing, stack in zip(views, sharings, stacks, strict=True)
        ]

    def learn(
        self,
        views: Sequence[int],
        sharings: Sequence[Sharing],
        judged: Sequence[HostCopy],
        images_seen: int,
    ) -> None:
        """Agree on the masks of the next visits. judged: what `judge` returned. Collective.

        It waits for what was judged alone: the device has the rest of the step to do meanwhile.
        """
        if self._options.saturation == "off":
            return
        rank, mine = self._comm.rank, []
        for sharing, lit in zip(sharings, judged, strict=True):
            own = sharing.counter == rank
            mine += [bits[own] for bits in lit.read(lambda grids: [*map(subtiles.to_bits, grids)])]
        told = self._comm.gather("masks", torch.cat(mine) if mine else torch.empty(0, dtype=torch.uint8))
        read = [0] * self._comm.ranks
        for view, sharing in zip(views, sharings, strict=True):
            grids = []
            for _ in sharing.sight.layers:
                bits = torch.zeros(sharing.sight.camera.tiles, dtype=torch.uint8)
                for source, part in enumerate(told):
                    tiles = sharing.counter == source
                    count = int(tiles.sum())
                    bits[tiles] = part[read[source] : read[source] + count]
                    read[source] += count
                grids.append(subtiles.from_bits(bits, sharing.sight.camera))
            self._update(self._views[view], sharing, grids, images_seen)

    def _shows_all(self, known: _ViewMasks) -> bool:
        return self._options.reactivate == "every_k" and known.visits % self._options.every == 0

    def _lit(self, known: _ViewMasks, sharing: Sharing, stack: Partials) -> torch.Tensor:
        """By layer, the grid of sub-tiles that light of at least eps reaches, on the tiles this rank counts: [layers,
        rows, columns] bool on the device.

        The budget test: a pruned pixel has no fresh transmittance, so the one it had when last shown stands in; what
        it would let through may bring those behind it back too, front to back.
        """
        camera, layers = sharing.sight.camera, sharing.sight.layers
        places, _ = sharing.needed(self._comm.rank)
        counted = (sharing.pixel_counter == self._comm.rank).flatten()[places]
        shown = sharing.shown[:, places]
        signed = torch.where(stack.stopped, -stack.transmittance, stack.transmittance)
        for number, layer in enumerate(layers):
            remembered = signed.new_ones(camera.height * camera.width)
            if layer.boxes in known.kept:
                pixels, values = known.kept[layer.boxes]
                remembered[pixels.long()] = values
            signed[number] = torch.where(shown[number], signed[number], remembered[places])
        light = light_in_front(signed.abs(), signed < 0)
        bright = light >= self._options.saturation_eps
        # What will be shown will be fresh: only dark pixels can need what they held.
        regions = sharing.pixels_of(sharing.sight.layer_grids)[:, places]
        dark = subtiles.numbers_of(regions & counted & ~(bright & shown))
        for layer, of_layer, at in zip(layers, signed, dark, strict=True):
            known.kept[layer.boxes] = (places[at].int(), of_layer[at])
        reached = torch.zeros((len(layers), camera.height * camera.width), dtype=torch.bool, device=places.device)
        reached[:, places] = bright
        return subtiles.touched_by(reached.view(-1, camera.height, camera.width), camera)

    def _update(self, known: _ViewMasks, sharing: Sharing, lit: Sequence[torch.Tensor], images_seen: int) -> None:
        never = self._options.reactivate != "budget" and not self._shows_all(known)
        for layer, reached in zip(sharing.sight.layers, lit, strict=True):
            if layer.rank not in sharing.takes_part:
                continue
            for box in layer.boxes:
                region = sharing.sight.regions[box]
                mask = known.boxes.get(box)
                if mask is None:
                    mask = _Mask(torch.ones_like(region), torch.zeros(region.shape, dtype=torch.int64))
                pruned, saturated = region & ~mask.active, region & ~reached
                self._count(pruned, saturated, region, mask.since, images_seen)
                active = (reached & mask.active) if never else reached
                active = active | ~region
                since = mask.since.masked_fill(mask.active, images_seen).masked_fill_(active, 0)
                known.boxes[box] = _Mask(active, since)
        known.visits += 1

    def _count(
        self, pruned: torch.Tensor, saturated: torch.Tensor, region: torch.Tensor, since: torch.Tensor, images_seen: int
    ) -> None:
        pixels, counts = subtiles.WIDTH * subtiles.HEIGHT, self.counts
        counts.seen += pixels * int(region.sum())
        counts.pruned += pixels * int(pruned.sum())
        counts.saturated += pixels * int(saturated.sum())
        counts.hits += pixels * int((pruned & saturated).sum())
        counts.flipped += pixels * int((pruned & ~saturated).sum())
        counts.age += pixels * int((pruned * (images_seen - since)).sum())
