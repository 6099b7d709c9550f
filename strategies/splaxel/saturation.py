"""Saturation redundancy: sub-tiles of a box that no light reaches are left out of later visits of the view.

Splaxel's masks: behind a stopped prefix, or one whose transmittance is below eps, a box is
neither rendered nor exchanged nor supervised. The rank that counts a tile judges it; one bit a (box, sub-tile) is
told to all, so that masks are known alike everywhere and positions stay implied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
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


@dataclass(frozen=True)
class Judged:
    """What a visit shows of its masks, on its way to the host or to wait there for its sizes.

    lit: by layer, the grid of sub-tiles that light reaches. dark: by layer, which of the pixels that this rank
    composited are to be kept, [layers, P] bool; sizes: how many. light: transmittances, [layers, P].
    """

    lit: HostCopy
    dark: torch.Tensor
    sizes: HostCopy
    light: torch.Tensor


@dataclass(frozen=True)
class _Step:
    """What a step's visits showed, of which nobody has been told yet."""

    views: Sequence[int]
    sharings: Sequence[Sharing]
    judged: Sequence[Judged]
    images_seen: int


class Masks:
    """Masks of all views. `active` before a visit, `judge` and `learn` after it.

    What a step showed is agreed on when the next one is queued, or one of its views comes again: the host would wait
    for the device, and the device then for the host.
    """

    def __init__(self, comm: Communicator, options: SplaxelOptions):
        self._comm, self._options = comm, options
        self._views: dict[int, _ViewMasks] = {}
        self._copies = HostCopies()
        self._late: deque[_Step] = deque()
        self.counts = PairCounts()

    def forget(self) -> None:
        """The boxes, or which Gaussians they hold, have changed: masks mean nothing any more. Collective."""
        self.settle()
        self._views = {}

    def settle(self) -> None:
        """Agree on what is known of all visits. Collective."""
        while self._late:
            self._agree(self._late.popleft())

    def active(self, view: int) -> dict[int, torch.Tensor]:
        """By box, the grid that this visit shows; boxes left out of it show everything. Collective."""
        if any(view in step.views for step in self._late):
            self.settle()
        known = self._views.get(view)
        if known is None or self._shows_all(known):
            return {}
        return {box: mask.active for box, mask in known.boxes.items()}

    def judge(self, views: Sequence[int], sharings: Sequence[Sharing], stacks: Sequence[Partials]) -> list[Judged]:
        """Judge what each visit showed, for `learn`, by view. Nobody waits.

        stacks: by view, all layers' partials at the pixels that this rank composited. A rank judges the tiles that it
        counts, front to back by the boxes' order.
        """
        if self._options.saturation == "off":
            return []
        return [
            self._judged(self._views.setdefault(view, _ViewMasks()), sharing, stack)
            for view, sharing, stack in zip(views, sharings, stacks, strict=True)
        ]

    def learn(
        self,
        views: Sequence[int],
        sharings: Sequence[Sharing],
        judged: Sequence[Judged],
        images_seen: int,
    ) -> None:
        """The masks of the next visits follow from this. judged: what `judge` returned. Collective."""
        if self._options.saturation == "off":
            return
        self._late.append(_Step(views, sharings, judged, images_seen))
        while len(self._late) > 1:
            self._agree(self._late.popleft())

    def _agree(self, step: _Step) -> None:
        mine, sizes = [], [0] * self._comm.ranks
        for view, sharing, of_view in zip(step.views, step.sharings, step.judged, strict=True):
            bits = of_view.lit.read(subtiles.to_bits)
            mine.append(bits[:, subtiles.numbers(sharing.counted(self._comm.rank))].flatten())
            self._keep(self._views[view], sharing, of_view)
            for rank in range(self._comm.ranks):
                sizes[rank] += len(sharing.sight.layers) * subtiles.count(sharing.counted(rank))
        told = self._comm.gather("masks", torch.cat(mine) if mine else torch.empty(0, dtype=torch.uint8), lengths=sizes)
        read = [0] * self._comm.ranks
        for view, sharing in zip(step.views, step.sharings, strict=True):
            camera, layers = sharing.sight.camera, len(sharing.sight.layers)
            bits = torch.zeros((layers, camera.tiles), dtype=torch.uint8)
            for source, part in enumerate(told):
                tiles = subtiles.numbers(sharing.counted(source))
                begin, read[source] = read[source], read[source] + layers * len(tiles)
                bits[:, tiles] = part[begin : read[source]].view(layers, len(tiles))
            self._update(self._views[view], sharing, subtiles.from_bits(bits, camera), step.images_seen)

    def _shows_all(self, known: _ViewMasks) -> bool:
        return self._options.reactivate == "every_k" and known.visits % self._options.every == 0

    def _judged(self, known: _ViewMasks, sharing: Sharing, stack: Partials) -> Judged:
        """Light of at least eps reaches a sub-tile, on the tiles this rank counts.

        The budget test: a pruned pixel has no fresh transmittance, so the one it had when last shown stands in; what
        it would let through may bring those behind it back too, front to back.
        """
        camera, layers, places = sharing.sight.camera, sharing.sight.layers, sharing.lists.needed
        shown = sharing.shown[:, places]
        remembered = stack.transmittance.new_ones((len(layers), camera.height * camera.width))
        for number, layer in enumerate(layers):
            if layer.boxes in known.kept:
                pixels, values = known.kept[layer.boxes]
                remembered[number, pixels.long()] = values
        signed = torch.where(stack.stopped, -stack.transmittance, stack.transmittance)
        signed = torch.where(shown, signed, remembered[:, places])
        light = light_in_front(signed.abs(), signed < 0)
        bright = light >= self._options.saturation_eps
        # What will be shown will be fresh: only dark pixels can need what they held.
        counted = sharing.pixels_counted(self._comm.rank)
        dark = (sharing.pixels_of(sharing.sight.layer_grids) & counted)[:, places] & ~(bright & shown)
        reached = torch.zeros((len(layers), camera.height * camera.width), dtype=torch.bool, device=places.device)
        reached[:, places] = bright
        lit = subtiles.touched_by(reached.view(-1, camera.height, camera.width), camera)
        return Judged(self._copies.start(lit), dark, self._copies.start(dark.sum(dim=1)), signed)

    def _keep(self, known: _ViewMasks, sharing: Sharing, judged: Judged) -> None:
        """Remember the light at the dark pixels."""
        dark = subtiles.numbers_of(judged.dark, judged.sizes.read(torch.Tensor.tolist))
        for layer, light, at in zip(sharing.sight.layers, judged.light, dark, strict=True):
            known.kept[layer.boxes] = (sharing.lists.needed[at].int(), light[at])

    def _update(self, known: _ViewMasks, sharing: Sharing, lit: torch.Tensor, images_seen: int) -> None:
        never = self._options.reactivate != "budget" and not self._shows_all(known)
        for layer, reached in zip(sharing.sight.layers, lit, strict=True):
            if layer.rank not in sharing.takes_part:
                continue
            for box in layer.boxes:
                region = sharing.sight.regions[box]
                mask = known.boxes.get(box)
                if mask is None:
                    mask = _Mask(torch.ones_like(region), torch.zeros(region.shape, dtype=torch.int64))
                before, since = mask.active, mask.since.numpy()
                self._count(region & ~before, region & ~reached, region, since, images_seen)
                active = ((reached & before) if never else reached) | ~region
                since[(before & ~active).numpy()] = images_seen
                since[(active & ~before).numpy()] = 0
                known.boxes[box] = _Mask(active, mask.since)
        known.visits += 1

    def _count(
        self, pruned: torch.Tensor, saturated: torch.Tensor, region: torch.Tensor, since: np.ndarray, images_seen: int
    ) -> None:
        pixels, counts, left_out = subtiles.WIDTH * subtiles.HEIGHT, self.counts, subtiles.count(pruned)
        counts.seen += pixels * subtiles.count(region)
        counts.saturated += pixels * subtiles.count(saturated)
        if left_out:
            hits = subtiles.count(pruned & saturated)
            counts.pruned += pixels * left_out
            counts.hits += pixels * hits
            counts.flipped += pixels * (left_out - hits)
            counts.age += pixels * (left_out * images_seen - int((since * pruned.numpy()).sum()))
