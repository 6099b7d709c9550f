"""Tables that take long to draw, kept as files: every cell and every rank of a machine maps the same pages.

20 million Gaussians are 4.7 GB and some ten seconds of one core; a suite has dozens of cells on them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from cuda_src.cache import cache_directory

WORTH_KEEPING = 1 << 26
"""Bytes from which a table is kept: drawing less takes no time to speak of."""
MOST_BYTES = 24 << 30
"""Of all that are kept; those that were used longest ago make room."""
SHARE_OF_FREE = 0.5
"""Most that a table takes of the disk's free space."""
KIND = "tables"


def kept_table(name: str, shape: tuple[int, int], draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The float32 table of that name, [shape] on the CPU; drawn at most once a machine if it is large.

    name: of a file, holds all that the numbers depend on. draw: makes the table. A file that cannot be kept, for want
    of space or of permission, costs the time of drawing and nothing else. What is written into the table stays with
    this process.
    """
    size = 4 * shape[0] * shape[1]
    if size < WORTH_KEEPING:
        return draw()
    folder = cache_directory(KIND)
    if folder.name != KIND:  # A fresh temporary one, where nothing is found again.
        return draw()
    file = folder / f"{name}.float32"
    try:
        if file.is_file() and file.stat().st_size == size:
            os.utime(file)
            return torch.from_file(str(file), shared=False, size=shape[0] * shape[1], dtype=torch.float32).view(shape)
    except (OSError, RuntimeError):
        return draw()
    table = draw()
    with suppress(OSError):
        _keep(table, file, size)
    return table


def _keep(table: torch.Tensor, file: Path, size: int) -> None:
    """Write it beside its place and move it there, so that no one ever finds a part. OSError where that fails."""
    _make_room(file.parent, size)
    if size > SHARE_OF_FREE * shutil.disk_usage(file.parent).free:
        return
    handle, part = tempfile.mkstemp(dir=file.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            table.numpy().tofile(stream)
        os.replace(part, file)
    except BaseException:
        os.unlink(part)
        raise


def _make_room(folder: Path, size: int) -> None:
    """Remove those used longest ago until one more of that size fits."""
    files = sorted(folder.glob("*.float32"), key=lambda file: file.stat().st_mtime)
    total = size + sum(file.stat().st_size for file in files)
    for file in files:
        if total <= MOST_BYTES:
            return
        total -= file.stat().st_size
        file.unlink(missing_ok=True)
