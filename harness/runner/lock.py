"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import UserError

LOCK = ".lock"


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Hold the folder's lock. The system frees it when its holder dies, however it dies.

    wait: until the other is ready; otherwise UserError when another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror}); expected a folder for records", folder) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(f"another run (process {holder}) writes here; expected one at a time", folder) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
