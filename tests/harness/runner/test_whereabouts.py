"""The notes of ranks about where they are, read after any end of theirs."""

from __future__ import annotations

import signal
import subprocess
import sys

from harness.runner.whereabouts import NOTE_BYTES, Whereabouts, whereabouts


def test_those_whom_the_others_wait_for_come_first_and_equal_ranks_together(tmp_path):
    ranks = [Whereabouts(tmp_path, rank) for rank in range(4)]
    for rank in ranks:
        rank.enter("loss")
    for rank in (ranks[0], ranks[2]):
        rank.wait("exchange_loss")
    assert whereabouts(tmp_path) == "ranks 1, 3 last in loss; ranks 0, 2 wait in exchange_loss"
    ranks[0].wait(None)
    ranks[1].enter("bin")
    assert whereabouts(tmp_path) == "rank 1 last in bin; ranks 0, 3 last in loss; rank 2 waits in exchange_loss"


def test_nothing_is_said_of_ranks_that_have_come_to_no_stage(tmp_path):
    assert whereabouts(tmp_path) == ""
    rank = Whereabouts(tmp_path, 1)
    assert str(rank) == "rank 1"
    rank.wait("barrier")
    rank.wait(None)
    assert whereabouts(tmp_path) == ""
    rank.enter("bin")
    assert str(rank) == "rank 1 last in bin"


def test_long_names_stay_within_their_rank(tmp_path):
    first, second = Whereabouts(tmp_path, 0), Whereabouts(tmp_path, 1)
    second.enter("bin")
    first.enter("x" * 2 * NOTE_BYTES)
    assert whereabouts(tmp_path).startswith("rank 1 last in bin; rank 0 last in xxx")
    first.enter("a")
    assert whereabouts(tmp_path) == "rank 0 last in a; rank 1 last in bin"


def test_a_note_outlives_kill_9(tmp_path):
    dies = (
        "import os, sys\nfrom pathlib import Path\nfrom harness.runner.whereabouts import Whereabouts\n"
        "Whereabouts(Path(sys.argv[1]), 0).enter('raster_forward')\nos.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", dies, str(tmp_path)]).returncode == -signal.SIGKILL
    assert whereabouts(tmp_path) == "rank 0 last in raster_forward"
