"""Photographs of a scene: checked when the scene is loaded, decoded only when a region is asked for."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image

from cuda_src.camera import Camera
from harness.errors import UserError
from harness.scenes.distortion import Undistortion
from strategies.base import Rect

CACHE_BYTES = 1 << 30
"""Decoded pixels that one source keeps, at most (at least one image)."""

_TAIL = 64
"""Bytes in which an image's end mark is looked for; cameras may pad the last block."""
_EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes of at most 8 bits a channel."""


@dataclass(frozen=True)
class Photograph:
    """One image file and the camera that took it.

    name: as the scene's file gives it. camera: of the whole file, without distortion. coefficients: OpenCV's, empty
    for a pinhole image. mask: 8-bit grey image of the same size, 255 counts fully and 0 not at all; None for none.
    """

    name: str
    file: Path
    camera: Camera
    coefficients: tuple[float, ...] = ()
    mask: Path | None = None


def path_inside(folder: Path, name: str, source: Path) -> Path:
    """`folder / name`, for a name read from `source`; UserError when the name leaves the folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    parts = path.parts
    if not parts or not name.isprintable() or path.is_absolute() or ".." in parts or ":" in parts[0]:
        raise UserError(f"path {name!r}; expected one inside the scene's folder", source)
    return folder / path


def is_file(path: Path) -> bool:
    """Whether such a file exists; False too for names that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def image_size(path: Path) -> tuple[int, int]:
    """Width and height from the file's header; UserError when it is missing, empty or no image."""
    if not is_file(path):
        raise UserError("image is missing", path)
    if path.stat().st_size == 0:
        raise UserError("image file is empty (0 bytes)", path)
    try:
        with Image.open(path) as image:
            if image.mode not in _EIGHT_BIT:
                raise UserError(f"image has mode {image.mode}; expected 8 bits a channel", path)
            return image.size
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        raise UserError(f"cannot be read as an image ({_reason(error)})", path) from error


def check_sizes(photographs: Sequence[Photograph]) -> None:
    """UserError unless every image and mask exists and has its camera's size. Reads headers only."""
    for photograph in photographs:
        expected = (photograph.camera.width, photograph.camera.height)
        for path in (photograph.file, photograph.mask):
            if path is not None and (found := image_size(path)) != expected:
                raise UserError(
                    f"is {found[0]}x{found[1]} pixels; its camera expects {expected[0]}x{expected[1]}", path
                )


def check_ends(photographs: Sequence[Photograph]) -> None:
    """UserError for an image or mask that is cut short. Only a file without its format's end mark is decoded."""
    for photograph in photographs:
        for path in (photograph.file, photograph.mask):
            if path is not None and not _has_end_mark(path):
                _open(path, "RGB")


def _has_end_mark(path: Path) -> bool:
    """Whether the last bytes hold the end mark of JPEG (EOI, ITU-T T.81) or PNG (IEND, ISO/IEC 15948)."""
    with path.open("rb") as stream:
        start = stream.read(8)
        stream.seek(-min(_TAIL, path.stat().st_size), os.SEEK_END)
        tail = stream.read()
    if start.startswith(b"\xff\xd8"):
        return b"\xff\xd9" in tail
    return start == b"\x89PNG\r\n\x1a\n" and b"IEND" in tail


def reduced(camera: Camera, size: tuple[int, int] | None) -> Camera:
    """The camera of the image reduced to fit inside `size` (width, height), keeping its shape; never enlarged."""
    if size is None:
        return camera
    scale = min(1.0, size[0] / camera.width, size[1] / camera.height)
    if scale == 1.0:
        return camera
    return camera.resized(max(1, round(camera.width * scale)), max(1, round(camera.height * scale)))


class PhotographSource:
    """ImageSource of photographs: decoded, undistorted and reduced on first use, kept as uint8 in bounded memory.

    cameras: of the images as given out, by view; only their sizes are used. Transparent pixels are laid on black,
    the background that training composites on.
    """

    def __init__(self, photographs: Sequence[Photograph], cameras: Sequence[Camera], cache_bytes: int = CACHE_BYTES):
        self._photographs = tuple(photographs)
        self._sizes = tuple((c.width, c.height) for c in cameras)
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[int, tuple[np.ndarray, np.ndarray | None]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def cached_bytes(self) -> int:
        return sum(_bytes(entry) for entry in self._cache.values())

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        """Those pixels of the view's photograph, [h, w, 3] uint8."""
        pixels, _ = self._decoded(view)
        return torch.from_numpy(pixels[rect.y0 : rect.y1, rect.x0 : rect.x1].copy()).to(device)

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        """Those pixels of the view's mask, [h, w] uint8; None when every pixel of the view counts fully."""
        _, mask = self._decoded(view)
        if mask is None:
            return None
        return torch.from_numpy(mask[rect.y0 : rect.y1, rect.x0 : rect.x1].copy()).to(device)

    def _decoded(self, view: int) -> tuple[np.ndarray, np.ndarray | None]:
        with self._lock:
            if view in self._cache:
                self._cache.move_to_end(view)
                return self._cache[view]
            entry = _decode(self._photographs[view], self._sizes[view])
            self._cache[view] = entry
            while len(self._cache) > 1 and self.cached_bytes > self._cache_bytes:
                self._cache.popitem(last=False)
            return entry


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _decode(photograph: Photograph, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
    """The image [H, W, 3] and its mask [H, W] at the given (width, height), both uint8."""
    check_sizes([photograph])  # the file may have changed since the scene was loaded
    image = _open(photograph.file, "RGB")
    mask = None if photograph.mask is None else _open(photograph.mask, "L")
    if photograph.coefficients:
        try:
            undistortion = Undistortion(photograph.camera, photograph.coefficients)
        except UserError as error:
            raise UserError(str(error), photograph.file) from error
        image = Image.fromarray(undistortion.image(np.asarray(image)))
        whole = np.full(image.size[::-1], 255, np.uint8) if mask is None else np.asarray(mask)
        mask = Image.fromarray(undistortion.mask(whole))
    if image.size != size:
        image = image.resize(size, Image.Resampling.LANCZOS)
        mask = None if mask is None else mask.resize(size, Image.Resampling.BOX)
    weights = None if mask is None else np.asarray(mask)
    return np.asarray(image), None if weights is None or weights.min() == 255 else weights


def _open(path: Path, mode: str) -> Image.Image:
    """The whole image in that mode; UserError when it cannot be decoded."""
    try:
        with Image.open(path) as image:
            image.load()
            if mode == "RGB" and (image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info):
                coloured = image.convert("RGBA")
                black = Image.new("RGBA", coloured.size, (0, 0, 0, 255))
                return Image.alpha_composite(black, coloured).convert("RGB")
            return image.convert(mode)
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        raise UserError(f"cannot be decoded ({_reason(error)})", path) from error


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def _bytes(entry: tuple[np.ndarray, np.ndarray | None]) -> int:
    pixels, mask = entry
    return pixels.nbytes + (0 if mask is None else mask.nbytes)
