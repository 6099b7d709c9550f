"""Images kept on the device that trains on them, so that a step copies nothing from main memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch

from cuda_src.camera import Camera
from strategies.base import ImageSource, Rect

HELD_BYTES = 8 << 30
"""Images and masks kept on a device, bytes: 1300 views at 1920 x 1080."""


class HeldImages:
    """ImageSource that asks another for whole images once, and keeps those used last within a limit."""

    def __init__(self, images: ImageSource, cameras: Sequence[Camera], limit: int = HELD_BYTES):
        self._images = images
        self._cameras = cameras
        self._limit = limit
        self._held: OrderedDict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor | None]] = OrderedDict()

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        """Those pixels, [h, w, 3] uint8: a part of the image that is kept, not to be written to."""
        return self._whole(view, device)[0][rect.y0 : rect.y1, rect.x0 : rect.x1]

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        """Those pixels of the mask, [h, w] uint8; None without a mask."""
        mask = self._whole(view, device)[1]
        return None if mask is None else mask[rect.y0 : rect.y1, rect.x0 : rect.x1]

    @property
    def bytes(self) -> int:
        """What is kept now."""
        return _bytes(self._held.values())

    def bytes_on(self, device: torch.device) -> int:
        """What is kept on that device now."""
        return _bytes(parts for (_, at), parts in self._held.items() if at == device)

    def _whole(self, view: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        key = view, device
        if key not in self._held:
            rect = Rect.whole(self._cameras[view])
            self._held[key] = self._images.region(view, rect, device), self._images.mask(view, rect, device)
            while len(self._held) > 1 and self.bytes > self._limit:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return self._held[key]


def _bytes(kept: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> int:
    """Of images and masks: what views have in common, as those of a repeated scene do, counts once."""
    storages = [part.untyped_storage() for parts in kept for part in parts if part is not None]
    return sum({(storage.device, storage.data_ptr()): storage.nbytes() for storage in storages}.values())
