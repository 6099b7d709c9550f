"""What several test packages share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job that a shell started in the background ignores Ctrl-C, and so would the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PHOTO_SCENES = Path(__file__).parents[2] / "shared" / "data"
"""Real photographs beside the checkout; they are never part of it."""


@pytest.fixture
def photo_scenes() -> Path:
    """The folder of real photo scenes; the test is skipped where it is absent."""
    if not PHOTO_SCENES.is_dir():
        pytest.skip(f"needs the photo scenes in {PHOTO_SCENES}")
    return PHOTO_SCENES
