"""What the mechanisms saved, render, exchange and supervision apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strategies.distribution.communicator import Communicator
from strategies.splaxel import subtiles
from strategies.splaxel.pixel_exchange import PixelCounts
from strategies.splaxel.saturation import PairCounts
from strategies.splaxel.sight import Sharing


@dataclass
class StepCounts:
    """This rank's supervised pixels, and those if every rank supervised whole images; the job's steps and views."""

    supervised: int = 0
    whole: int = 0
    steps: int = 0
    views: int = 0

    def add(self, sharings: list[Sharing], rank: int) -> None:
        self.steps += 1
        self.views += len(sharings)
        for sharing in sharings:
            camera = sharing.sight.camera
            self.supervised += subtiles.pixel_count(sharing.supervised(rank), camera)
            self.whole += camera.width * camera.height


def shares(
    comm: Communicator, steps: StepCounts, pixels: PixelCounts, pairs: PairCounts | None, window: int
) -> dict[str, float]:
    """Metrics of the whole job from its ranks' counts; a share of nothing is left out. Collective."""
    local = torch.tensor(
        [pixels.sent, int(pixels.zero), pixels.whole, steps.supervised, steps.whole], dtype=torch.int64
    )
    sent, zero, whole, supervised, all_pixels = comm.reduce("statistics", local).tolist()
    ratios = {
        "zero_pixel_share": (zero, sent),
        "region_pixel_share": (sent, whole),
        "supervised_pixel_share": (supervised, all_pixels),
    }
    if pairs is not None:
        # Pairs are judged alike everywhere: every rank's counts are the job's.
        ratios |= {
            "saturated_pair_share": (pairs.pruned, pairs.seen),
            "mask_hit_share": (pairs.hits, pairs.saturated),
            "mask_age_images": (pairs.age, pairs.pruned),
            "flip_rate": (pairs.flipped, pairs.pruned),
        }
    if window > 1:
        ratios["views_together"] = (steps.views, steps.steps)
    return {name: part / total for name, (part, total) in ratios.items() if total > 0}
