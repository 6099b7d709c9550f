"""What cells start `from`: trained once by content, kept in the cache, outside every clock and every results folder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from cuda_src.cache import cache_directory
from harness.errors import UserError
from harness.records.store import read_record
from harness.runner.finished import Key
from harness.runner.lock import locked

KIND = "prepared"


def folder_of(key: Key) -> Path:
    """Where the preparation's record and Gaussians are, or will be: by what is trained, with which code, and on which
    files, since the cache serves all projects of a user and a cell_id knows only the last part of a path."""
    name = f"{key.cell_id}-{key.code_id}"
    if any(key.paths):
        name += f"-{_files_hash(key.paths)}"
    return cache_directory(KIND) / name


def _files_hash(paths: Iterable[str | None]) -> str:
    """8 hex digits of the names, sizes and times of the files at or below the paths."""
    digest = hashlib.sha256()
    for path in (Path(path) for path in paths if path is not None):
        for file in sorted([path, *path.rglob("*")]):
            facts = file.stat()
            digest.update(f"{file.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:8]


def is_ready(folder: Path) -> bool:
    """Whether the folder holds a preparation that ended ok."""
    try:
        return read_record(folder).status == "ok"
    except UserError:
        return False


def build(folder: Path, train: Callable[[Path], bool]) -> bool:
    """Fill the folder unless it is ready; whether it is. Of two runs that need it, one trains and the other waits.

    train: given a new folder, leaves a record there and says whether it ended ok; if not, the folder is its own to
    move away.
    """
    with locked(folder.with_name(folder.name + "-lock"), wait=True):
        if is_ready(folder):
            return True
        shutil.rmtree(folder, ignore_errors=True)
        return train(folder)
