"""The one place for what is built at run time: compiled kernels, now and of every later back end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

CACHE_VARIABLE = "SPLAT_HARNESS_CACHE"
"""Environment variable that names the folder for build and cache files."""


def cache_directory(kind: str) -> Path:
    """Folder for cache files of one kind, for example `numba`; made if it is missing.

    SPLAT_HARNESS_CACHE, else `splat-harness` in the user's cache folder (XDG_CACHE_HOME or ~/.cache). Where that
    cannot be written, a fresh temporary folder: slower, since nothing is found again, but it works.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        root = Path(chosen)
    else:
        user = os.environ.get("XDG_CACHE_HOME")
        root = (Path(user) if user else Path("~/.cache").expanduser()) / "splat-harness"
    folder = root / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return Path(tempfile.mkdtemp(prefix=f"splat-harness-{kind}-"))
    return folder
