"""A full disk: recognised, and room made for the record that says so."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from harness.records.store import LOG

NO_SPACE = "no space left on the disk of the results"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST = 16 * 1024
"""Bytes; with fewer a record has no place."""


def says_full(error: OSError) -> bool:
    """Whether the error means that the disk, or what this user may have of it, is full."""
    return error.errno in _FULL


def is_full(folder: Path) -> bool:
    """Whether the folder's disk has no room for a record."""
    return shutil.disk_usage(folder).free < _LEAST


def drop_all_but_log(folder: Path) -> None:
    """Remove what a cell left beside its log."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOG:
            path.unlink(missing_ok=True)
