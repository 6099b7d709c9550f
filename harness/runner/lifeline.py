"""A process that ends with the runner, however the runner ends."""

from __future__ import annotations

import os
import threading

from harness.errors import EXIT_FAILED


def end_with_the_runner() -> None:
    """Exit when standard input ends: the runner holds the pipe, so even its kill -9 leaves no orphan."""

    def wait() -> None:
        try:
            while os.read(0, 1):
                pass
        except OSError:
            pass  # No standard input at all: there is no runner to outlive.
        else:
            os._exit(EXIT_FAILED)

    if not os.isatty(0):
        threading.Thread(target=wait, daemon=True).start()
